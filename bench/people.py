"""The rows that look-ups and aggregates are measured on: 1 M people or more, in random order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    import frazil


COLUMNS = {
    "id": "long",
    "name": "string",
    "age": "int",
    "score": "double",
    "city": "string",
    "seen": "long",
}
BATCH_ROWS = 10_000
CITIES = 50
SEED = 4
KEY_STEP = 2
"""Keys are even, so that an odd number in their range is absent."""


def keys_in_random_order(count: int) -> np.ndarray:
    """Return `count` keys, each once, in no order."""
    return np.random.default_rng(SEED).permutation(count) * KEY_STEP


def batch_of(ids: np.ndarray, version: int = 0) -> pa.RecordBatch:
    """Return the rows with these keys; `version` changes some of their values."""
    text = pc.cast(pa.array(ids, pa.int64()), pa.string())
    places = pc.cast(pa.array(ids // KEY_STEP % CITIES, pa.int64()), pa.string())
    return pa.record_batch(
        {
            "id": pa.array(ids, pa.int64()),
            "name": pc.binary_join_element_wise("name", text, "-"),
            "age": pa.array(((ids // KEY_STEP + version) % 97).astype(np.int32)),
            "score": pa.array(ids * 0.25 + version),
            "city": pc.binary_join_element_wise("city", places, "-"),
            "seen": pa.array(ids * 7 % 1_000_003 + 1_700_000_000_000_000, pa.int64()),
        }
    )


def batches_of(
    ids: np.ndarray, version: int = 0, *, rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """Yield the rows in the batches in which they are published."""
    for first in range(0, len(ids), rows):
        yield batch_of(ids[first : first + rows], version)


def row(number: int, version: int = 0) -> dict[str, object]:
    """Return one row as a dict; the same values as in a batch."""
    return {
        "id": number,
        "name": f"name-{number}",
        "age": (number // KEY_STEP + version) % 97,
        "score": number * 0.25 + version,
        "city": f"city-{number // KEY_STEP % CITIES}",
        "seen": number * 7 % 1_000_003 + 1_700_000_000_000_000,
    }


def publish(topic: frazil.Topic, ids: np.ndarray, version: int = 0) -> None:
    """Publish the rows with these keys, and wait for all acks."""
    for batch in batches_of(ids, version):
        topic.append_arrow(batch)
