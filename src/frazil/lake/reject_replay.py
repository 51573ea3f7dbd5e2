"""`db.lake.rejects(topic)`: the records that a topic's table could not take.

Replaying publishes a record anew under an idempotent producer of its own, named by the topic and
the place of the reject, and marks the reject as settled behind the ack. A crash in between leaves
it open; replayed again, the topic recognises the producer and writes nothing. A topic forgets
producers after a time: before a record is published, the metadata takes note of it and of the
topic's head, and where the producer may have been forgotten the record is looked for from there on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa

from frazil.errors import CorruptionError, InvalidRequest, NotFound
from frazil.lake.connection import connect
from frazil.lake.look import look
from frazil.lake.originals import ENCODING, decode_original
from frazil.lake.plans import Replay
from frazil.lake.rejects import Place, RejectsTable
from frazil.lake.types import topic_column_id
from frazil.lake.watermark import watermarks
from frazil.log import Pending, Sender
from frazil.model import Ack
from frazil.telemetry import event
from frazil.topic import Reader, first_held, wait_admitted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from frazil.lake.rejects import Original, Reject
    from frazil.lake.runtime import Lake
    from frazil.lake.topics import LakeTopic
    from frazil.topic import TopicRuntime

__all__ = ["Replayed", "TopicRejects"]

CHUNK_RECORDS: Final = 256
"""So many records are published before they are marked."""

Offsets: TypeAlias = int | Iterable[int] | Literal["all"]


class Replayed(NamedTuple):
    """What a replay or a drop did: `done` were open and are settled now, the others were before.

    `acks` says where the replayed records are now, in the order of `done`.
    """

    done: list[Place]
    settled_before: list[Place]
    acks: list[Ack]


class _Ready(NamedTuple):
    """A rejected record that can be published: in frames, and as it was with its columns."""

    place: Place
    runtime: TopicRuntime
    frames: list[Any]
    record: dict[str, Any]
    schema: pa.Schema


class TopicRejects:
    """The rejects of one topic. Iterating gives those that are not settled."""

    def __init__(self, lake: Lake, topic: LakeTopic) -> None:
        self._lake = lake
        self._topic = topic

    def __iter__(self) -> Iterator[Reject]:
        return iter(self.rows())

    def rows(self, *, settled: bool = False) -> list[Reject]:
        """Return the rejects in order; with `settled` those that are settled as well."""
        found = self._table().rejects()
        return [each for each in found if settled or each.state == "open"]

    def show(self, offset: int, *, part: int | None = None) -> dict[str, Any]:
        """Return all that is known of a reject, with its values by column as `record`.

        Timestamps are the numbers that were published, as they may be beyond what a date can be.

        Raises:
            NotFound: there is no such reject.
            InvalidRequest: several parts have one at this offset, and `part` is missing.
        """
        table = self._table()
        [found] = self._chosen(table.rejects(), [offset], part)
        facts: dict[str, Any] = msgspec.structs.asdict(found)
        place = facts.pop("place")
        original = _one(table.originals([place]), place)
        record, _schema = self._decoded(place, original)
        return {"offset": place.offset, "part": place.part, **facts, "record": record}

    def replay(self, offsets: Offsets, *, part: int | None = None) -> Replayed:
        """Publish rejected records again as new ones; what is settled is passed over.

        All of them are checked before the first is published. Columns that were renamed since then
        have their new names; the values of dropped ones go with their columns.

        Raises:
            NotFound: there is no such reject.
            InvalidRequest: a record does not fit the topic, with its offset, or the marks would
                become too large; nothing was published.
        """
        with self._lake.settling:
            table = self._table()
            known = table.rejects()
            everywhere = [each.place for each in known]
            todo, before = _open(self._chosen(known, offsets, part))
            if todo:
                table.check_room(todo, "replayed", everywhere)
            for places in _chunks(todo):
                self._prepared(table, places)
            acks: list[Ack] = []
            for places in _chunks(todo):
                acks += self._replayed(self._prepared(table, places))
                table.settle(places, "replayed", everywhere)
                self._note(without=places)
        event("rejects_replayed", topic=self._topic.name, records=len(todo))
        return Replayed(todo, before, acks)

    def drop(self, offsets: Offsets, *, part: int | None = None) -> Replayed:
        """Mark rejects as settled without publishing them; their rows stay in the side table.

        Raises:
            NotFound: there is no such reject; nothing was marked.
        """
        with self._lake.settling:
            table = self._table()
            known = table.rejects()
            everywhere = [each.place for each in known]
            todo, before = _open(self._chosen(known, offsets, part))
            if todo:
                table.check_room(todo, "dropped", everywhere)
                table.settle(todo, "dropped", everywhere)
                self._note(without=todo)
        event("rejects_dropped", topic=self._topic.name, records=len(todo))
        return Replayed(todo, before, [])

    def _table(self) -> RejectsTable:
        """Return the side table below the main table's watermark, as both are now."""
        topic = self._topic
        catalog = connect(self._lake.catalog.address())
        try:
            ends, _certain = watermarks(look(catalog, topic.table), topic.remembered())
        except NotFound:
            ends = {}
        return RejectsTable(catalog, topic.table, topic_id=topic.uid, ends=ends)

    def _chosen(self, known: list[Reject], offsets: Offsets, part: int | None) -> list[Reject]:
        """Return the rejects that a call names, each once and in order."""
        parts = {each.part for each in self._topic.runtimes}
        if part is not None and part not in parts:
            raise NotFound("topic has no such part", topic=self._topic.name, part=part)
        own = [each for each in known if part is None or each.place.part == part]
        if offsets == "all":
            return own
        wanted = {offsets} if isinstance(offsets, int) else set(offsets)
        if not all(isinstance(each, int) for each in wanted):
            raise InvalidRequest('offsets must be numbers or "all"', offsets=offsets)
        found = [each for each in own if each.place.offset in wanted]
        by_offset: dict[Any, Reject] = {}
        for each in found:
            if by_offset.setdefault(each.place.offset, each) is not each:
                raise InvalidRequest(
                    "several parts have a reject at this offset, name the part",
                    topic=self._topic.name,
                    offset=each.place.offset,
                )
        missing = sorted(wanted - set(by_offset))
        if missing:
            raise NotFound("no such reject", topic=self._topic.name, offset=missing[0])
        return found

    def _prepared(self, table: RejectsTable, places: Sequence[Place]) -> list[_Ready]:
        """Read records and make them ready for publishing.

        Raises:
            InvalidRequest: one does not fit the topic.
        """
        originals = table.originals(places)
        runtimes = {each.part: each for each in self._topic.runtimes}
        found: list[_Ready] = []
        for place in places:
            runtime = runtimes[place.part]
            record, schema = self._decoded(place, _one(originals, place))
            try:
                frames = _frames(runtime, record, schema)
                found.append(_Ready(place, runtime, frames, record, schema))
            except InvalidRequest as error:
                raise InvalidRequest(
                    "rejected record does not fit the topic, drop it and publish a corrected one",
                    topic=self._topic.name,
                    offset=place.offset,
                    part=place.part,
                    reason=error,
                ) from error
        return found

    def _replayed(self, prepared: Sequence[_Ready]) -> list[Ack]:
        """Publish records, each by a producer of its own; durable on return."""
        before = self._lake.plans.replay(self._topic.uid).begun
        known: list[Ack | None] = []
        for each in prepared:
            # Of rejects that are alike, each has a record of its own.
            taken = {ack.offset for ack in known if ack is not None and ack.part == each.place.part}
            known.append(self._published_before(each, before.get(_key(each.place)), taken))
        self._note(also=prepared)
        waiting: list[Pending | Ack] = []
        for each, ack in zip(prepared, known, strict=True):
            runtime = each.runtime
            if ack is not None:
                waiting.append(ack)
                continue
            wait_admitted(runtime)
            own = [Pending() for _frame in each.frames]
            sender = Sender(self._producer(each.place), 0, 0, sync=True)
            runtime.queue.submit_waiting(*runtime.entries(each.frames, own, sender))
            waiting += own
        return [each if isinstance(each, Ack) else each.result() for each in waiting]

    def _producer(self, place: Place) -> str:
        return f"frazil-replay-{self._topic.uid}-{place.part}-{place.offset}"

    def _note(self, *, also: Sequence[_Ready] = (), without: Sequence[Place] = ()) -> None:
        """Take note of records before they are published, and forget those that are settled."""
        plans, uid = self._lake.plans, self._topic.uid
        now_us = self._lake.clock.now_us()
        gone = {_key(place) for place in without}
        begun = {key: each for key, each in plans.replay(uid).begun.items() if key not in gone}
        for each in also:
            begun.setdefault(_key(each.place), (now_us, each.runtime.state.next))
        plans.set_replay(uid, Replay(begun))

    def _published_before(
        self, each: _Ready, begun: tuple[int, int] | None, taken: Collection[int]
    ) -> Ack | None:
        """Return where a record is that an earlier life published and its topic may not know."""
        if begun is None or self._producer(each.place) in each.runtime.state.producers:
            return None
        time_us, head = begun
        limits = each.runtime.settings.producers
        age_s = (self._lake.clock.now_us() - time_us) / 1e6
        crowd = len(each.runtime.lane.journal.state.producers)
        if 0 <= age_s < limits.window_age_s and crowd < limits.producers_max:
            # It would be remembered: it was never published.
            return None
        offset = find_record(each.runtime, head, _columns(each), taken)
        return None if offset is None else Ack(offset, offset, 0, each.place.part)

    def _decoded(self, place: Place, original: Original) -> tuple[dict[str, Any], pa.Schema]:
        """Return a record's values with the columns that it was published under."""
        if original.encoding != ENCODING:
            raise CorruptionError(
                "original of a reject has a form that is not known, a newer version's perhaps",
                topic=self._topic.name,
                offset=place.offset,
                encoding=original.encoding,
            )
        schema = self._topic.columns(original.schema_version)
        return decode_original(original.data, schema), schema


