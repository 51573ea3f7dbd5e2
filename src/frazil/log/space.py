"""Free disk space: stop publishing before the disk is full, resume when there is room (F7)."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

from frazil.errors import Overloaded
from frazil.telemetry import warn

if TYPE_CHECKING:
    from frazil.config import LogSettings
    from frazil.fs import FileSystem

HYSTERESIS_RATIO: Final = 0.1
"""Publishing resumes when the free room exceeds the mark by this share."""


class SpaceGuard:
    """Watches the free space of the data directory and keeps a ballast file as a reserve.

    Publishing stops below the mark; control frames, deletes and metadata continue. When the disk
    is so full that even they may fail, the ballast is deleted; it is recreated when there is room.
    """

    def __init__(self, file_system: FileSystem, directory: str, settings: LogSettings) -> None:
        self._file_system = file_system
        self._directory = directory
        self._ballast = f"{directory}/ballast"
        self._settings = settings
        self.blocked = False
        self.free_bytes = 0
        self.total_bytes = 0

    @property
    def mark_bytes(self) -> int:
        """Return the free space below which publishing stops."""
        settings = self._settings
        return max(settings.free_bytes_min, int(self.total_bytes * settings.free_ratio_min))

    def check(self) -> bool:
        """Check the free space, update `blocked` and the ballast; tell whether it changed."""
        self.free_bytes, self.total_bytes = self._file_system.space(self._directory)
        before = self.blocked
        self.blocked = self.free_bytes < self.mark_bytes * (1 + HYSTERESIS_RATIO * before)
        try:
            if not self.blocked:
                self._keep_ballast()
            elif self.free_bytes < self._settings.ballast_bytes:
                self.give_up_ballast()
        except OSError as error:
            # The ballast is optional: the decision above holds without it.
            warn("ballast_trouble", path=self._ballast, error=error)
        return self.blocked != before

    def error(self) -> Overloaded:
        """Return the error for a publish while the disk is too full."""
        return Overloaded(
            "the disk is nearly full, publishing is stopped until there is room",
            path=self._directory,
            free_bytes=self.free_bytes,
            free_bytes_min=self.mark_bytes,
            retry_after_ms=1000,
        )

    def block(self) -> None:
        """Stop publishing at once: a write met a full disk."""
        self.blocked = True
        self.give_up_ballast()

    def give_up_ballast(self) -> None:
        """Delete the ballast file, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            self._file_system.unlink(self._ballast)

    def _keep_ballast(self) -> None:
        size = self._settings.ballast_bytes
        found = self._file_system.stat(self._ballast)
        if found is not None and found.size != size:
            self._file_system.unlink(self._ballast)
            found = None
        if not size or found is not None:
            return
        if self.free_bytes - size < self.mark_bytes * (1 + HYSTERESIS_RATIO):
            return
        self._file_system.allocate(self._ballast, size)
