"""Plans: the staged files of one commit into a table. Pure: no Spark, no files, no clock.

A plan names whole flush sets of one schema version and the range of offsets `[lo, hi)` they cover.
A plan is persisted before it runs, and a retry uses the same plan. If the table's watermark is
inside the range, rows are filtered, not files.
"""

from __future__ import annotations

import base64
import itertools
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from frazil.errors import CorruptionError, InvalidRequest
from frazil.lake.session import writers_of
from frazil.offsets import RangeSet
from frazil.struct_types import learnt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pyarrow as pa

    from frazil.config.sections import LakeSettings
    from frazil.log import SpecialRange
    from frazil.tiers import DiskFile, Span, TopicFiles

__all__ = [
    "PartRange",
    "PartSets",
    "Plan",
    "StagedFile",
    "StagedSet",
    "TableName",
    "before_gaps",
    "decode_plan",
    "encode_plan",
    "part_sets",
    "plan_bytes",
    "plan_of",
    "plan_parts",
    "planned_files",
]


class TableName(NamedTuple):
    """A table in the catalog: one namespace and a name."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}.{self.name}"

    @property
    def rejects(self) -> TableName:
        """Return the side table of records that could not be converted."""
        return TableName(self.namespace, f"{self.name}__rejects")


class StagedFile(msgspec.Struct, frozen=True):
    """A Parquet file of the disk tier; `bytes` are those of the file itself."""

    path: str
    rows: int
    bytes: int
    offset_first: int
    offset_last: int


class PartRange(msgspec.Struct, frozen=True):
    """A plan's range of one topic, or of one part of a partitioned one: all of `[lo, hi)`.

    `gaps` are the offsets `[first, end)` within the range that have no record.
    """

    part: int
    topic: int
    lo: int
    hi: int
    files: tuple[StagedFile, ...]
    gaps: tuple[tuple[int, int], ...] = ()

    @property
    def rows(self) -> int:
        """Return how many records the range has."""
        return self.hi - self.lo - sum(end - first for first, end in self.gaps)


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One commit into one table.

    `topic` is the topic's name, `topic_id` the identity made at its creation, `schema` the Arrow
    schema of its columns at `schema_version` as base64, `kind` message or table.
    """

    id: str
    topic: str
    topic_id: str
    table: TableName
    kind: str
    schema_version: int
    schema: str
    parts: tuple[PartRange, ...]
    created_us: int

    @property
    def rows(self) -> int:
        """Return how many records it moves."""
        return sum(part.rows for part in self.parts)

    @property
    def bytes(self) -> int:
        """Return the bytes of its files."""
        return sum(file.bytes for part in self.parts for file in part.files)

    @property
    def paths(self) -> list[str]:
        """Return the paths of its files."""
        return [file.path for part in self.parts for file in part.files]


class StagedSet(NamedTuple):
    """One flush set of the disk tier: the unit of plans."""

    first: int
    end: int
    schema_version: int
    files: tuple[StagedFile, ...]
    gaps: tuple[tuple[int, int], ...] = ()


class PartSets(NamedTuple):
    """The sets of one topic or part, in order, and the table's watermark."""

    part: int
    topic: int
    committed: int
    sets: tuple[StagedSet, ...]


def plan_parts(
    parts: Iterable[PartSets], *, bytes_max: int, files_max: int
) -> tuple[int, tuple[PartRange, ...]]:
    """Choose the sets of the next plan: whole sets of one schema version, oldest first.

    Parts with the lowest schema version come first, so that a plan never spans a change of columns.
    A plan has at least one set of any size, and more of them up to the limits.

    Returns:
        The schema version and the ranges; no ranges if there is nothing to move.

    Raises:
        InvalidRequest: if the sets of a part do not follow one another from its committed offset.
    """
    waiting = [(each, sets) for each in parts if (sets := _open_sets(each))]
    if not waiting:
        return 0, ()
    version = min(sets[0].schema_version for _each, sets in waiting)
    ranges: list[PartRange] = []
    size = count = 0

    def takes(staged: StagedSet) -> bool:
        """Count a set in if there is room for it; the first one always fits."""
        nonlocal size, count
        larger = size + sum(file.bytes for file in staged.files)
        more = count + len(staged.files)
        if staged.schema_version != version or (count and (larger > bytes_max or more > files_max)):
            return False
        size, count = larger, more
        return True

    for each, sets in waiting:
        taken = list(itertools.takewhile(takes, sets))
        if taken:
            ranges.append(_range(each, taken))
    return version, tuple(ranges)


