"""A row goes from one part of a topic to another because its key changes.

It is an insert in the new part and a delete in the old one. Both enter their journal's queue next to
each other, so that they are written and become visible in one group; the orders of both parts are
held meanwhile, so that the row that moves is the newest. Nothing is acked before both are written.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

from frazil.errors import Conflict, InvalidRequest
from frazil.log import Sender
from frazil.topic import Move, Sequencer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from frazil.log.codec import Entry
    from frazil.schema import Key, RawChange
    from frazil.topic import Image, Seen, TopicRuntime, Written


class Side(NamedTuple):
    """One of the two parts of a move."""

    part: int
    runtime: TopicRuntime


class Crossing(NamedTuple):
    """A move between two parts; each of its changes is under its own part's columns."""

    old: Side
    new: Side
    move: Move


def crossing(old: Side, new: Side, raw: RawChange) -> Crossing:
    """Check an update whose key goes from one part to another.

    Raises:
        InvalidRequest: if a value does not fit, or nobody knows the state of keys.
    """
    if not isinstance(old.runtime.queue, Sequencer):
        raise InvalidRequest(
            "this change needs the state of its key, which the memory tier keeps; "
            "set memory.enabled",
            topic=old.runtime.name,
        )
    delete = old.runtime.changes.columns.changes.prepare_delete(raw.key)
    moved = new.runtime.changes.columns.changes.prepare_move(raw.key, raw.row)
    assert moved is not None
    return Crossing(old, new, Move(delete, moved[1]))


def try_move(
    found: Crossing, sender: Sender | None, new_waiter: Callable[[], Any]
) -> list[tuple[int, Any]] | None:
    """Resolve a move and queue it; return each part that takes something with who waits for it.

    None if there is no room in the queue.

    Raises:
        NotFound: if no row has the old key and the topic's policy is `error`.
        Conflict: if one has the new key and the policy is `error`.
    """
    old, new, move = found
    keys = {old: move.delete.key, new: move.insert.key}
    while True:
        with _ordered(keys):
            seen = {side: side.runtime.queue.seen(key) for side, key in keys.items()}
        # A group may make one part's frames before the other's: neither is to depend on frames
        # that can still fail.
        if any(side.runtime.queue.wait_settled(seen[side]) for side in keys):
            continue
        insert = _inserted(found, keys, seen)
        waiting: list[tuple[int, Any]] = []
        entries: list[tuple[Sequencer, list[Entry]]] = []
        # The insert is first: of what a crash may leave a doubled row can be sent again.
        for side, written in ((new, insert), (old, move.delete)):
            if written is not None:
                prepared = side.runtime.changes.prepared([written])
                waiters = [new_waiter() for _each in prepared]
                waiting += [(side.part, waiter) for waiter in waiters]
                # Never the delete alone: sent again, the move would find no row.
                behind = (sender or Sender())._replace(behind=True) if side is old else sender
                own = side.runtime.entries(prepared, waiters, behind)
                entries.append((side.runtime.queue, own))
        with _ordered(keys):
            if all(side.runtime.queue.seen(key) == seen[side] for side, key in keys.items()):
                return waiting if _submit(old.runtime.log.queue, entries) else None


def _ordered(sides: Mapping[Side, Key]) -> ExitStack:
    """Take the orders of both parts, the lower one's first, as everybody does."""
    held = ExitStack()
    for side in sorted(sides, key=lambda side: side.part):
        held.enter_context(side.runtime.queue.order)
    return held


def _inserted(
    found: Crossing, keys: Mapping[Side, Key], seen: Mapping[Side, Seen]
) -> Written | None:
    codec = found.move.insert.codec
    images: dict[Side, Image] = {
        side: side.runtime.queue.image(key, seen[side], codec) for side, key in keys.items()
    }
    if any(image.codec.version > codec.version for image in images.values()):
        raise Conflict(
            "the topic's columns changed meanwhile, try again", topic=found.new.runtime.name
        )
    changes = found.new.runtime.changes
    return changes.row_moved(found.move, images[found.old], images[found.new])


def _submit(queue: Any, entries: Sequence[tuple[Sequencer, Sequence[Entry]]]) -> bool:
    """Queue the entries of both parts, all or none; False if there is no room."""
    undo = [sequencer.enter(own) for sequencer, own in entries]
    taken = False
    try:
        taken = bool(queue.submit_all([entry for _sequencer, own in entries for entry in own]))
    finally:
        if not taken:
            for each in undo:
                each()
    return taken
