"""Superseded rows of files as SQL: how a scan leaves them out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt

__all__ = ["without_dead"]

BLOCK_SHIFT: Final = 6
"""A block of rows has as many as an integer has bits."""
BLOCKS_PER_DEAD_MAX: Final = 2
"""Dead rows are told by bits when there is at least one in so many blocks."""


def without_dead(
    dead: npt.NDArray[np.int64],
    *,
    first: int,
    last: int,
    register: Callable[[pa.Table], str],
) -> tuple[str, list[str]]:
    """Return the join, and the conditions behind it, that leave dead rows out of a scan `f`.

    `dead` are offsets in `[first, last]`, and so are the rows'. Where many are dead, one bit for
    each row and a join by blocks of rows is much less than a list of them: its hash table stays in
    the processor's caches.
    """
    block = first >> BLOCK_SHIFT
    blocks = (last >> BLOCK_SHIFT) - block + 1
    if blocks > BLOCKS_PER_DEAD_MAX * len(dead):
        marks = register(pa.table({"_offset": pa.array(dead, pa.int64())}))
        return f"ANTI JOIN {marks} AS d ON f._offset = d._offset", []
    flags = np.zeros(blocks << BLOCK_SHIFT, np.bool_)
    flags[dead - (block << BLOCK_SHIFT)] = True
    words = np.packbits(flags, bitorder="little").view("<i8")
    numbers = np.arange(block, block + blocks, dtype=np.int64)
    marks = register(pa.table({"block": pa.array(numbers), "bits": pa.array(words)}))
    join = f"JOIN {marks} AS d ON (f._offset >> {BLOCK_SHIFT}) = d.block"
    return join, [f"(d.bits >> (f._offset & {(1 << BLOCK_SHIFT) - 1})) & 1 = 0"]
