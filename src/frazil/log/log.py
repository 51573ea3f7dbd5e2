"""The log: one journal of all topics with its committer and its reader."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from frazil.log import format as fmt
from frazil.log.committer import Committer, Pending, deliver
from frazil.log.reader import LogSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from frazil.config import LogSettings
    from frazil.errors import FrazilError
    from frazil.log.codec import Control, Entry
    from frazil.log.journal import Journal
    from frazil.log.segment import Segment


class InlineQueue:
    """Commits each entry in the caller's thread: deterministic, for simulations."""

    wait_s = 0.0

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def submit(self, *entries: Entry) -> bool:
        self.journal.commit(list(entries), deliver)
        return True

    submit_waiting = submit

    def call(self, function: Callable[[], Any], timeout_s: float | None = None) -> Any:
        del timeout_s
        return function()

    def start(self) -> None:
        """Do nothing: entries are committed on the caller's thread."""

    def stop(self) -> None:
        self.journal.close()


class Log:
    """An open journal, the queue of its writer, and the source that reads it."""

    def __init__(self, journal: Journal, settings: LogSettings, *, threads: bool) -> None:
        self.journal = journal
        self.source = LogSource(journal)
        self.pinning = threading.Lock()
        """Held while a reader pins records, and while unpinned segments are freed."""
        self.respect_pins = True
        """False with the disk tier: readers continue in its files when segments are freed."""
        self.queue: Any = (
            Committer(journal, settings, name="frazil-journal") if threads else InlineQueue(journal)
        )

    def control(self, control: Control) -> int:
        """Make a control frame durable and applied; return its batch sequence."""
        pending = Pending()
        size = len(control.payload) + fmt.FRAME_HEAD_BYTES
        self.queue.submit_waiting((None, None, control, 0, size, pending, None))
        return int(pending.result().lsn)

    def free(self, count: int) -> list[Segment]:
        """Free the oldest `count` segments unless a reader has pinned records of them since.

        Runs on the journal's thread and holds `pinning`, so that the check of the pins, the durable
        frame and the detaching are one step. Returns the detached segments, none if a pin prevents
        it. The caller unlinks them.
        """
        gone: list[Segment] = self.queue.call(lambda: self._free(count))
        return gone

    def _free(self, count: int) -> list[Segment]:
        journal = self.journal
        with self.pinning:
            if self.respect_pins and any(
                self._is_pinned(segment) for segment in journal.segments[:count]
            ):
                return []
            control = journal.free(journal.segments[count].id)
            size = len(control.payload) + fmt.FRAME_HEAD_BYTES
            pending = Pending()
            journal.commit([(None, None, control, 0, size, pending, None)], deliver)
            pending.result()
            return journal.detach_freed()

    def _is_pinned(self, segment: Segment) -> bool:
        for topic_id, summary in segment.summaries().items():
            pinned = self.source.pinned(topic_id)
            if pinned is not None and summary[1] > pinned:
                return True
        return False

    def stop(self) -> FrazilError | None:
        """Stop and close; return the journal's error if it failed."""
        self.queue.stop()
        return self.journal.closed_error() if self.journal.failed is not None else None
