"""A hook for tests: end or freeze this worker at a named step, as a crash at that step would.

`FRAZIL_LAKE_HALT_AT=committing` kills the worker and its JVM when a job reaches the step
`committing`; `committing:stop` freezes both instead. A third part names a file that is created by
the first worker that halts: those that find it go on, so that a restarted worker does not halt
again. `@FILE` names a file that is looked for at each step: it has `step[:kill|stop]`, may come and
change while the worker runs, and is removed by the worker that halts. Nothing else reads the
variable, and nobody sets it outside of tests.
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
        text = environment.get(VARIABLE, "")
        self._orders = text.removeprefix("@") if text.startswith("@") else ""
        self._file_system = file_system
        self._step, self._signal, self._once = _understood("" if self._orders else text)

    def reached(self, step: str) -> None:
        """End or freeze the process group of this worker if this is the step."""
        if self._orders:
            self._obey(step)
            return
        if not self._step or step != self._step:
            return
        if self._once:
            try:
                self._file_system.open(self._once, "create").close()
            except FileExistsError:
                return
        os.killpg(os.getpgid(0), self._signal)

    def _obey(self, step: str) -> None:
        """Do what the file of orders says, if there is one now."""
        try:
            file = self._file_system.open(self._orders, "read")
        except FileNotFoundError:
            return
        try:
            text = file.read_at(0, file.size()).decode()
        finally:
            file.close()
        wanted, number, _once = _understood(text)
        if wanted == step:
            self._file_system.unlink(self._orders)
            os.killpg(os.getpgid(0), number)


def _understood(text: str) -> tuple[str, signal.Signals, str]:
    step, _, rest = text.strip().partition(":")
    action, _, once = rest.partition(":")
    if (action or "kill") not in _ACTIONS:
        raise InvalidRequest("test hook must be step[:kill|stop[:file]]", variable=VARIABLE)
    return step, _ACTIONS[action or "kill"], once
