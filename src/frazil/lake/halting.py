"""A hook for tests: end or freeze this worker at a named step, as a crash at that step would.

`FRAZIL_LAKE_HALT_AT=committing` kills the worker and its JVM when a job reaches the step
`committing`; `committing:stop` freezes both instead. A third part names a file that is created by
the first worker that halts: those that find it go on, so that a restarted worker does not halt
again. Nothing else reads the variable, and nobody sets it outside of tests.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from frazil.errors import InvalidRequest

if TYPE_CHECKING:
    from frazil.fs import FileSystem

__all__ = ["VARIABLE", "Halt"]

VARIABLE: Final = "FRAZIL_LAKE_HALT_AT"
_ACTIONS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class Halt:
    """What the variable asks for; nothing if it is not set.

    Raises:
        InvalidRequest: if the variable cannot be understood.
    """

    def __init__(self, environment: Mapping[str, str], file_system: FileSystem) -> None:
        step, _, rest = environment.get(VARIABLE, "").partition(":")
        action, _, self._once = rest.partition(":")
        self._step = step
        self._file_system = file_system
        if (action or "kill") not in _ACTIONS:
            raise InvalidRequest("test hook must be step[:kill|stop[:file]]", variable=VARIABLE)
        self._signal = _ACTIONS[action or "kill"]

    def reached(self, step: str) -> None:
        """End or freeze the process group of this worker if this is the step."""
        if not self._step or step != self._step:
            return
        if self._once:
            try:
                self._file_system.open(self._once, "create").close()
            except FileExistsError:
                return
        os.killpg(os.getpgid(0), self._signal)
