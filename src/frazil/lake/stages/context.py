"""The inputs that all stages of one plan share, fixed before the first stage runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
from attrs import frozen
from pyspark.sql import types as T  # noqa: N812 - the name that everybody knows it by

from frazil.lake.plan import PartRange, Plan, StagedFile
from frazil.lake.table import Ends
from frazil.model import WHOLE

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Context", "Source"]


@frozen
class Source:
    """The input of one part: its files and the offsets `[start, end)` to read from them.

    `cut` is true if a file has rows outside of that range.
    """

    part: int
    start: int
    end: int
    files: tuple[StagedFile, ...]

    @property
    def cut(self) -> bool:
        """Return whether rows have to be filtered."""
        return any(
            file.offset_first < self.start or file.offset_last >= self.end for file in self.files
        )


@frozen
class Context:
    """One plan, its first offsets, and the columns of its topic and table.

    `schema` has the topic's columns at the plan's schema version, `table` those of the table.
    `raw` is true if the footers leave doubt whether all values fit.
    """

    plan: Plan
    schema: pa.Schema
    table: T.StructType
    from_offsets: Ends
    raw: bool = False
    target_file_bytes: int = 128 << 20

    @property
    def partitioned(self) -> bool:
        """Return whether the topic has parts."""
        return any(each.part != WHOLE for each in self.plan.parts)

    @property
    def sources(self) -> tuple[Source, ...]:
        """Return the sources of the plan; a part without a start has none."""
        return tuple(sources_of(self.plan, self.from_offsets))

    @property
    def staged_bytes(self) -> int:
        """Return the total size of the sources' files."""
        return sum(file.bytes for source in self.sources for file in source.files)


def sources_of(plan: Plan, from_offsets: Ends) -> Iterator[Source]:
    """Yield the source of each part that has records left."""
    for each in plan.parts:
        source = _source(each, from_offsets)
        if source is not None and source.files:
            yield source


def _source(each: PartRange, from_offsets: Ends) -> Source | None:
    start = from_offsets.get(each.part)
    if start is None or start >= each.hi:
        return None
    files = tuple(file for file in each.files if file.rows and file.offset_last >= start)
    return Source(each.part, start, each.hi, files)
