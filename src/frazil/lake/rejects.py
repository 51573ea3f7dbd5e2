"""`db.lake.rejects(topic)`: the records that a topic's table rejected.

They are rows of the side table, read by PyIceberg without Spark. Rows at or above the main table's
watermark do not count yet: a commit that is running may have written them. Rows are never removed;
two properties of the side table say which rejects were replayed and which dropped, as ranges of
offsets (`frazil.lake.iceberg`). A range covers the accepted records between two rejects, so that
settling all of them is one range.

`replay` publishes a record under an idempotent producer named after the reject and marks it after
the ack. A crash in between leaves the reject open; after another replay the topic drops the
duplicate, as long as it remembers the producer (`topics.producers`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa

from frazil.errors import Conflict, CorruptionError, InvalidRequest, NotFound
from frazil.lake.connection import calls
from frazil.lake.iceberg import decode_ranges, encode_ranges
from frazil.lake.originals import ENCODING, decode_original
from frazil.lake.table import TOPIC_ID
from frazil.lake.types import OFFSET, PART, TIME, topic_column_id
from frazil.lake.watermark import watermarks
from frazil.log import Pending, Sender
from frazil.model import WHOLE
from frazil.offsets import RangeSet
from frazil.telemetry import event
from frazil.topic import wait_admitted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from pyiceberg.table import Table

    from frazil.lake.iceberg import Ranges
    from frazil.lake.runtime import Lake
    from frazil.lake.table import Ends
    from frazil.lake.topics import LakeTopic
    from frazil.model import Ack
    from frazil.topic import TopicRuntime

__all__ = ["Reject", "RejectKey", "Settled", "TopicRejects", "settled_ranges"]

CHUNK_RECORDS: Final = 256
"""The number of records published before they are marked."""
MARKS_BYTES_MAX: Final = 64 << 10
"""The limit is small because each version of a table's metadata has the marks."""
MARKS: Final = {"replayed": "frazil.rejects-replayed", "dropped": "frazil.rejects-dropped"}
FACTS: Final = ("stage", "reason", "field", "schema_version")
ORIGINAL: Final = ("schema_version", "encoding", "original")

Offsets: TypeAlias = int | Iterable[int] | Literal["all"]
State: TypeAlias = Literal["replayed", "dropped"]


class RejectKey(NamedTuple):
    """The part and offset of a rejected record; the part of a topic without parts is -1."""

    part: int
    offset: int


class Reject(msgspec.Struct, frozen=True, kw_only=True):
    """One record that the table rejected, without its content."""

    key: RejectKey
    time_us: int
    stage: str
    reason: str
    field: str | None
    schema_version: int
    state: Literal["open", "replayed", "dropped"]


class Settled(NamedTuple):
    """The result of a replay or a drop: `done` were open and are settled now.

    `acks` has the acks of the replayed records, in the order of `done`.
    """

    done: list[RejectKey]
    settled_before: list[RejectKey]
    acks: list[Ack]


class _Side(NamedTuple):
    """The side table at one moment, as far as the main table's watermark."""

    table: Table
    ends: Ends
    marks: dict[str, Ranges]

    def state(self, key: RejectKey) -> Any:
        for state, ranges in self.marks.items():
            if key.part in ranges and ranges[key.part].has(key.offset):
                return state
        return "open"

    def read(self, conditions: Sequence[str], names: Sequence[str]) -> list[dict[str, Any]]:
        """Return the rows below the watermark to which one of some conditions applies."""
        if not conditions:
            return []
        fields = (OFFSET, *names) if WHOLE in self.ends else (OFFSET, PART, *names)
        condition = " or ".join(f"({each})" for each in conditions)
        with calls("read rejects", table=self.table.name()):
            found: pa.Table = self.table.scan(condition, selected_fields=fields).to_arrow()
        if TIME in names:
            index = found.schema.get_field_index(TIME)
            found = found.set_column(index, TIME, found.column(TIME).cast(pa.int64()))
        return [row for row in found.to_pylist() if _key(row).offset < self._end(row)]

    def _end(self, row: dict[str, Any]) -> int:
        return self.ends.get(_key(row).part, 0)