def _open_sets(part: PartSets) -> Sequence[StagedSet]:
    """Return the sets that are not wholly committed; they must follow one another."""
    sets = [staged for staged in part.sets if staged.end > part.committed]
    following = part.committed
    for number, staged in enumerate(sets):
        if staged.first > following or (number and staged.first != following):
            raise InvalidRequest(
                "staged sets do not follow one another",
                topic=part.topic,
                expected=following,
                found=staged.first,
            )
        following = staged.end
    return sets


def _range(part: PartSets, taken: Sequence[StagedSet]) -> PartRange:
    lo, hi = max(part.committed, taken[0].first), taken[-1].end
    gaps = tuple(
        (max(first, lo), end) for staged in taken for first, end in staged.gaps if end > lo
    )
    files = tuple(
        file for staged in taken for file in staged.files if file.rows and file.offset_last >= lo
    )
    return PartRange(part.part, part.topic, lo, hi, files, gaps)


def encode_plan(plan: Plan) -> bytes:
    """Return a plan as it is persisted and sent."""
    return msgspec.json.encode(plan)


def decode_plan(data: bytes) -> Plan:
    """Return a persisted plan.

    Raises:
        InvalidRequest: if it is none.
    """
    try:
        return msgspec.json.decode(data, type=learnt(Plan))
    except (msgspec.MsgspecError, ValueError) as error:
        raise InvalidRequest("plan cannot be read", reason=error) from error


PLAN_BYTES_MAX: Final = 1 << 30
PLAN_FILES_MAX: Final = 1000
"""More than this becomes several plans, one after another."""
WRITER_BYTES_MAX: Final = 128 << 20
"""A writer lets rows go at this size, which is that of Parquet's row groups in Iceberg."""


def plan_bytes(lake: LakeSettings) -> int:
    """Return a plan's size limit, so that its writers use at most a quarter of Java's heap.

    A writer never holds more than a row group; if that is too much, the plan gets smaller.
    """
    memory = lake.worker.heap_bytes // 4
    enough = writers_of(lake.spark.conf) * WRITER_BYTES_MAX
    return PLAN_BYTES_MAX if memory >= enough else memory


def part_sets(
    picture: TopicFiles,
    *,
    part: int,
    committed: int,
    path: Callable[[DiskFile], str],
    version: int = 1,
    gaps: Sequence[SpecialRange] = (),
) -> PartSets:
    """Return the sets of one topic or part that are not completely in its table.

    `gaps` are the topic's declared ranges without records. If files begin after such a gap, or
    there are no files left, a set without files covers the gap. It has the schema version of the
    set after it, else the current one.
    """
    sets = [_staged_set(span, path) for span in picture.spans if span.end > committed]
    begin = sets[0].first if sets else picture.flushed
    if committed < begin and before_gaps(gaps, begin) <= committed:
        columns = sets[0].schema_version if sets else version
        sets.insert(0, StagedSet(committed, begin, columns, (), ((committed, begin),)))
    return PartSets(part, picture.topic, committed, tuple(sets))


def before_gaps(gaps: Iterable[SpecialRange], offset: int) -> int:
    """Return where the gaps begin that lead up to an offset without a record between them."""
    for each in sorted(gaps, reverse=True):
        if each.first < offset <= each.end:
            offset = each.first
    return offset


def _staged_set(span: Span, path: Callable[[DiskFile], str]) -> StagedSet:
    versions = {file.schema for file in span.files}
    if len(versions) != 1:
        raise CorruptionError(
            "files of one set have different columns", first=span.first, versions=sorted(versions)
        )
    files = tuple(
        StagedFile(path(file), file.rows, file.bytes, file.offset_first, file.offset_last)
        for file in span.files
        if file.rows
    )
    gaps = ((each.first, each.end) for file in span.files for each in file.ranges)
    return StagedSet(
        span.first, span.end, versions.pop(), files, RangeSet(gaps).within(span.first, span.end)
    )


def planned_files(picture: TopicFiles, ranges: Sequence[PartRange]) -> list[DiskFile] | None:
    """Return the files of a topic that a plan names; None if one of them is not there any more."""
    own = [file for each in ranges if each.topic == picture.topic for file in each.files]
    try:
        return [picture.by_name[file.path.rpartition("/")[2]] for file in own]
    except KeyError:
        return None


def plan_of(
    *,
    identity: str,
    topic: str,
    uid: str,
    table: TableName,
    kind: str,
    version: int,
    schema: pa.Schema,
    ranges: tuple[PartRange, ...],
    now_us: int,
) -> Plan:
    """Return a plan; it names the topic's columns by the version that all its files have."""
    return Plan(
        id=identity,
        topic=topic,
        topic_id=uid,
        table=table,
        kind=kind,
        schema_version=version,
        schema=base64.b64encode(schema.serialize().to_pybytes()).decode(),
        parts=ranges,
        created_us=now_us,
    )
