"""Keep every subscription's cursor within its bounds before a frame is written. No I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from frazil.errors import FrazilError, InvalidRequest, Overloaded
from frazil.log.cursor_state import (
    ATTEMPTS_MAX,
    RANGES_MAX,
    Acked,
    Attempted,
    Change,
    CursorState,
    decode_changes,
    fold,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frazil.log.state import JournalState


class _Trial(NamedTuple):
    """A cursor as the group leaves it: a known one, and changes that are not folded into it."""

    known: CursorState | None
    changes: tuple[Change, ...] = ()
    ranges: int = 0
    """So many ranges, and attempts, the changes may add at most."""
    attempts: int = 0


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
        after: dict[tuple[int, str], _Trial] = {}
        for name, own in by_name.items():
            key = (topic_id, name)
            trial = _try(self._trials.get(key) or _Trial(topic.cursors.get(name)), name, own)
            if isinstance(trial, FrazilError):
                return trial
            after[key] = trial
        self._trials.update(after)
        return None


def _try(trial: _Trial, name: str, own: Sequence[Change]) -> _Trial | FrazilError:
    """Return what a cursor is after more changes, or why they are refused."""
    known = trial.known
    changes = (*trial.changes, *own)
    if known is not None and all(isinstance(change, Acked | Attempted) for change in own):
        ranges, attempts = _most(own)
        ranges, attempts = trial.ranges + ranges, trial.attempts + attempts
        if (
            known.ranges_count + ranges <= RANGES_MAX
            and len(known.attempts) + attempts <= ATTEMPTS_MAX
        ):
            return _Trial(known, changes, ranges, attempts)
    cursors = {} if known is None else {name: known.copy()}
    fold(cursors, changes)
    return (
        _Trial(cursors.get(name)) if (error := _fault(cursors.get(name), name)) is None else error
    )


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
    if cursor is not None and cursor.ranges_count > RANGES_MAX:
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