class TopicRejects:
    """The rejects of one topic. Iterating yields those that are not settled."""

    def __init__(self, lake: Lake, topic: LakeTopic) -> None:
        self._lake = lake
        self._topic = topic

    def __iter__(self) -> Iterator[Reject]:
        return iter(self.rows())

    def rows(self, *, settled: bool = False) -> list[Reject]:
        """Return the rejects in order; with `settled` those that are settled as well."""
        return [each for each in self._rejects(self._side()) if settled or each.state == "open"]

    def show(self, offset: int, *, part: int | None = None) -> dict[str, Any]:
        """Return all facts of a reject, with its values by column as `record`.

        Timestamps are the published numbers, as they may be out of the range of dates.

        Raises:
            NotFound: there is no such reject.
            InvalidRequest: several parts have one at this offset, and `part` is missing.
        """
        side = self._side()
        [found] = self._chosen(self._rejects(side), [offset], part)
        facts: dict[str, Any] = msgspec.structs.asdict(found)
        del facts["key"]
        [(key, record, _schema)] = self._records(side, [found.key])
        return {"offset": key.offset, "part": key.part, **facts, "record": record}

    def replay(self, offsets: Offsets, *, part: int | None = None) -> Settled:
        """Publish rejected records again as new ones; skip those that are settled.

        All of them are checked before the first is published. Columns that were renamed since then
        have their new names; the values of dropped ones go with their columns.

        Raises:
            NotFound: there is no such reject.
            InvalidRequest: a record does not fit the topic, with its offset, or the marks would
                become too large; nothing was published.
        """
        return self._settle(offsets, part, "replayed")

    def drop(self, offsets: Offsets, *, part: int | None = None) -> Settled:
        """Mark rejects as settled without publishing them; their rows stay in the side table.

        Raises:
            NotFound: there is no such reject; nothing was marked.
        """
        return self._settle(offsets, part, "dropped")

    def _settle(self, offsets: Offsets, part: int | None, state: State) -> Settled:
        acks: list[Ack] = []
        with self._lake.settling:
            side = self._side()
            known = self._rejects(side)
            chosen = self._chosen(known, offsets, part)
            todo = [each.key for each in chosen if each.state == "open"]
            before = [each.key for each in chosen if each.state != "open"]
            every = [each.key for each in known]
            self._check_marks(side, state, settled_ranges(todo, every))
            if state == "replayed":
                for keys in _chunks(todo):
                    self._prepared(side, keys)
                for number, keys in enumerate(_chunks(todo), start=1):
                    acks += self._published(self._prepared(side, keys))
                    self._mark(state, todo[: number * CHUNK_RECORDS], every)
            elif todo:
                self._mark(state, todo, every)
        event(f"rejects_{state}", topic=self._topic.name, records=len(todo))
        return Settled(todo, before, acks)

    def _check_marks(self, side: _Side | None, state: State, new: Ranges) -> None:
        size = len(encode_ranges({} if side is None else side.marks[state], new))
        if size > MARKS_BYTES_MAX:
            raise InvalidRequest(
                "too many rejects would be settled one by one, settle those between them too",
                topic=self._topic.name,
                bytes=size,
                bytes_max=MARKS_BYTES_MAX,
            )

    def _mark(self, state: State, keys: Sequence[RejectKey], every: Sequence[RejectKey]) -> None:
        """Add to the marks of the side table; durable on return."""
        table = self._topic.table.rejects
        self._lake.tables().declare(table, MARKS[state], settled_ranges(keys, every))

    # -- reading -----------------------------------------------------------------------------------

    def _side(self) -> _Side | None:
        """Load the side table and the main table's watermark; None without a side table.

        Raises:
            Conflict: the side table is another topic's.
        """
        topic, tables = self._topic, self._lake.tables()
        try:
            ends, _certain = watermarks(tables.look(topic.table), topic.remembered())
            table = tables.load(topic.table.rejects)
        except NotFound:
            return None
        found = table.properties.get(TOPIC_ID)
        if found != topic.uid:
            raise Conflict(
                "side table is another topic's: rename or drop it, or take it over with "
                "frazil lake adopt",
                table=topic.table.rejects,
                topic_id=topic.uid,
                found=found,
            )
        marks = {state: decode_ranges(table.properties, key) for state, key in MARKS.items()}
        return _Side(table, ends, marks)

    def _rejects(self, side: _Side | None) -> list[Reject]:
        """Return all rejects in order, settled ones included."""
        if side is None:
            return []
        below = [_of(part, f"{OFFSET} < {end}") for part, end in side.ends.items()]
        found = [
            Reject(
                key=_key(row),
                time_us=row[TIME],
                state=side.state(_key(row)),
                **{name: row[name] for name in FACTS},
            )
            for row in side.read(below, (TIME, *FACTS))
        ]
        return sorted(found, key=lambda each: each.key)

    def _chosen(self, known: list[Reject], offsets: Offsets, part: int | None) -> list[Reject]:
        """Return the rejects that a call names, each once and in order."""
        if part is not None and part not in {each.part for each in self._topic.runtimes}:
            raise NotFound("topic has no such part", topic=self._topic.name, part=part)
        own = [each for each in known if part is None or each.key.part == part]
        if offsets == "all":
            return own
        wanted = {offsets} if isinstance(offsets, int) else set(offsets)
        counts = Counter(each.key.offset for each in own)
        for offset in wanted:
            self._check_named(offset, counts[offset])
        return [each for each in own if each.key.offset in wanted]

    def _check_named(self, offset: int, count: int) -> None:
        if not count:
            raise NotFound("no such reject", topic=self._topic.name, offset=offset)
        if count > 1:
            raise InvalidRequest(
                "several parts have a reject at this offset, name the part",
                topic=self._topic.name,
                offset=offset,
            )

    def _records(
        self, side: _Side | None, keys: Collection[RejectKey]
    ) -> list[tuple[RejectKey, dict[str, Any], pa.Schema]]:
        """Return rejected records with the columns under which they were published.

        Raises:
            NotFound: a row is not there any more.
            CorruptionError: a record cannot be read.
        """
        assert side is not None
        offsets: dict[int, list[int]] = {}
        for key in keys:
            offsets.setdefault(key.part, []).append(key.offset)
        conditions = [
            _of(part, f"{OFFSET} in ({', '.join(map(str, own))})") for part, own in offsets.items()
        ]
        rows = {_key(row): row for row in side.read(conditions, ORIGINAL)}
        found: list[tuple[RejectKey, dict[str, Any], pa.Schema]] = []
        for key in keys:
            row = rows.get(key)
            if row is None:
                raise NotFound("reject is no longer in its table", offset=key.offset)
            if row["encoding"] != ENCODING:
                raise CorruptionError(
                    "original of a reject has an unknown encoding, of a newer version perhaps",
                    topic=self._topic.name,
                    offset=key.offset,
                    encoding=row["encoding"],
                )
            schema = self._topic.columns(row["schema_version"])
            found.append((key, decode_original(row["original"], schema), schema))
        return found

    # -- publishing --------------------------------------------------------------------------------

    def _prepared(
        self, side: _Side | None, keys: Sequence[RejectKey]
    ) -> list[tuple[RejectKey, TopicRuntime, list[Any]]]:
        """Read records and make them ready for publishing.

        Raises:
            InvalidRequest: one does not fit the topic.
        """
        runtimes = {each.part: each for each in self._topic.runtimes}
        found: list[tuple[RejectKey, TopicRuntime, list[Any]]] = []
        for key, record, schema in self._records(side, keys):
            runtime = runtimes[key.part]
            try:
                found.append((key, runtime, _frames(runtime, record, schema)))
            except InvalidRequest as error:
                raise InvalidRequest(
                    "rejected record does not fit the topic, drop it and publish a corrected one",
                    topic=self._topic.name,
                    offset=key.offset,
                    part=key.part,
                    reason=error,
                ) from error
        return found

    def _published(
        self, prepared: Sequence[tuple[RejectKey, TopicRuntime, list[Any]]]
    ) -> list[Ack]:
        """Publish records, each by a separate producer; durable on return."""
        waiting: list[Pending] = []
        for key, runtime, frames in prepared:
            wait_admitted(runtime)
            own = [Pending() for _frame in frames]
            producer = f"frazil-replay-{self._topic.uid}-{key.part}-{key.offset}"
            sender = Sender(producer, 0, 0, sync=True)
            runtime.queue.submit_waiting(*runtime.entries(frames, own, sender))
            waiting += own
        return [each.result() for each in waiting]


