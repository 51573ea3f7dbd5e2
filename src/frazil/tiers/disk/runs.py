"""Runs of idempotent producers in the footers of files: who sent which offsets, with which numbers.

Files hold records, not the batches in which they came. Of topics whose frames are uploaded the runs
are kept beside them, so that records which the log has let go can be framed again as they were.
They stand in the footer of a set's first file, under the key `frazil.runs`; pure functions.
"""

from __future__ import annotations

import base64
import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from frazil.errors import CorruptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["RUNS_KEY", "SentRun", "decode_runs", "encode_runs", "kept_runs"]

RUNS_KEY: Final = "frazil.runs"
RUNS_MAX: Final = 1 << 16
"""A set keeps about so many runs; what no producer's window would hold goes first."""
WINDOW_MAX: Final = 1_000
"""So many of the newest runs of each producer stay when there are too many: the longest window."""
_COLUMNS: Final = 5
_BYTES_MAX: Final = RUNS_MAX * _COLUMNS * 8


class SentRun(NamedTuple):
    """Consecutive records of one producer, as one frame had them."""

    offset: int
    records: int
    producer: int
    epoch: int
    sequence: int


def kept_runs(runs: Sequence[SentRun]) -> list[SentRun]:
    """Return the runs that a set keeps, in the order of offsets."""
    found = sorted(runs)
    if len(found) <= RUNS_MAX:
        return found
    counts: dict[int, int] = {}
    kept: list[SentRun] = []
    for run in reversed(found):
        count = counts[run.producer] = counts.get(run.producer, 0) + 1
        if count <= WINDOW_MAX:
            kept.append(run)
    return kept[:RUNS_MAX][::-1]


def encode_runs(runs: Sequence[SentRun]) -> str:
    """Encode runs, sorted by offset, as the text of a footer's entry.

    Each column is stored as its differences: numbers that go on by one take next to nothing.
    """
    assert len(runs) <= RUNS_MAX
    table = np.array(runs, dtype=np.uint64).reshape(-1, _COLUMNS)
    steps = np.diff(table.T, axis=1, prepend=np.uint64(0)).astype("<u8")
    return base64.b64encode(zlib.compress(steps.tobytes(), 6)).decode()


def decode_runs(text: str) -> list[SentRun]:
    """Decode the runs of a footer.

    Raises:
        CorruptionError: if the text is no such list.
    """
    try:
        data = zlib.decompressobj().decompress(
            base64.b64decode(text, validate=True), _BYTES_MAX + 1
        )
    except (ValueError, zlib.error) as error:
        raise CorruptionError("runs of a file cannot be decoded", reason=error) from error
    if len(data) % (8 * _COLUMNS) or len(data) > _BYTES_MAX:
        raise CorruptionError("runs of a file have the wrong size", bytes=len(data))
    steps = np.frombuffer(data, dtype="<u8").reshape(_COLUMNS, -1)
    table = np.cumsum(steps, axis=1, dtype=np.uint64)
    return [SentRun(*each) for each in table.T.tolist()]