def _one(originals: dict[Place, Original], place: Place) -> Original:
    try:
        return originals[place]
    except KeyError:
        raise NotFound("reject is gone from its table", offset=place.offset) from None


def _open(rejects: Sequence[Reject]) -> tuple[list[Place], list[Place]]:
    """Return the places of those that are open, and of those that are settled."""
    todo = [each.place for each in rejects if each.state == "open"]
    return todo, [each.place for each in rejects if each.state != "open"]


def _key(place: Place) -> str:
    return f"{place.part}:{place.offset}"


def _columns(ready: _Ready) -> dict[str, pa.Array]:
    """Return a record's values as the topic would have them, by column; nulls are left out."""
    wanted = ready.runtime.codec.schema
    if ready.runtime.is_message:
        found = pa.table(
            {field.name: _array(ready.record.get(field.name), field) for field in ready.schema}
        )
    else:
        found = _under(wanted, ready.record, ready.schema)
    return {
        name: found.column(name).combine_chunks().cast(wanted.field(name).type)
        for name in found.column_names
        if found.column(name).null_count == 0
    }


def find_record(
    runtime: TopicRuntime, start: int, wanted: Mapping[str, pa.Array], taken: Collection[int]
) -> int | None:
    """Return the offset of the first record from `start` on, not `taken`, with just these values."""
    begin = max(start, first_held(runtime))
    reader = Reader(runtime, start=begin, follow=False, limit=None, bytes_max=None, timeout_s=None)
    with reader:
        for batch in reader:
            for index in range(batch.count):
                row = batch.data.slice(index, 1)
                if batch.offset + index not in taken and all(
                    _same(row, name, wanted.get(name)) for name in row.schema.names
                ):
                    return batch.offset + index
    return None


