"""Chunks whose partial changes were completed: each row is what its key had after the change.

The sequencer writes whole rows, so that partial ones come only from a log that was written while
the tiers were off. A partial change that stands on nothing stays as it is: an upsert is a row with
nulls already, an update changes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from frazil.tiers.chunk import Chunk

if TYPE_CHECKING:
    from frazil.tiers.keys.fold import KeyedState

__all__ = ["whole_chunk"]


def whole_chunk(chunk: Chunk, keyed: KeyedState | None) -> Chunk:
    """Return a chunk that was folded, with the rows that its partial changes made.

    The caller holds the topic's lock.
    """
    if keyed is None or chunk.bases is None or not (chunk.bases >= 0).any():
        return chunk
    width = chunk.width
    op, present = chunk.batch.columns[width:]
    based = pa.array(chunk.bases >= 0)
    bitmaps = pc.if_else(based, pa.scalar(None, present.type), present)
    columns = [*keyed.image(chunk).columns[:width], op, bitmaps]
    return Chunk(
        pa.RecordBatch.from_arrays(columns, schema=chunk.batch.schema),
        offset=chunk.offset,
        version=chunk.version,
        time_counts=chunk.time_counts,
        time_us=chunk.time_us,
        nbytes=chunk.nbytes,
        changes=chunk.changes,
        dead=chunk.dead,
    )
