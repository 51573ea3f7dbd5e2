"""Partitioned topics: N topics with one definition, and the rule that chooses a record's part."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from frazil.engine.topic import TopicHandle
from frazil.errors import Conflict, FrazilError, InvalidRequest
from frazil.log import Pending
from frazil.model import OP_INSERT, OP_UPDATE, OP_UPSERT, Ack
from frazil.schema import (
    Message,
    key_names,
    part_of_row,
    part_of_text,
    part_of_values,
    parts_of_batch,
)
from frazil.topic import (
    PUBLISH_OPTIONS,
    STEPS_MAX,
    answer,
    batch_steps,
    change_batches,
    check_keys,
    check_refused,
    check_stays,
    check_there,
    debezium_changes,
    is_arrow,
    no_changes,
    part_acks,
    wait_admitted,
    wait_reached,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

    from frazil.engine.engine import Engine
    from frazil.engine.topic import Topic
    from frazil.log import Sender
    from frazil.log.codec import Entry
    from frazil.model import TopicSpec
    from frazil.schema import RawChange
    from frazil.topic import Answers, Prepared, Step, TopicChanges

    Piece = list[Step] | Prepared
    Pieces = dict[int, list[Piece]]


class PartitionedTopic(TopicHandle):
    """The handle of a partitioned topic.

    Records with the same key (the routing key of a message, the primary key of a row) always go to
    the same part; records without a key go to the parts by round robin. Offsets are per part; an
    ack has its `part`. `parts` are ordinary topics for reading.
    """

    def __init__(self, engine: Engine, spec: TopicSpec, parts: list[Topic]) -> None:
        self.engine = engine
        self._spec = spec
        self.name = spec.name
        self.parts = parts

    def __repr__(self) -> str:
        return f"PartitionedTopic({self.name!r}, partitions={len(self.parts)})"

    @property
    def schema(self) -> pa.Schema:
        """Return the current columns."""
        return self.parts[0].schema

    def part_of(self, record: object, fields: Mapping[str, Any]) -> int:
        """Return the number of the part that a record belongs to."""
        if self._spec.kind == "message":
            key = _message_key(record, fields)
            if key is None:
                return self._next()
            if not isinstance(key, str):
                raise InvalidRequest("key must be a text", got=type(key).__name__)
            try:
                return part_of_text(key, len(self.parts))
            except UnicodeEncodeError as error:
                raise InvalidRequest("key has a lone surrogate", key=ascii(key)[:80]) from error
        if not self._spec.primary_key:
            return self._next()
        row: Any = fields if record is None else record
        return part_of_row(row, self._key_names(), len(self.parts))

    def part_for(self, record: object, options: Mapping[str, Any]) -> int:
        """Return the part for the arguments of an `append`."""
        return self.part_of(record, _fields(options))

    def _key_names(self) -> list[str]:
        return key_names(self.schema, self._spec.primary_key)

    def _next(self) -> int:
        # The topic counts the turns, not this handle: every call by name makes a new handle.
        return next(self.parts[0].runtime.turns) % len(self.parts)

    # -- publish ---------------------------------------------------------------------------------

    def append(self, record: Any = None, /, **options: Any) -> Ack:
        """Publish one record to its part; see `Topic.append`."""
        part = self.part_for(record, options)
        return _of_part(self.parts[part].append(record, **options), part)

    def append_many(self, records: Iterable[Any], *, ack: str | None = None) -> list[Ack]:
        """Publish records to their parts; return one ack for each part that got any.

        All records are checked before any is written. Records of one part keep their order.

        Raises:
            InvalidRequest: with the number of the first bad record; no record is published then.
            Unavailable: storage failed, or only some parts were written; the details name them.
        """
        return self._publish(self._prepare(records), ack)

    def check_many(self, records: Iterable[Any]) -> None:
        """Check records, each on its own part, as `append_many` would, without publishing them."""
        self._prepare(records)

    def append_arrow(self, data: object, *, ack: str | None = None) -> list[Ack]:
        """Publish Arrow data, split by key over the parts; without a key, whole batches in turn."""
        sends = [
            (part, self.parts[part].runtime.prepare_arrow(rows))
            for batch in self.parts[0].to_batches(data)
            for part, rows in self._split(batch)
        ]
        return self._publish(sends, ack)

    def _prepare(self, records: Iterable[Any]) -> list[tuple[int, list[Prepared]]]:
        """Check all records and return the entries of each part."""
        self.parts[0].runtime.check_records(records)
        given = list(records)
        if not given:
            raise InvalidRequest("there are no records to publish", topic=self.name)
        parts: list[int] = []
        faults: list[tuple[int, InvalidRequest]] = []
        try:
            parts.extend(self.part_of(record, {}) for record in given)
        except InvalidRequest as error:
            faults.append((len(parts), error))
        sends: list[tuple[int, list[Prepared]]] = []
        for part, numbers in sorted(_by_part(parts).items()):
            some = [given[number] for number in numbers]
            try:
                sends.append((part, self.parts[part].runtime.prepare_many(some)))
            except InvalidRequest as error:
                within: Any = error.details["record"]
                faults.append((numbers[within], error))
        if faults:
            # A part numbers its own records; the error must have the number in the whole call.
            number, fault = min(faults, key=lambda each: each[0])
            raise InvalidRequest(fault.message, **{**fault.details, "record": number}) from fault
        return sends

    def _publish(self, sends: list[tuple[int, list[Prepared]]], ack: str | None) -> list[Ack]:
        """Submit all entries to the journal at once, then wait, so that parts share their syncs."""
        entries: dict[Any, list[Entry]] = {}
        waiting: list[list[Pending]] = []
        for part, prepared in sends:
            runtime = self.parts[part].runtime
            wait_admitted(runtime)
            pendings = [Pending() for _each in prepared]
            entries.setdefault(runtime.queue, []).extend(
                runtime.entries(prepared, pendings, runtime.sender(ack, None, None, 0))
            )
            waiting.append(pendings)
        for queue, some in entries.items():
            try:
                queue.submit_waiting(*some)
            except FrazilError as error:
                for entry in some:
                    entry[5].settle(error)
        answers = [[answer(each) for each in pendings] for pendings in waiting]
        by_part: dict[int, Answers] = {}
        for (part, _prepared), own in zip(sends, answers, strict=True):
            by_part.setdefault(part, []).extend(own)
        return self._acked(by_part, ack)

    def _split(self, batch: pa.RecordBatch) -> list[tuple[int, pa.RecordBatch]]:
        if self._spec.kind == "message":
            keys = batch.column("key").to_pylist()
            count = len(self.parts)
            parts = [self._next() if k is None else part_of_text(k, count) for k in keys]
        elif self._spec.primary_key:
            parts = parts_of_batch(batch, self._key_names(), len(self.parts))
        else:
            return [(self._next(), batch)]
        return [(part, batch.take(rows)) for part, rows in sorted(_by_part(parts).items())]

    # -- changes of keys --------------------------------------------------------------------------

    def insert(self, row: Mapping[str, Any] | None = None, /, **options: Any) -> Ack:
        """Publish a whole row to its part; see `Topic.insert`."""
        part = self._part_of_step(self._changes().whole(OP_INSERT, row, _fields(options)))
        return _of_part(self.parts[part].insert(row, **options), part)

    def upsert(self, row: Mapping[str, Any] | None = None, /, **options: Any) -> Ack:
        """Publish a whole row that replaces its key's row, if any; see `Topic.upsert`."""
        part = self._part_of_step(self._changes().whole(OP_UPSERT, row, _fields(options)))
        return _of_part(self.parts[part].upsert(row, **options), part)

    def update(self, /, *arguments: Any, **options: Any) -> Ack:
        """Change the named columns of one row; see `Topic.update`.

        Raises:
            InvalidRequest: also if it would move the row to a key of another part: delete the row
                and insert it under its new key.
        """
        part = self._part_of_step(self._changes().update(arguments, _fields(options)))
        return _of_part(self.parts[part].update(*arguments, **options), part)

    def delete(self, /, *arguments: Any, **options: Any) -> Ack:
        """Delete the row with a key; see `Topic.delete`."""
        part = self._part_of_step(self._changes().delete(arguments, _fields(options)))
        return _of_part(self.parts[part].delete(*arguments, **options), part)

    def _changes(self) -> TopicChanges:
        """Return the checker of changes; all parts have the same columns."""
        return self.parts[0].runtime.changes

    def _part_of_step(self, step: Step) -> int:
        return self._changes().part_of(step, len(self.parts))

    def part_of_key(self, key: object) -> int:
        """Return the part that a key belongs to; `key` is as for `Topic.get`.

        Raises:
            InvalidRequest: if the topic has no primary key, or the key does not fit it.
        """
        return part_of_values(self._changes().columns.changes.parse_key(key), len(self.parts))

    # -- changes in bulk -------------------------------------------------------------------------

    def append_changes(
        self, data: object, *, op_column: str = "_op", ack: str | None = None
    ) -> list[Ack]:
        """Publish changes in bulk to their parts; return one ack for each part that got any.

        All changes are checked before the first is written. Changes of one part keep their order.
        `data` is as for `Topic.append_changes`; for tombstones alone there is no ack.

        Raises:
            InvalidRequest: with the number of the first change that is wrong; also if a change
                moves a row to a key of another part.
            Conflict, NotFound: as for `Topic.append_changes`.
            Unavailable: storage failed, or only some parts were written; the details name them.
        """
        pieces = self._arrow_pieces(data, op_column) if is_arrow(data) else self._events(data)
        sender = self.parts[0].runtime.sender(ack, None, None, 0)
        if not pieces:
            check_there(self.parts[0].runtime)
            return []
        if sum(map(len, pieces.values())) > 1:
            for part, own in pieces.items():
                # A bulk of several writes is refused before the first one.
                check_keys(self.parts[part].runtime, [*own, []])
        answers: dict[int, Answers] = {}
        self._publish_pieces(dict(sorted(pieces.items())), sender, answers)
        check_refused([each for own in answers.values() for each in own])
        return self._acked(answers, ack)

    def _acked(self, answers: Mapping[int, Answers], ack: str | None) -> list[Ack]:
        """Return one ack for each part, when its level is reached."""
        parts = sorted(answers)
        acks = part_acks(parts, [answers[part] for part in parts])
        wait_reached(ack, [(self.parts[each.part].runtime, each) for each in acks])
        return acks

    def _arrow_pieces(self, data: object, op_column: str) -> Pieces:
        keyed = self._changes().columns
        names, count = keyed.changes.shape.names, len(self.parts)
        pieces: Pieces = {}
        for batch in change_batches(self.parts[0].runtime, keyed, data, op_column):
            for part, numbers in _by_part(parts_of_batch(batch, names, count)).items():
                found = self._part_steps(part, keyed.changes.version, batch.take(numbers))
                pieces.setdefault(part, []).extend(found)
        if not pieces:
            raise no_changes(self.name)
        return pieces

    def _part_steps(self, part: int, version: int, batch: pa.RecordBatch) -> Iterator[Piece]:
        runtime = self.parts[part].runtime
        keyed = runtime.changes.columns
        if keyed.changes.version != version:
            name = self.name
            raise Conflict("the topic's columns changed during the call, try again", topic=name)
        return batch_steps(runtime, keyed, batch)

    def _events(self, data: object) -> Pieces:
        pieces: Pieces = {}
        for number, raw in debezium_changes(self.name, self._changes().columns.changes, data):
            try:
                part = self._part_of_event(raw)
                own_codec = self.parts[part].runtime.changes.columns.changes
                step = own_codec.prepare(raw.op, raw.key, raw.row)
            except InvalidRequest as error:
                raise InvalidRequest(
                    error.message, **{"change": number, **error.details}
                ) from error
            own = pieces.setdefault(part, [])
            last = own[-1] if own else ()
            if isinstance(last, list) and len(last) < STEPS_MAX:
                last.append(step)
            else:
                own.append([step])
        return pieces

    def _part_of_event(self, raw: RawChange) -> int:
        names = self._changes().columns.changes.shape.names
        after = {name: raw.row[name] for name in names if name in raw.row}
        if raw.op in {OP_INSERT, OP_UPSERT}:
            missing = [name for name in names if name not in after]
            if missing:
                raise InvalidRequest("row lacks its primary key", columns=", ".join(missing))
            return self.part_of_key(after)
        part = self.part_of_key(raw.key)
        if raw.op == OP_UPDATE:
            check_stays(part, self.part_of_key({**raw.key, **after}))
        return part

    def _publish_pieces(
        self, pieces: Mapping[int, list[Piece]], sender: Sender | None, answers: dict[int, Answers]
    ) -> None:
        """Publish piece by piece, all parts together, so that they share their syncs.

        A part whose piece failed gets no more pieces, so that no change is missing in its order.
        """
        for turn in range(max(map(len, pieces.values()))):
            waiting: list[tuple[int, Pending]] = []
            for part, own in pieces.items():
                found = answers.setdefault(part, [])
                if any(isinstance(each, FrazilError) for each in found) or turn >= len(own):
                    continue
                try:
                    waiting.append((part, self.parts[part].begin(own[turn], sender)))
                except FrazilError as error:
                    found.append(error)
            for part, pending in waiting:
                answers[part].append(answer(pending))

    # -- look-ups --------------------------------------------------------------------------------

    def get(self, key: Any) -> dict[str, Any] | None:
        """Return the row with a key, None if there is none; see `Topic.get`."""
        return self.parts[self.part_of_key(key)].get(key)

    def get_many(self, keys: Iterable[Any]) -> list[dict[str, Any] | None]:
        """Return the rows with these keys, in their order; rows of one part are of one moment."""
        given = list(keys)
        found: list[dict[str, Any] | None] = [None] * len(given)
        for part, numbers in _by_part(map(self.part_of_key, given)).items():
            rows = self.parts[part].get_many([given[number] for number in numbers])
            for number, row in zip(numbers, rows, strict=True):
                found[number] = row
        return found

    def changes(
        self, from_offset: int = 0, *, limit: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """Return the change feeds of the parts, one after the other; see `Topic.changes`.

        Each change has its `part`. `from_offset` applies to every part, `limit` to the whole call.
        """
        for number, part in enumerate(self.parts):
            if limit is not None and limit <= 0:
                return
            for change in part.changes(from_offset, limit=limit):
                yield {"part": number, **change}
                limit = None if limit is None else limit - 1

    # -- facts -----------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """Return counts over all parts."""
        parts = [part.stats() for part in self.parts]
        return {
            "message_count": sum(part["message_count"] for part in parts),
            "bytes_stored": sum(part["bytes_stored"] for part in parts),
            "parts": parts,
        }


def _by_part(parts: Iterable[int]) -> dict[int, list[int]]:
    """Return the numbers of the records of each part."""
    numbers: dict[int, list[int]] = {}
    for number, part in enumerate(parts):
        numbers.setdefault(part, []).append(number)
    return numbers


def _message_key(record: object, fields: Mapping[str, Any]) -> object:
    """Return the routing key of the message that these arguments make."""
    if isinstance(record, Message):
        return record.key
    if isinstance(record, dict):
        return record.get("key")
    return fields.get("key")


def _fields(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key not in PUBLISH_OPTIONS}


def _of_part(ack: Ack, part: int) -> Ack:
    return Ack(ack.offset, ack.offset_last, ack.lsn, part)
