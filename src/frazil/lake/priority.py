"""The lake's processes step back behind the engine: publishing goes first where cores are few."""

from __future__ import annotations

import contextlib
import os
from typing import Final

__all__ = ["NICENESS", "step_back"]

NICENESS: Final = 10
_GROUP: Final = "/proc/self/autogroup"


def step_back() -> None:
    """Lower this process's priority, and that of all it starts; idle cores are still all its own.

    Linux may share cores between sessions first, and between the processes of each only then. A
    process that has a session of its own would step back for nothing there, so its session does;
    one in the engine's session must not touch that.
    """
    os.nice(NICENESS)
    if os.getsid(0) != os.getpid():
        return
    with contextlib.suppress(OSError):
        group = os.open(_GROUP, os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.write(group, str(NICENESS).encode())
        finally:
            os.close(group)
