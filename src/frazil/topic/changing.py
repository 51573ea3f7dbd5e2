"""Publishing changes: what an update, insert or delete becomes once its key's state is known.

A step is one change, or a move: the delete of a key and the insert of the row under its new key.
Steps that need the state of their key are resolved by the topic's sequencer, the others go as they
are. Everything of one call is one entry, so that it is written as a whole or not at all.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from frazil.errors import Conflict, InvalidRequest, NotFound
from frazil.model import OP_DELETE, OP_INSERT, OP_UPDATE
from frazil.schema import part_of_values, positions_of
from frazil.topic.changes import Change, ChangeCodec, completed, merged
from frazil.topic.sequencer import Image, SentMeanwhile, Sequencer, refusal_of, sent_before

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from frazil.log import Sender
    from frazil.log.codec import Entry
    from frazil.schema import Key, RawChange
    from frazil.topic.frames import KeyedColumns
    from frazil.topic.runtime import Prepared, TopicRuntime

STEP_BYTES: Final = 16
STEPS_MAX: Final = 1000
"""So many steps that need their key's state are resolved at once."""


class StoredRow(NamedTuple):
    """A whole row as a batch, for values that Python has no form for.

    A row that moved has its delete before it, of the key `gone`, in the same batch.
    """

    key: Key
    op: int
    batch: pa.RecordBatch
    gone: Key | None = None


class Move(NamedTuple):
    """A row goes from one key to another."""

    delete: Change
    insert: Change


Step = Change | Move
Written = Change | StoredRow


