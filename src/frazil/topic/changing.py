"""Publishing changes: resolve updates, inserts and deletes against the state of their keys.

A step is one change, or a move: the delete of a key and the insert of the row under its new key.
The topic's sequencer resolves the steps that need the state of their key; other steps are queued
unchanged. All changes of one call are one entry, which is written as a whole or not at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from frazil.errors import Conflict, InvalidRequest, NotFound
from frazil.log import Pending
from frazil.model import OP_DELETE, OP_INSERT, OP_UPDATE
from frazil.schema import part_of_values
from frazil.topic.changes import Change, Move, Step, completed, merged
from frazil.topic.sequencer import Image, Sequencer, is_next

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from frazil.log import Sender
    from frazil.log.codec import Entry
    from frazil.schema import Key
    from frazil.topic.frames import KeyedColumns
    from frazil.topic.runtime import TopicRuntime

STEP_BYTES: Final = 16
STEPS_MAX: Final = 1000
"""The number of steps that are resolved together against the state of their keys."""


class TopicChanges:
    """Checks and submits changes of one keyed topic."""

    def __init__(self, runtime: TopicRuntime) -> None:
        self._runtime = runtime

    @property
    def columns(self) -> KeyedColumns:
        """Return the codecs of changes for the current columns.

        Raises:
            InvalidRequest: if the topic has no primary key.
        """
        keyed: KeyedColumns | None = self._runtime.codec.columns.keyed
        if keyed is None:
            raise InvalidRequest(
                "changes need a primary key, create the topic with primary_key=",
                topic=self._runtime.name,
            )
        return keyed

    # -- users' input → steps --------------------------------------------------------------------

    def whole(self, op: int, record: object, fields: Mapping[str, Any]) -> Change:
        """Check a row to insert or upsert."""
        return self.columns.changes.prepare_row(self._runtime.row(record, fields), op)

    def update(self, arguments: Sequence[Any], fields: Mapping[str, Any]) -> Step:
        """Check an update: `(row)`, `(key, columns)` or `(column, value, columns)`."""
        codec = self.columns.changes
        *given, last = arguments or ({},)
        if not isinstance(last, dict):
            if given or not fields:
                got = type(last).__name__
                raise InvalidRequest("the columns to update must be a dict", got=got)
            given, last = [last], {}
        columns = {**last, **fields}
        if given:
            return codec.prepare_update(self._key(given), columns)
        if missing := [name for name in codec.shape.names if name not in columns]:
            raise InvalidRequest("an update must name the key", columns=", ".join(missing))
        key = {name: columns.pop(name) for name in codec.shape.names}
        return codec.prepare_update(key, columns)

    def _key(self, given: Sequence[Any]) -> Any:
        """Return the key that a call names: a key, or a column and its value."""
        names = self.columns.changes.shape.names
        if len(given) == 1:
            return given[0]
        if len(given) != 2:
            raise InvalidRequest(
                "give a key, or a column and its value; an update has its columns last",
                got=len(given),
            )
        column, value = given
        if names == (column,):
            return (value,)
        if isinstance(column, (list, tuple)) and isinstance(value, (list, tuple)):
            parts = dict(zip(column, value, strict=False))
            if len(parts) == len(value) and set(parts) == set(names):
                return parts
        raise InvalidRequest(
            "rows are changed by their primary key; find others with a query first",
            column=column,
            primary_key=", ".join(names),
        )

    def delete(self, arguments: Sequence[Any], fields: Mapping[str, Any]) -> Change:
        """Check a delete: `(key)`, `(column, value)` or the key's columns as keywords."""
        if arguments and fields:
            raise InvalidRequest("give the key either as it is or as keywords, not both")
        key = self._key(arguments) if arguments else dict(fields)
        return self.columns.changes.prepare_delete(key)

    def part_of(self, step: Step, parts: int) -> int:
        """Return the number of the part that a step belongs to.

        Raises:
            InvalidRequest: if it moves a row from one part to another: parts have no common order.
        """
        if not isinstance(step, Move):
            return self._part(step, parts)
        old, new = self._part(step.delete, parts), self._part(step.insert, parts)
        check_stays(old, new)
        return old

    def _part(self, change: Change, parts: int) -> int:
        positions = change.codec.shape.positions
        return part_of_values([change.values[position] for position in positions], parts)

    def check_part(self, step: Step) -> None:
        """Refuse a step that belongs to another part than this one."""
        routing = self._runtime.routing
        if routing is not None:
            self._runtime.check_part(self.part_of(step, routing[1]))

    # -- steps → entries -------------------------------------------------------------------------

    def needs_state(self, step: Step) -> bool:
        """Return whether a step depends on the current state of its key."""
        if isinstance(step, Move) or step.present is not None:
            return True
        return self._runtime.state.spec.unknown_key == "error" and step.op in {OP_INSERT, OP_DELETE}

    def try_submit(self, steps: Sequence[Step], sender: Sender | None) -> Pending | None:
        """Resolve steps and put them into the queue; return None if the queue is full.

        Raises:
            NotFound: if a key does not exist and the topic's policy is `error`.
            Conflict: if an inserted key exists and the policy is `error`.
        """
        queue, waiter = self._runtime.queue, Pending()
        needing = [step for step in steps if self.needs_state(step)]
        if not needing:
            taken = queue.submit(*self._entries(flat(steps), waiter, sender))
        elif isinstance(queue, Sequencer):
            keys = list(dict.fromkeys(change.key for change in flat(needing)))
            taken = self._resolve(queue, keys, steps, waiter, sender)
        else:
            raise InvalidRequest(
                "this change needs the state of its key, which the memory tier keeps; "
                "set memory.enabled",
                topic=self._runtime.name,
            )
        return waiter if taken else None

    def _resolve(
        self,
        queue: Sequencer,
        keys: Sequence[Key],
        steps: Sequence[Step],
        waiter: Pending,
        sender: Sender | None,
    ) -> bool:
        """Queue steps that depend on the current state of `keys`; False if the queue is full."""

        def build(images: Sequence[Image]) -> Sequence[Entry]:
            resolved = self._resolved(steps, dict(zip(keys, images, strict=True)))
            return self._entries(resolved, waiter, sender)

        taken: bool | None = None
        while taken is None:
            sent = queue.settled(sender)
            if not is_next(self._runtime.state, sender):
                # The current state of the keys must not matter: the journal returns the first
                # answer again, or refuses the sequence.
                entries = self._entries(flat(steps), waiter, sender)
                taken = queue.submit_answered(entries, sender, sent)
                continue
            try:
                taken = queue.resolve(keys, self.columns.changes, build, sender, sent)
            except (Conflict, NotFound):
                # The same call may have written the change that causes the refusal.
                if queue.is_last(sender, sent):
                    raise
        return taken

    def is_new(self, sender: Sender | None) -> bool:
        """Wait until a producer's earlier calls are settled; return whether this one is new."""
        queue = self._runtime.queue
        if isinstance(queue, Sequencer):
            queue.settled(sender)
        return is_next(self._runtime.state, sender)

    def _entries(
        self, changes: Sequence[Change], waiter: Any, sender: Sender | None
    ) -> Sequence[Entry]:
        """Return changes as one entry, with the newest of their schema versions."""
        codec = max((change.codec for change in changes), key=lambda each: each.version)
        same = [each if each.codec is codec else codec.adopted(each) for each in changes]
        size = sum(len(change.packed) + STEP_BYTES for change in same)
        one = (codec, same[0], 0, size) if len(same) == 1 else (codec, same, len(same), size)
        return self._runtime.entries([one], [waiter], sender)

    def _resolved(self, steps: Sequence[Step], images: dict[Key, Image]) -> list[Change]:
        """Return the changes to write; each step sees the results of the steps before it."""
        changes: list[Change] = []
        for step in steps:
            if isinstance(step, Move):
                fresh = self._moved(step, images)
            else:
                fresh = [self._changed(step, images.get(step.key))]
            for change in fresh:
                gone = change.op == OP_DELETE or change.present is not None
                values = None if gone else change.values
                images[change.key] = Image(values, change, change.codec)
            changes += fresh
        return changes

    def _changed(self, change: Change, image: Image | None) -> Change:
        if image is None or not self.needs_state(change):
            return change
        self._check_strict(change, image)
        if change.op == OP_UPDATE and image.values is not None:
            change = merged(change, image.values, image.codec)
        elif change.op == OP_UPDATE and self._runtime.state.spec.unknown_key == "insert":
            change = completed(change)
            change = change.codec.whole(change.values, OP_INSERT)
        # Else an update of a row that does not exist: the fold drops it.
        change.base = image.base
        return change

    def _check_strict(self, change: Change, image: Image) -> None:
        if self._runtime.state.spec.unknown_key == "error":
            check_exists(change, exists=image.values is not None, topic=self._runtime.name)

    def _moved(self, move: Move, images: dict[Key, Image]) -> list[Change]:
        delete, insert = move
        old = images[delete.key]
        self._check_strict(delete, old)
        self._check_strict(insert, images[insert.key])
        image = old.values
        if image is None and self._runtime.state.spec.unknown_key == "ignore":
            # Always two records: an idempotent producer's sequence must not depend on stored rows.
            return [delete, delete.codec.whole(delete.values, OP_DELETE)]
        insert = completed(insert) if image is None else merged(insert, image, old.codec)
        # Both are written or neither, so one check that the old row exists is enough.
        delete.base = insert.base = old.base
        return [delete, insert]


def check_exists(change: Change, /, *, exists: bool, **facts: object) -> None:
    """Refuse an insert of a key that exists, and an update or delete of a key that does not.

    Raises:
        Conflict: if there is a row already.
        NotFound: if there is none.
    """
    if exists and change.op == OP_INSERT:
        raise Conflict("a row has this key already, use upsert", key=change.key, **facts)
    if not exists and change.op in {OP_UPDATE, OP_DELETE}:
        raise NotFound("no row has this key", key=change.key, **facts)


def flat(steps: Sequence[Step]) -> list[Change]:
    """Return the unresolved changes of steps; a move has two."""
    return [change for step in steps for change in (step if isinstance(step, Move) else (step,))]


def check_stays(part: int, part_new: int) -> None:
    """Refuse to move a row from one part to another."""
    if part != part_new:
        raise InvalidRequest(
            "an update cannot move a row to a key of another part, delete the row and insert it "
            "under its new key",
            part=part,
            part_new=part_new,
        )
