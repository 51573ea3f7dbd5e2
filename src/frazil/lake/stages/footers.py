"""Read the footers of staged files before Spark runs: their rows, and whether all values fit.

The footers are read by the driver, a fraction of a millisecond each. They replace a pass over the
data: the footer has the number of rows, and if the least and the greatest value of a column fit,
all of its values do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from frazil.errors import CorruptionError, Unavailable
from frazil.lake.stages.columns import OFFSET, TIME, is_doubtful, leaves
from frazil.lake.stages.validate import MILLIS_MAX, MILLIS_MIN, decimal_max

if TYPE_CHECKING:
    from frazil.lake.plan import StagedFile
    from frazil.lake.stages.context import Source

__all__ = ["staged_facts"]


class _Leaf(NamedTuple):
    """A scalar column to check; `required` if it must not have nulls."""

    column: int
    type: pa.DataType
    required: bool


def staged_facts(sources: Iterable[Source], schema: pa.Schema) -> tuple[int, bool]:
    """Read the footers of all files: the rows, and whether any value may not fit its column.

    Raises:
        CorruptionError: a file is missing, damaged, or not the planned one.
        Unavailable: a file cannot be read now.
    """
    watched = list(_watched(schema))
    rows, doubtful = 0, False
    for source in sources:
        for file in source.files:
            footer = _footer(file, schema)
            rows += _rows(file, source)
            doubtful = doubtful or any(_is_open(footer, leaf) for leaf in watched)
    return rows, doubtful


def _watched(schema: pa.Schema) -> Iterator[_Leaf]:
    index = 2
    for field in schema:
        for leaf in leaves(field):
            required = leaf is field and not field.nullable
            if required or is_doubtful(leaf.type):
                yield _Leaf(index, leaf.type, required)
            index += 1


def _footer(file: StagedFile, schema: pa.Schema) -> pq.FileMetaData:
    footer = _read(file, lambda: pq.read_metadata(file.path))
    names = footer.schema.to_arrow_schema().names
    if footer.num_rows != file.rows or names != [OFFSET, TIME, *schema.names]:
        raise CorruptionError(
            "staged file is not the one that was planned, run `frazil doctor`",
            path=file.path,
            rows=footer.num_rows,
            rows_planned=file.rows,
            columns=",".join(names),
        )
    return footer


def _rows(file: StagedFile, source: Source) -> int:
    """Return how many rows of a file are in the source's range."""
    if source.start <= file.offset_first and file.offset_last < source.end:
        return file.rows
    if file.rows == file.offset_last - file.offset_first + 1:
        return min(file.offset_last + 1, source.end) - max(file.offset_first, source.start)
    # Rows of other partitions are in between: only the offsets themselves show it.
    offsets = _read(file, lambda: pq.read_table(file.path, columns=[OFFSET])).column(OFFSET)
    inside = pc.and_(
        pc.greater_equal(offsets, source.start),
        pc.less(offsets, source.end),
    )
    return int(pc.sum(inside).as_py() or 0)


def _read(file: StagedFile, call: Any) -> Any:
    try:
        return call()
    except FileNotFoundError as error:
        raise CorruptionError("staged file is gone, run `frazil doctor`", path=file.path) from error
    except (pa.ArrowException, ValueError) as error:
        raise CorruptionError(
            "staged file is damaged, run `frazil doctor`", path=file.path, reason=error
        ) from error
    except OSError as error:
        raise Unavailable(
            "staged file cannot be read, try again", path=file.path, reason=error
        ) from error


def _is_open(footer: pq.FileMetaData, leaf: _Leaf) -> bool:
    """Return whether the footer leaves it open that all values of a column fit."""
    optional = footer.schema.column(leaf.column).max_definition_level > 0
    for group in range(footer.num_row_groups):
        facts = footer.row_group(group).column(leaf.column).statistics
        if facts is None:
            return True
        if leaf.required and optional and (not facts.has_null_count or facts.null_count):
            return True
        if is_doubtful(leaf.type) and facts.num_values and not _fits(facts, leaf.type):
            return True
    return False


def _fits(facts: pq.Statistics, data_type: pa.DataType) -> bool:
    if not facts.has_min_max:
        return False
    if pt.is_timestamp(data_type):
        return bool(facts.min_raw >= MILLIS_MIN and facts.max_raw <= MILLIS_MAX)
    limit = decimal_max(data_type)
    return bool(facts.min >= -limit and facts.max <= limit)