class TopicChanges:
    """Changes of one keyed topic on their way in."""

    def __init__(self, runtime: TopicRuntime) -> None:
        self._runtime = runtime

    @property
    def columns(self) -> KeyedColumns:
        """Return what turns changes into frames, of the current columns.

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

    # -- what users give → steps -----------------------------------------------------------------

    def whole(self, op: int, record: object, fields: Mapping[str, Any]) -> Change:
        """Check a row to insert or upsert."""
        codec = self.columns.changes
        row = self._runtime.row(record, fields)
        return codec.prepare_insert(row) if op == OP_INSERT else codec.prepare_upsert(row)

    def update(self, arguments: Sequence[Any], fields: Mapping[str, Any]) -> Step:
        """Check an update: `(row)`, `(key, columns)` or `(column, value, columns)`."""
        codec = self.columns.changes
        key, columns = self._update_arguments(codec, arguments, fields)
        if not any(name in columns for name in codec.shape.names):
            return codec.prepare_update(key, columns)
        moved = codec.prepare_move(key, columns)
        return codec.prepare_update(key, columns) if moved is None else Move(*moved)

    def _update_arguments(
        self, codec: ChangeCodec, arguments: Sequence[Any], fields: Mapping[str, Any]
    ) -> tuple[Any, Mapping[str, Any]]:
        if len(arguments) == 3:
            column, value, columns = arguments
            key = self._key_by_column(codec, column, value)
        elif len(arguments) == 2:
            key, columns = arguments
        elif len(arguments) == 1 and (fields or not isinstance(arguments[0], dict)):
            key, columns = arguments[0], {}
        elif len(arguments) <= 1:
            row = {**(arguments[0] if arguments else {}), **fields}
            missing = [name for name in codec.shape.names if name not in row]
            if missing:
                raise InvalidRequest("an update must name the key", columns=", ".join(missing))
            key = {name: row.pop(name) for name in codec.shape.names}
            return key, row
        else:
            raise InvalidRequest(
                "update takes a row, a key and columns, or a column, its value and columns",
                got=len(arguments),
            )
        if not isinstance(columns, dict):
            raise InvalidRequest("the columns to update must be a dict", got=type(columns).__name__)
        return key, {**columns, **fields}

    def _key_by_column(self, codec: ChangeCodec, column: object, value: object) -> Any:
        names = codec.shape.names
        if names == (column,):
            return (value,)
        if isinstance(column, (list, tuple)) and isinstance(value, (list, tuple)):
            given = dict(zip(column, value, strict=False))
            if len(given) == len(value) and set(given) == set(names):
                return given
        raise InvalidRequest(
            "rows are changed by their primary key; find others with a query first",
            column=column,
            primary_key=", ".join(names),
        )

    def delete(self, arguments: Sequence[Any], fields: Mapping[str, Any]) -> Change:
        """Check a delete: `(key)`, `(column, value)` or the key's columns as keywords."""
        codec = self.columns.changes
        if len(arguments) == 1 and not fields:
            return codec.prepare_delete(arguments[0])
        if len(arguments) == 2 and not fields:
            return codec.prepare_delete(self._key_by_column(codec, *arguments))
        if not arguments and fields:
            return codec.prepare_delete(dict(fields))
        raise InvalidRequest(
            "delete takes a key, a column and its value, or the key's columns as keywords",
            got=len(arguments),
        )

    def part_of(self, step: Step, parts: int) -> int:
        """Return which of so many parts a step belongs to.

        Raises:
            InvalidRequest: if it moves a row from one part to another: nothing orders the two.
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
        """Tell whether a step depends on what its key is now."""
        if isinstance(step, Move) or step.present is not None:
            return True
        strict = self._runtime.state.spec.unknown_key == "error"
        return strict and step.op in {OP_INSERT, OP_DELETE}

    def try_submit(
        self, steps: Sequence[Step], sender: Sender | None, new_waiter: Callable[[], Any]
    ) -> list[Any] | None:
        """Resolve steps and put them into the queue; return the waiters, None if there is no room.

        Raises:
            NotFound: if a key does not exist and the topic's policy is `error`.
            Conflict: if an inserted key exists and the policy is `error`.
        """
        while True:
            counts = self._repeated(steps, sender)
            try:
                if not counts:
                    return self._try_fresh(steps, sender, new_waiter)
                return self._try_repeat(steps, counts, sender, new_waiter)
            except SentMeanwhile:
                continue

    def _repeated(self, steps: Sequence[Step], sender: Sender | None) -> list[int]:
        """Return the records of each batch that steps repeat and that must not be resolved again.

        Raises:
            Conflict: if other changes were sent under their sequence.
        """
        if sender is None or not isinstance(self._runtime.queue, Sequencer):
            return []
        if not any(self.needs_state(step) for step in steps):
            # The journal sees that it is a repeat.
            return []
        records = records_of(steps)
        counts = sent_before(self._runtime.state, sender, records=records)
        # Rows that are frames of their own may be there without the following ones.
        if counts and sum(counts) != records and not self.columns.changes.exact:
            refusal = refusal_of(self._runtime.state, sender, records=records)
            if refusal is not None:
                raise refusal
        return counts

    def _try_repeat(
        self,
        steps: Sequence[Step],
        counts: Sequence[int],
        sender: Sender | None,
        new_waiter: Callable[[], Any],
    ) -> list[Any] | None:
        """Ask for the answers that steps got before; what was not written is resolved now."""
        queue = self._runtime.queue
        assert isinstance(queue, Sequencer)
        assert sender is not None
        # What the keys are by now must not matter: the first call's answer is the answer.
        changes = _flat(steps)
        prepared: list[Prepared] = []
        at = 0
        for count in counts:
            prepared += self.prepared(changes[at : at + count])
            at += count
        waiters = [new_waiter() for _each in prepared]
        if not queue.submit_repeat(self._runtime.entries(prepared, waiters, sender)):
            return None
        left = steps_behind(steps, at)
        if not left:
            return waiters
        rest = self.try_submit(left, sender._replace(sequence=sender.sequence + at), new_waiter)
        return None if rest is None else waiters + rest

    def _try_fresh(
        self, steps: Sequence[Step], sender: Sender | None, new_waiter: Callable[[], Any]
    ) -> list[Any] | None:
        queue = self._runtime.queue
        waiters: list[Any] = []

        def entries_of(changes: Sequence[Written]) -> Sequence[Entry]:
            nonlocal waiters
            prepared = self.prepared(changes)
            waiters = [new_waiter() for _each in prepared]
            return self._runtime.entries(prepared, waiters, sender)

        needing = [step for step in steps if self.needs_state(step)]
        if not needing:
            taken = queue.submit_all(entries_of([s for s in steps if isinstance(s, Change)]))
        elif not isinstance(queue, Sequencer):
            taken = queue.submit_all(entries_of(self._unresolved(steps)))
        else:
            keys = list(dict.fromkeys(self._keys(needing)))
            try:
                taken = queue.resolve(
                    keys,
                    self.columns.changes,
                    lambda images: entries_of(
                        self._resolved(steps, dict(zip(keys, images, strict=True)))
                    ),
                    sender=sender,
                    is_sent=lambda: bool(self._repeated(steps, sender)),
                )
            except (Conflict, NotFound) as error:
                raise self.refusal(sender, records=records_of(steps)) or error from None
        return waiters if taken else None

    def refusal(self, sender: Sender | None, *, records: int) -> Conflict | None:
        """Return what is wrong with a producer's call before it matters what its changes say."""
        queue = self._runtime.queue
        if sender is None or sender.producer is None:
            return None
        if isinstance(queue, Sequencer) and not queue.idle(sender.producer):
            return None
        return refusal_of(self._runtime.state, sender, records=records)

    def _keys(self, steps: Sequence[Step]) -> list[Key]:
        strict = self._runtime.state.spec.unknown_key == "error"
        keys: list[Key] = []
        for step in steps:
            if isinstance(step, Move):
                keys.append(step.delete.key)
                if strict:
                    keys.append(step.insert.key)
            else:
                keys.append(step.key)
        return keys

    def _unresolved(self, steps: Sequence[Step]) -> list[Change]:
        """Return steps as they are where no tier knows the state of keys.

        Raises:
            InvalidRequest: if one of them needs it: a later reader of the log cannot know it.
        """
        if any(self.needs_state(step) for step in steps):
            raise InvalidRequest(
                "this change needs the state of its key, which the memory tier keeps; "
                "set memory.enabled",
                topic=self._runtime.name,
            )
        return [step for step in steps if isinstance(step, Change)]

    def _resolved(self, steps: Sequence[Step], images: dict[Key, Image]) -> list[Written]:
        """Return the changes to write; each step sees what the steps before it made."""
        changes: list[Written] = []
        fresh: list[Written]
        for step in steps:
            if isinstance(step, Move):
                fresh = self._moved(step, images)
            else:
                fresh = [self._changed(step, images.get(step.key))]
            for change in fresh:
                if isinstance(change, StoredRow) and change.gone is not None:
                    images[change.gone] = Image(None, None, self.columns.changes)
                images[change.key] = self._image_after(change)
            changes += fresh
        return changes

    def _image_after(self, change: Written) -> Image:
        if isinstance(change, StoredRow):
            return Image(
                None, None, self.columns.changes, change.batch.slice(change.batch.num_rows - 1)
            )
        gone = change.op == OP_DELETE or change.present is not None
        return Image(None if gone else change.values, change, change.codec)

    def _changed(self, change: Change, image: Image | None) -> Written:
        if image is None or not self.needs_state(change):
            return change
        name = self._runtime.name
        policy = self._runtime.state.spec.unknown_key
        exists = image.exists
        if change.op == OP_INSERT:
            if exists:
                raise Conflict("a row has this key already, use upsert", topic=name, key=change.key)
            change.base = image.base
            return change
        if not exists and policy == "error":
            raise NotFound("no row has this key", topic=name, key=change.key)
        if change.op == OP_DELETE:
            change.base = image.base
            return change
        if image.stored is not None:
            return stored_row(change, image.stored, image.codec)
        if image.values is not None:
            fresh = merged(change, image.values, image.codec)
        elif policy == "insert":
            fresh = completed(change)
            fresh = fresh.codec.with_op(fresh, OP_INSERT)
        else:
            # Nobody has the row: readers fold the change into nothing.
            fresh = change
        fresh.base = image.base
        return fresh

    def _moved(self, move: Move, images: dict[Key, Image]) -> list[Written]:
        old = images[move.delete.key]
        insert = self.row_moved(move, old, images.get(move.insert.key))
        if insert is None:
            # Two records as ever: the numbers of an idempotent producer do not depend on rows.
            return [move.delete, move.delete.codec.with_op(move.delete, OP_DELETE)]
        if isinstance(insert, StoredRow):
            # One batch: the delete must not be written without the insert.
            batch = pa.concat_batches([_deletion(move.delete, insert.batch.schema), insert.batch])
            return [StoredRow(insert.key, insert.op, batch, gone=move.delete.key)]
        delete = move.delete
        if delete.codec is not insert.codec:
            # The columns changed meanwhile: only under the same ones they make one entry.
            delete = insert.codec.adopted(delete)
        # Both are written or neither: that the old row was there is enough to check once.
        delete.base = insert.base = old.base
        return [delete, insert]

    def row_moved(self, move: Move, old: Image, target: Image | None) -> Written | None:
        """Return what a move inserts, None if there is nothing to move and that is no error.

        Raises:
            NotFound: if no row has the old key and the topic's policy is `error`.
            Conflict: if one has the new key and the policy is `error`.
        """
        policy = self._runtime.state.spec.unknown_key
        name = self._runtime.name
        if not old.exists:
            if policy == "error":
                raise NotFound("no row has this key", topic=name, key=move.delete.key)
            if policy == "ignore":
                return None
        if policy == "error" and target is not None and target.exists:
            raise Conflict("a row has the new key already", topic=name, key=move.insert.key)
        if old.stored is not None:
            return stored_row(move.insert, old.stored, old.codec)
        if old.values is None:
            return completed(move.insert)
        return merged(move.insert, old.values, old.codec)

    def prepared(self, changes: Sequence[Written]) -> list[Prepared]:
        """Return changes as few entries, a new one where the columns changed in between."""
        result: list[Prepared] = []
        for codec, run in groupby(changes, key=_codec_of):
            if codec is None:
                for each in run:
                    assert isinstance(each, StoredRow)
                    bulk = self.columns.bulk
                    payload = bulk.payload(each.batch)
                    result.append((bulk.codec(), payload, each.batch.num_rows, payload.size))
                continue
            some = [change for change in run if isinstance(change, Change)]
            size = sum(len(change.packed) for change in some) + STEP_BYTES * len(some)
            if len(some) == 1:
                result.append((codec, some[0], 0, size))
            else:
                result.append((codec, some, len(some), size))
        return result


