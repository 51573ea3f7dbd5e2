"""Keep every subscription's cursor within its bounds before a frame is written. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from frazil.errors import FrazilError, InvalidRequest, Overloaded
from frazil.log.cursor import RANGES_MAX
from frazil.log.cursor_state import (
    ATTEMPTS_MAX,
    Acked,
    Attempted,
    Change,
    CursorState,
    Delayed,
    decode_changes,
    fold,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frazil.log.state import JournalState


class _Trial:
    """A cursor as the group leaves it: a known one, and changes that are not folded into it."""

    __slots__ = ("attempts", "changes", "known", "ranges")

    def __init__(self, known: CursorState | None) -> None:
        self.known = known
        self.changes: list[Change] = []
        # So many of each the changes may add at most.
        self.ranges = 0
        self.attempts = 0

    def has_room(self, own: Sequence[Change]) -> bool:
        """Tell by counts alone that more changes will fit; False means that it is not certain."""
        known = self.known
        if known is None or not all(
            isinstance(change, Acked | Attempted | Delayed) for change in own
        ):
            return False
        ranges, attempts = _most(own)
        return (
            known.range_count + self.ranges + ranges <= RANGES_MAX
            and len(known.attempts) + self.attempts + attempts <= ATTEMPTS_MAX
        )

    def after(self, name: str, own: Sequence[Change]) -> CursorState | None:
        """Work out on a copy what the cursor would be; None if there would be none."""
        cursors = {} if self.known is None else {name: self.known.copy()}
        fold(cursors, self.changes)
        fold(cursors, own)
        return cursors.get(name)

    def take(self, own: Sequence[Change]) -> None:
        """Let changes pass that have room."""
        ranges, attempts = _most(own)
        self.changes += own
        self.ranges += ranges
        self.attempts += attempts


class CursorBounds:
    """The cursor frames of one group: nothing of them is in the state yet.

    Most changes are let pass by a count alone. Only where that says that a cursor may outgrow its
    bounds, it is worked out on a copy.
    """

    def __init__(self, state: JournalState) -> None:
        self._state = state
        self._trials: dict[tuple[int, str], _Trial] = {}

    def refusal(self, topic_id: int, payload: bytes) -> FrazilError | None:
        """Return why a frame must not be written, None if it may be."""
        topic = self._state.topics.get(topic_id)
        if topic is None:
            return InvalidRequest("the cursor's topic does not exist", topic_id=topic_id)
        try:
            changes = decode_changes(payload)
        except ValueError as error:
            return InvalidRequest("changes of a cursor cannot be read", error=error)
        by_name: dict[str, list[Change]] = {}
        for change in changes:
            by_name.setdefault(change.name, []).append(change)
        worked_out: dict[str, _Trial] = {}
        for name, own in by_name.items():
            trial = self._trials.setdefault((topic_id, name), _Trial(topic.cursors.get(name)))
            if not trial.has_room(own):
                worked_out[name] = _Trial(trial.after(name, own))
                error_found = _fault(worked_out[name].known, name)
                if error_found is not None:
                    return error_found
        # Not before all of them may pass: a frame is written whole or not at all.
        for name, own in by_name.items():
            if name in worked_out:
                self._trials[topic_id, name] = worked_out[name]
            else:
                self._trials[topic_id, name].take(own)
        return None


def _most(changes: Sequence[Change]) -> tuple[int, int]:
    """Return how many ranges and attempts changes may add at most."""
    ranges = attempts = 0
    for change in changes:
        if isinstance(change, Acked):
            ranges += len(change.ranges) // 2
        elif isinstance(change, Attempted):
            attempts += len(change.attempts) // 2
    return ranges, attempts


def _fault(cursor: CursorState | None, name: str) -> Overloaded | None:
    if cursor is not None and cursor.range_count > RANGES_MAX:
        return Overloaded(
            "too many acked ranges above the first unacked record, ack the older ones first",
            subscription=name,
            ranges_max=RANGES_MAX,
            acked_below=cursor.acked_below,
            retry_after_ms=1000,
        )
    if cursor is not None and len(cursor.attempts) > ATTEMPTS_MAX:
        return Overloaded(
            "too many unacked records were delivered again, ack some of them first",
            subscription=name,
            attempts_max=ATTEMPTS_MAX,
            retry_after_ms=1000,
        )
    return None
