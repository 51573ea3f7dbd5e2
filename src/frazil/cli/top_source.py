"""Where `frazil top` looks: the file that a running engine keeps, or an engine of its own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import msgspec

from frazil.cli.top_figures import Sample
from frazil.errors import NotFound
from frazil.fs import read_fully

if TYPE_CHECKING:
    from frazil.clock import Clock
    from frazil.engine import Engine
    from frazil.fs import FileSystem

__all__ = ["OwnEngine", "RunningEngine", "is_alive", "parse_sample"]

STATS_FILE: Final = "stats.json"
STATS_BYTES_MAX: Final = 64 << 20
FRESH_S: Final = 10.0
"""An engine writes once a second; on a machine that is busy it may be late."""


class _File(msgspec.Struct):
    time_us: int
    pid: int
    stats: dict[str, Any]


_decode = msgspec.json.Decoder(_File).decode


def parse_sample(data: bytes) -> Sample | None:
    """Return the sample in a file's bytes, None if they are not whole."""
    try:
        found = _decode(data)
    except msgspec.MsgspecError:
        return None
    return Sample(found.time_us, found.pid, found.stats)


def is_alive(pid: int) -> bool:
    """Tell whether a process with this number exists on this machine."""
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        # It is somebody else's, so it is there.
        return True
    except (OSError, OverflowError):
        return False
    return True


class RunningEngine:
    """An engine in another process, as its file tells."""

    kind = "running"

    def __init__(self, file_system: FileSystem, directory: str, *, clock: Clock) -> None:
        self._file_system = file_system
        self._path = f"{directory}/{STATS_FILE}"
        self._clock = clock

    def is_there(self) -> bool:
        """Tell whether an engine runs: its process lives and its file is fresh."""
        return self._read() is not None

    def sample(self) -> Sample:
        """Return what the engine told last.

        Raises:
            NotFound: if it has ended.
        """
        found = self._read()
        if found is None:
            raise NotFound("no engine runs here any more", path=self._path)
        return found

    def _read(self) -> Sample | None:
        try:
            info = self._file_system.stat(self._path)
            if info is None or info.size > STATS_BYTES_MAX:
                return None
            file = self._file_system.open(self._path, "read")
            try:
                data = read_fully(file, 0, file.size())
            finally:
                file.close()
        except OSError:
            return None
        found = parse_sample(data)
        # A file of this process is left over from an engine that was closed: it runs no other.
        if found is None or found.pid == os.getpid() or not is_alive(found.pid):
            return None
        age_s = (self._clock.now_us() - found.time_us) / 1e6
        return found if abs(age_s) <= FRESH_S else None


class OwnEngine:
    """An engine that this process opened."""

    kind = "opened"

    def __init__(self, engine: Engine, *, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    def sample(self) -> Sample:
        """Return what the engine tells now."""
        return Sample(self._clock.now_us(), os.getpid(), self._engine.stats())