def settled_ranges(chosen: Iterable[RejectKey], known: Iterable[RejectKey]) -> Ranges:
    """Return ranges, by part, that cover the chosen rejects and no other known one."""
    wanted = set(chosen)
    found: dict[int, list[tuple[int, int]]] = {}
    part_before: int | None = None
    for key in sorted(known):
        if key not in wanted:
            part_before = None
            continue
        ranges = found.setdefault(key.part, [])
        first = ranges.pop()[0] if part_before == key.part else key.offset
        ranges.append((first, key.offset + 1))
        part_before = key.part
    return {part: RangeSet(ranges) for part, ranges in found.items()}


def _key(row: dict[str, Any]) -> RejectKey:
    return RejectKey(row.get(PART, WHOLE), row[OFFSET])


def _of(part: int, condition: str) -> str:
    return condition if part == WHOLE else f"{PART} = {part} and {condition}"


def _chunks(keys: Sequence[RejectKey]) -> Iterator[Sequence[RejectKey]]:
    for first in range(0, len(keys), CHUNK_RECORDS):
        yield keys[first : first + CHUNK_RECORDS]


def _frames(runtime: TopicRuntime, record: dict[str, Any], schema: pa.Schema) -> list[Any]:
    """Return a record ready for publishing.

    Raises:
        InvalidRequest: it does not fit the topic.
    """
    if not runtime.is_message:
        return runtime.prepare_arrow(_renamed(runtime.codec.schema, record, schema))
    envelope = {name: value for name, value in record.items() if value is not None}
    if "attributes" in envelope:
        envelope["attributes"] = dict(envelope["attributes"])
    return [runtime.prepare(envelope, {})]


def _renamed(wanted: pa.Schema, record: dict[str, Any], schema: pa.Schema) -> pa.Table:
    """Return a record under the topic's present column names; columns are matched by id.

    Raises:
        InvalidRequest: a value does not fit its column's type.
    """
    names = {topic_column_id(field): field.name for field in wanted}
    values: dict[str, pa.Array] = {}
    for field in schema:
        column_id = topic_column_id(field)
        name = field.name if column_id < 0 else names.get(column_id)
        if name is None:
            continue
        try:
            values[name] = pa.array([record[field.name]], field.type)
        except (pa.ArrowException, OverflowError) as error:
            raise InvalidRequest(
                "value does not fit its column", column=field.name, type=field.type, error=error
            ) from error
    return pa.table(values)
