"""What the lake can take of a topic: its flush sets as plans name them. Pure, but for paths."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Final

from frazil.errors import CorruptionError
from frazil.lake.plan import PartSets, Plan, StagedFile, StagedSet
from frazil.lake.session import writers_of
from frazil.offsets import RangeSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pyarrow as pa

    from frazil.config.sections import LakeSettings
    from frazil.lake.plan import PartRange, TableName
    from frazil.log import SpecialRange
    from frazil.tiers import DiskFile, Span, TopicFiles

__all__ = ["before_gaps", "part_sets", "plan_bytes", "plan_of", "planned_files"]

PLAN_BYTES_MAX: Final = 1 << 30
PLAN_FILES_MAX: Final = 1000
"""More than this becomes several plans, one after another."""
WRITER_BYTES_MAX: Final = 128 << 20
"""A writer lets rows go at this size, which is that of Parquet's row groups in Iceberg."""


def plan_bytes(lake: LakeSettings) -> int:
    """Return how much one plan may take, so that its writers keep to `max_memory_bytes`.

    They never hold more than a row group each; if that is too much, they get less to write.
    """
    memory = lake.writer.max_memory_bytes
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
    """Return the sets of one topic or part that its table does not have all of.

    `gaps` are the ranges without records that the topic knows: where files begin behind one that
    was declared, or there are none any more, a set without files leads up to them. It has the
    version of the columns behind it, else the present one.
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
    names = [
        file.path.rpartition("/")[2]
        for each in ranges
        if each.topic == picture.topic
        for file in each.files
    ]
    found = [picture.by_name.get(name) for name in names]
    return None if None in found else [file for file in found if file is not None]


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
