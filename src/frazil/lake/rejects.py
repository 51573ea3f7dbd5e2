"""The side table of records that a table could not take: what it holds, and what is settled.

Read and marked by PyIceberg, without Spark. Rows at or above the main table's watermark do not
count yet: a commit under way may have written them. Rows are never removed; which of them are
settled is a property of the side table, as ranges of offsets. A range goes from one reject to
another and covers the accepted records in between, so that settling everything is one range.

Iceberg has no compare for a property, but it has one for the current snapshot: marks are set in one
commit with an empty snapshot, which must follow the one that was read. Of two who settle at once
the second reads again what the first marked.
"""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias

import msgspec
import pyarrow as pa

from frazil.errors import (
    CommitUnknown,
    Conflict,
    CorruptionError,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from frazil.lake.connection import calls
from frazil.lake.table import TOPIC_ID, Ends
from frazil.lake.types import OFFSET, PART, TIME
from frazil.model import WHOLE
from frazil.struct_types import learnt

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table

    from frazil.lake.plan import TableName

__all__ = [
    "SETTLED",
    "SETTLED_BYTES_MAX",
    "Original",
    "Place",
    "Reject",
    "RejectsTable",
    "Settled",
    "State",
]

SETTLED: Final = "frazil.settled"
SETTLED_BYTES_MAX: Final = 64 << 10
"""Each version of a table's metadata carries the marks: they have to stay small."""
SETTLE_TRIES: Final = 5
FACTS: Final = ("stage", "reason", "field", "schema_version")

State: TypeAlias = Literal["open", "replayed", "dropped"]
Range: TypeAlias = tuple[int, int]


class Place(NamedTuple):
    """Where a record is in its topic; the part of a topic without parts is -1."""

    part: int
    offset: int


class Reject(msgspec.Struct, frozen=True, kw_only=True):
    """One record that the table could not take, without the record itself."""

    place: Place
    time_us: int
    stage: str
    reason: str
    field: str | None
    schema_version: int
    state: State


class Original(NamedTuple):
    """A rejected record as it was stored: `data` in the form that `encoding` names."""

    schema_version: int
    encoding: str
    data: bytes


class Settled(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which rejects are settled, and how: ranges `[first, end)` by part, in order and apart."""

    replayed: dict[int, list[Range]] = {}
    dropped: dict[int, list[Range]] = {}

    def state(self, place: Place) -> State:
        """Return what became of a reject."""
        if _covers(self.replayed.get(place.part, ()), place.offset):
            return "replayed"
        return "dropped" if _covers(self.dropped.get(place.part, ()), place.offset) else "open"

    def settle(
        self,
        chosen: Collection[Place],
        state: Literal["replayed", "dropped"],
        known: Iterable[Place],
    ) -> Settled:
        """Return the marks with those `chosen` that are open settled; `known` are all rejects.

        Rejects in a row that are settled alike become one range.
        """
        wanted = set(chosen)
        runs: dict[State, dict[int, list[Range]]] = {"open": {}, "replayed": {}, "dropped": {}}
        before: tuple[int, State] | None = None
        for place in sorted({*known, *wanted}):
            own = self.state(place)
            if own == "open" and place in wanted:
                own = state
            ranges = runs[own].setdefault(place.part, [])
            first = ranges.pop()[0] if before == (place.part, own) else place.offset
            ranges.append((first, place.offset + 1))
            before = (place.part, own)
        return Settled(
            replayed=_joined(self.replayed, runs["replayed"]),
            dropped=_joined(self.dropped, runs["dropped"]),
        )


def _covers(ranges: Sequence[Range], offset: int) -> bool:
    index = bisect.bisect_right(ranges, (offset, 1 << 63)) - 1
    return index >= 0 and ranges[index][1] > offset


def _joined(
    marks: Mapping[int, Sequence[Range]], runs: Mapping[int, Sequence[Range]]
) -> dict[int, list[Range]]:
    """Return the ranges of both, by part, with those that touch made one."""
    joined: dict[int, list[Range]] = {}
    for part in sorted({*marks, *runs}):
        merged: list[Range] = []
        for first, end in sorted([*marks.get(part, ()), *runs.get(part, ())]):
            if merged and first <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((first, end))
        joined[part] = merged
    return joined


class RejectsTable:
    """The side table of one topic's table, as far as `ends`, the main table's watermark, go."""

    def __init__(self, catalog: Catalog, table: TableName, *, topic_id: str, ends: Ends) -> None:
        self._catalog = catalog
        self.table = table.rejects
        self._topic_id = topic_id
        self._ends = ends

    def rejects(self) -> list[Reject]:
        """Return all rejects in order, settled ones included.

        Raises:
            Conflict: the side table is another topic's.
            Unavailable: catalog or storage cannot be reached.
        """
        try:
            loaded = self._load()
        except NotFound:
            return []
        settled = self._settled(loaded.properties)
        below = [_of(part, f"{OFFSET} < {end}") for part, end in self._ends.items()]
        rows = self._read(loaded, below, (TIME, *FACTS))
        found = [_reject(row, settled) for row in rows]
        return sorted(found, key=lambda each: each.place)

    def originals(self, places: Collection[Place]) -> dict[Place, Original]:
        """Return rejected records as they were stored; those that are not there are left out."""
        names = ("schema_version", "encoding", "original")
        chosen: list[str] = []
        for part in sorted({place.part for place in places}):
            offsets = sorted({place.offset for place in places if place.part == part})
            chosen.append(_of(part, f"{OFFSET} in ({', '.join(map(str, offsets))})"))
        rows = self._read(self._load(), chosen, names)
        rows = [row for row in rows if self._is_below(_place(row))]
        return {_place(row): Original(*(row[name] for name in names)) for row in rows}

    def check_room(
        self,
        places: Collection[Place],
        state: Literal["replayed", "dropped"],
        known: Sequence[Place],
    ) -> None:
        """Refuse what `settle` could not mark, before anything is done that cannot be taken back.

        Raises:
            InvalidRequest: the marks would become too large.
        """
        settled = self._settled(self._load().properties).settle(places, state, known)
        size = len(msgspec.json.encode(settled))
        if size > SETTLED_BYTES_MAX:
            raise InvalidRequest(
                "too many rejects would be settled one by one, settle those between them as well",
                table=self.table,
                bytes=size,
                bytes_max=SETTLED_BYTES_MAX,
            )

    def settle(
        self,
        places: Collection[Place],
        state: Literal["replayed", "dropped"],
        known: Sequence[Place],
    ) -> None:
        """Mark rejects as settled; durable on return. `known` are all rejects there are.

        Raises:
            Unavailable: others keep changing the side table, or it cannot be reached.
        """
        for _attempt in range(SETTLE_TRIES):
            loaded = self._load()
            settled = self._settled(loaded.properties)
            if all(settled.state(place) != "open" for place in places):
                return
            text = msgspec.json.encode(settled.settle(places, state, known)).decode()
            # PyIceberg would set the same text behind a commit that it does not know: of the table
            # as it lies here only, so that the marks are read again instead.
            loaded.metadata.properties["commit.retry.num-retries"] = "0"
            try:
                with (
                    calls("settle rejects", writes=True, table=self.table),
                    loaded.transaction() as change,
                ):
                    change.set_properties({SETTLED: text})
                    with change.update_snapshot().fast_append():
                        pass
            except (Conflict, CommitUnknown):
                continue
        if any(self._settled(self._load().properties).state(each) == "open" for each in places):
            raise Unavailable("others keep changing the side table, try again", table=self.table)

    def _load(self) -> Table:
        with calls("load table", table=self.table):
            loaded = self._catalog.load_table(tuple(self.table))
        found = loaded.properties.get(TOPIC_ID)
        if found != self._topic_id:
            raise Conflict(
                "side table is another topic's: rename or drop it, or take it over with "
                "frazil lake adopt",
                table=self.table,
                topic_id=self._topic_id,
                found=found,
            )
        return loaded

    def _settled(self, properties: Mapping[str, str]) -> Settled:
        try:
            return msgspec.json.decode(properties.get(SETTLED, "{}"), type=learnt(Settled))
        except msgspec.MsgspecError as error:
            raise CorruptionError(
                "marks of settled rejects cannot be read",
                table=self.table,
                property=SETTLED,
                reason=error,
            ) from error

    def _is_below(self, place: Place) -> bool:
        return place.offset < self._ends.get(place.part, 0)

    def _read(
        self, loaded: Table, conditions: Sequence[str], names: Sequence[str]
    ) -> list[dict[str, Any]]:
        """Return the rows to which one of some conditions applies."""
        if not conditions:
            return []
        places = (OFFSET,) if WHOLE in self._ends else (OFFSET, PART)
        condition = " or ".join(f"({each})" for each in conditions)
        with calls("read rejects", table=self.table):
            scan = loaded.scan(condition, selected_fields=(*places, *names))
            found: pa.Table = scan.to_arrow()
        if TIME in names:
            index = found.schema.get_field_index(TIME)
            found = found.set_column(index, TIME, found.column(TIME).cast(pa.int64()))
        listed: list[dict[str, Any]] = found.to_pylist()
        return listed


def _of(part: int, condition: str) -> str:
    return condition if part == WHOLE else f"{PART} = {part} and {condition}"


def _place(row: Mapping[str, Any]) -> Place:
    return Place(row.get(PART, WHOLE), row[OFFSET])


def _reject(row: Mapping[str, Any], settled: Settled) -> Reject:
    place = _place(row)
    facts = {name: row[name] for name in FACTS}
    return Reject(place=place, time_us=row[TIME], state=settled.state(place), **facts)