def stored_row(change: Change, batch: pa.RecordBatch, codec: ChangeCodec) -> StoredRow:
    """Return a stored row with the columns that a partial change names."""
    if change.codec is not codec:
        raise Conflict("the topic's columns changed meanwhile, try again")
    assert change.present is not None
    arrays = batch.columns
    for position in positions_of(change.present):
        kind = batch.schema.field(position).type
        arrays[position] = pa.array([change.values[position]], kind)
    arrays[-2:] = [pa.array([change.op], pa.int8()), pa.nulls(1, pa.binary())]
    row = pa.RecordBatch.from_arrays(arrays, schema=batch.schema)
    return StoredRow(change.key, change.op, row)


def step_of(codec: ChangeCodec, raw: RawChange) -> Step:
    """Check one operation of an event: a change, or a move if the key is another one afterwards.

    Raises:
        InvalidRequest: if a value does not fit its column.
    """
    if raw.op == OP_UPDATE and any(
        raw.row.get(name, value) != value for name, value in raw.key.items()
    ):
        moved = codec.prepare_move(raw.key, raw.row)
        if moved is not None:
            return Move(*moved)
    return codec.prepare(raw.op, raw.key, raw.row)


def records_of(steps: Sequence[Step]) -> int:
    """Return how many records steps become: a move is two, whatever there is to move."""
    return sum(2 if isinstance(step, Move) else 1 for step in steps)


def steps_behind(steps: Sequence[Step], records: int) -> list[Step]:
    """Return the steps after so many records."""
    for number, step in enumerate(steps):
        if records <= 0:
            return list(steps[number:])
        records -= records_of((step,))
    return []


def _flat(steps: Sequence[Step]) -> list[Written]:
    """Return the changes of steps as they came, a move as two."""
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


def _deletion(change: Change, schema: pa.Schema) -> pa.RecordBatch:
    """Return a delete as a batch of one."""
    values = [*change.values, change.op, None]
    arrays = [pa.array([value], field.type) for value, field in zip(values, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _codec_of(change: Written) -> ChangeCodec | None:
    return change.codec if isinstance(change, Change) else None