def _same(row: pa.RecordBatch, name: str, wanted: pa.Array | None) -> bool:
    column = row.column(name)
    if wanted is None:
        return bool(column.null_count)
    return bool(column.cast(wanted.type).equals(wanted))


def _chunks(places: Sequence[Place]) -> Iterator[Sequence[Place]]:
    for first in range(0, len(places), CHUNK_RECORDS):
        yield places[first : first + CHUNK_RECORDS]


def _frames(runtime: TopicRuntime, record: dict[str, Any], schema: pa.Schema) -> list[Any]:
    """Return a record ready for publishing.

    Raises:
        InvalidRequest: it does not fit the topic.
    """
    if not runtime.is_message:
        return runtime.prepare_arrow(_under(runtime.codec.schema, record, schema))
    envelope = {name: value for name, value in record.items() if value is not None}
    if "attributes" in envelope:
        envelope["attributes"] = dict(envelope["attributes"])
    return [runtime.prepare(envelope, {})]


def _under(wanted: pa.Schema, record: dict[str, Any], schema: pa.Schema) -> pa.Table:
    """Return a record under the topic's names of today; a column is known by its id.

    Raises:
        InvalidRequest: a value is not one of its column's type.
    """
    names = {topic_column_id(field): field.name for field in wanted}
    fields: list[pa.Field] = []
    arrays: list[pa.Array] = []
    for field in schema:
        column_id = topic_column_id(field)
        name = field.name if column_id < 0 else names.get(column_id)
        if name is not None:
            fields.append(pa.field(name, field.type))
            arrays.append(_array(record[field.name], field))
    return pa.table(arrays, schema=pa.schema(fields))


def _array(value: object, field: pa.Field) -> pa.Array:
    try:
        return pa.array([value], field.type)
    except (pa.ArrowException, OverflowError) as error:
        raise InvalidRequest(
            "value does not fit its column", column=field.name, type=field.type, error=error
        ) from error
