"""Move a range of offsets of one topic from memory to files: the flush."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from frazil.errors import InvalidRequest
from frazil.tiers.disk_rows import offsets_of
from frazil.tiers.disk_write import SetWriter, unavailable
from frazil.tiers.keys import ID_KEYS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy.typing as npt
    import pyarrow as pa

    from frazil.clock import Clock
    from frazil.log.state import SpecialRange
    from frazil.tiers.disk import DiskTier, TierSettings
    from frazil.tiers.disk_file import DiskFile
    from frazil.tiers.keys import KeyShape
    from frazil.tiers.partitions import Partitioner

__all__ = ["flush_set"]


def flush_set(
    disk: DiskTier,
    *,
    topic: int,
    schema: pa.Schema,
    version: int,
    keyed: bool,
    shape: KeyShape | None,
    partitioner: Partitioner,
    first: int,
    end: int,
    batches: Iterable[pa.RecordBatch],
    gaps: Sequence[SpecialRange] = (),
    deltas: npt.NDArray[np.int64] | None = None,
    clock: Clock | None = None,
    settings: TierSettings | None = None,
    throttle: Callable[[int], None] | None = None,
    replaces: Sequence[DiskFile] = (),
) -> tuple[DiskFile, ...]:
    """Write the records of `[first, end)` to files and register them; durable on return.

    Args:
        disk: where the files go.
        topic: the topic's id.
        schema: the topic's columns with their ids.
        version: the number of that schema.
        keyed: whether the rows are changes of keys; then `shape` names the key.
        shape: the key columns.
        partitioner: splits the rows by the topic's partition spec.
        first: the first offset; the topic's flushed mark, unless files are replaced.
        end: the offset behind the last one, at most what is durable in the log.
        batches: columns `_offset`, `_time`, for changes `_op` and `_present`, then the schema's;
            in the order of offsets. Every offset in the range is a row or lies in a gap.
        gaps: the ranges without rows, cut to `[first, end)`.
        deltas: sorted offsets of changes whose base row is in files already.
        clock: the tier's own if it is None.
        settings: the section `disk`; the tier's own if it is None.
        throttle: told of the bytes as they are written; may wait.
        replaces: a set of files, some of them damaged, that is written again.

    Raises:
        InvalidRequest: rows are missing, twice or out of order. Nothing happened.
        Conflict: the range is not the next one. Nothing happened.
        Unavailable: the disk failed; nothing is registered. With `outcome="unknown"` the metadata
            store failed; the next start tells what happened.
        Closed: a directory could not be synced before; open the engine again.
    """
    if keyed != (shape is not None):
        raise InvalidRequest("shape of the key does not fit the topic", keyed=keyed)
    writer = SetWriter(
        disk,
        topic=topic,
        schema=schema,
        version=version,
        key_ids=_ids(schema, shape),
        shape=shape,
        first=first,
        end=end,
        gaps=gaps,
        deltas=deltas,
        clock=clock,
        settings=settings,
        throttle=throttle,
    )
    rows = 0
    following = first
    try:
        with writer:
            for batch in batches:
                if not batch.num_rows:
                    continue
                following = _checked(offsets_of(batch), following, end)
                rows += batch.num_rows
                writer.add(partitioner.split(batch))
            empty = sum(gap.end - gap.first for gap in gaps)
            if rows + empty != end - first:
                raise InvalidRequest(
                    "rows and gaps do not make up the range",
                    topic=topic,
                    first=first,
                    end=end,
                    rows=rows,
                    empty=empty,
                )
            return writer.commit(replaces)
    except OSError as error:
        raise unavailable(error, topic=topic) from error


def _checked(offsets: npt.NDArray[np.int64], following: int, end: int) -> int:
    """Return the offset behind a batch, or refuse one that goes back or out of its range."""
    low, high = int(offsets[0]), int(offsets[-1])
    if low < following or high >= end or not bool((np.diff(offsets) > 0).all()):
        raise InvalidRequest(
            "rows are out of order or of their range", offset=low, offset_last=high, end=end
        )
    return high + 1


def _ids(schema: pa.Schema, shape: KeyShape | None) -> tuple[int, ...]:
    """Return the ids of the key columns, in the order of the key."""
    if shape is None:
        return ()
    found: list[int] = []
    for name in shape.names:
        metadata = schema.field(name).metadata or {}
        found.append(next(int(metadata[key]) for key in ID_KEYS if key in metadata))
    return tuple(found)
