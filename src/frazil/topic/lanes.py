"""Journals with their committers and readers: the shared one, and one for each dedicated lane."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Protocol

from frazil.log import Committer, LogSource, Pending, deliver
from frazil.log import format as fmt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from frazil.config import LogSettings
    from frazil.errors import FrazilError
    from frazil.log import Control, Journal, Segment
    from frazil.log.codec import Entry


class Queue(Protocol):
    """What stands before a journal: a committer's thread, or nothing at all in a simulation."""

    journal: Journal

    def submit(self, entry: Entry) -> bool:
        """Take an entry; False if there is no room."""

    def submit_all(self, entries: Sequence[Entry]) -> bool:
        """Take entries next to each other, all or none; False if there is no room."""

    def submit_waiting(self, *entries: Entry) -> None:
        """Take entries next to each other, waiting for room."""

    def call(self, function: Callable[[], Any], timeout_s: float | None = None) -> Any:
        """Run a function as the journal's owner."""

    def start(self) -> None:
        """Begin to work."""

    def stop(self) -> None:
        """Finish what waits and close the journal."""


class InlineQueue:
    """Commits each entry in the caller's thread: deterministic, for simulations."""

    wait_s = 0.0

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def submit(self, entry: Entry) -> bool:
        self.journal.commit([entry], deliver)
        return True

    def submit_all(self, entries: Sequence[Entry]) -> bool:
        self.journal.commit(list(entries), deliver)
        return True

    def submit_waiting(self, *entries: Entry) -> None:
        self.submit_all(entries)

    def call(self, function: Callable[[], Any], timeout_s: float | None = None) -> Any:
        del timeout_s
        return function()

    def start(self) -> None:
        """Do nothing: the caller's thread works."""

    def stop(self) -> None:
        self.journal.close()


class LaneRuntime:
    """One journal at work."""

    def __init__(
        self, journal: Journal, settings: LogSettings, *, name: str, threads: bool
    ) -> None:
        self.name = name
        self.journal = journal
        self.source = LogSource(journal)
        self.pinning = threading.Lock()
        """Held while a reader pins records, and while segments are freed that nobody has pinned."""
        self.respect_pins = True
        """False when the disk tier has all that is freed: readers then go on there."""
        self.queue: Any = (
            Committer(journal, settings, name=f"frazil-{name}") if threads else InlineQueue(journal)
        )

    def control(self, control: Control) -> int:
        """Make a control frame durable and applied; return its batch sequence."""
        pending = Pending()
        size = len(control.payload) + fmt.FRAME_HEAD_BYTES
        self.queue.submit_waiting((None, None, control, 0, size, pending, None))
        return int(pending.result().lsn)

    def free(self, count: int) -> list[Segment]:
        """Free the oldest `count` segments unless a reader has pinned records of them since.

        On the journal's thread, with new pins kept out: the pins are looked at, the frame is made
        durable and the segments leave the readers' sight as one step. Returns the segments that
        went, none if a pin stood in the way. The caller unlinks them.
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
        for topic_id in segment.topics:
            pinned = self.source.pinned(topic_id)
            summary = segment.summary(topic_id)
            if pinned is not None and summary is not None and summary[1] > pinned:
                return True
        return False

    def stop(self) -> FrazilError | None:
        """Stop and close; return what went wrong, if anything did."""
        self.queue.stop()
        return self.journal.closed_error() if self.journal.failed is not None else None
