"""The flush: move a range of offsets of one topic from memory to files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from frazil.errors import InvalidRequest
from frazil.tiers.disk.format import ids_of, user_schema
from frazil.tiers.disk.reader import offsets_of
from frazil.tiers.disk.writer import SetWriter, unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt
    import pyarrow as pa

    from frazil.log import SpecialRange
    from frazil.schema import KeyShape
    from frazil.tiers.chunk import Chunk
    from frazil.tiers.disk.format import DiskFile, SentRun
    from frazil.tiers.disk.tier import DiskTier
    from frazil.tiers.partitions import Partitioner

SET_BYTES_MAX: Final = 512 << 20
"""The approximate size of a flush set; a larger flush writes several sets."""


def cut_set(chunks: Sequence[Chunk], first: int, target: int) -> tuple[int, list[Chunk]]:
    """Return the chunks of one set: all of them, or as many as fit into a set."""
    chosen: list[Chunk] = []
    size = 0
    for chunk in chunks:
        if chosen and size + chunk.nbytes > SET_BYTES_MAX:
            return max(chosen[-1].end, first), chosen
        chosen.append(chunk)
        size += chunk.nbytes
    return target, chosen


def flush_set(
    disk: DiskTier,
    *,
    topic: int,
    schema: pa.Schema,
    version: int,
    shape: KeyShape | None,
    partitioner: Partitioner,
    first: int,
    end: int,
    batches: Iterable[pa.RecordBatch],
    gaps: Sequence[SpecialRange] = (),
    runs: Sequence[SentRun] = (),
    replaces: Sequence[DiskFile] = (),
) -> tuple[DiskFile, ...]:
    """Write the records of `[first, end)` to files and register them; durable on return.

    `batches` have the columns `_offset`, `_time`, for changes `_op` and `_present`, then those of
    `schema`, in the order of offsets; every offset of the range is a row or in one of `gaps`.
    `first` is the topic's flushed mark, unless `replaces` names a set that is written again.
    `runs` are the producers of the records. `shape` is the shape of the key, None without a key.

    Raises:
        InvalidRequest: rows are missing, duplicate, out of order or of other columns. Nothing
            has changed.
        Conflict: the range is not the next one. Nothing has changed.
        Unavailable: the disk failed; nothing is registered. With `outcome="unknown"` the metadata
            store failed; the next start finds the outcome.
        Closed: a directory could not be synced before; open the engine again.
    """
    ids = dict(zip(schema.names, ids_of(schema), strict=True))
    writer = SetWriter(
        disk,
        topic=topic,
        schema=schema,
        version=version,
        key_ids=() if shape is None else [ids[name] for name in shape.names],
        shape=shape,
        first=first,
        end=end,
        gaps=gaps,
        runs=runs,
    )
    try:
        with writer:
            rows = _write(writer, partitioner, _checked_columns(batches, schema), first, end)
            _check_whole(rows, gaps, first, end)
            return writer.commit(replaces)
    except OSError as error:
        raise unavailable(error, topic=topic) from error


def _write(
    writer: SetWriter,
    partitioner: Partitioner,
    batches: Iterable[pa.RecordBatch],
    first: int,
    end: int,
) -> int:
    rows, following = 0, first
    for batch in batches:
        if batch.num_rows:
            following = _checked(offsets_of(batch), following, end)
            rows += batch.num_rows
            writer.add(partitioner.split(batch))
    return rows


def _checked_columns(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Refuse batches of other columns: columns are written by position."""
    ids, names = ids_of(schema), schema.names
    for batch in batches:
        columns = user_schema(batch.schema)
        # Columns without ids are compared by name.
        pairs = zip(ids_of(columns), ids, strict=False)
        if columns.names != names or any(a != b for a, b in pairs if min(a, b) >= 0):
            raise InvalidRequest(
                "rows are of other columns than the file", columns=columns.names, wanted=names
            )
        yield batch


def _check_whole(rows: int, gaps: Sequence[SpecialRange], first: int, end: int) -> None:
    empty = sum(gap.end - gap.first for gap in gaps)
    if rows + empty != end - first:
        raise InvalidRequest(
            "rows and gaps do not make up the range", first=first, end=end, rows=rows, empty=empty
        )


def _checked(offsets: npt.NDArray[np.int64], following: int, end: int) -> int:
    """Return the offset after a batch; refuse a batch out of order or out of the range."""
    low, high = int(offsets[0]), int(offsets[-1])
    if low < following or high >= end or not bool((np.diff(offsets) > 0).all()):
        raise InvalidRequest(
            "rows are out of order or of their range", offset=low, offset_last=high, end=end
        )
    return high + 1
