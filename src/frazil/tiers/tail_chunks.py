"""Entries of a topic's tail as chunks: decoded in runs, and copied once."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from frazil.errors import CorruptionError
from frazil.log import SMALL_RECORDS_MAX, UNDECODABLE, Frame
from frazil.log import format as fmt
from frazil.tiers.chunk import Chunk, chunk_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frazil.log import TailEntry, TopicState

__all__ = ["chunk_of_entry", "first_chunk"]

RUN_RECORDS_MAX: Final = 4096
"""So many records of small frames are decoded together."""
_new = tuple.__new__


def first_chunk(
    state: TopicState, tail: Sequence[TailEntry], *, end: int, rows_max: int, bytes_max: int
) -> tuple[Chunk, int]:
    """Return the first entries below `end` as a chunk, and how many they are: at least one.

    They are joined here: one by one they would be copied with each that comes behind.

    Raises:
        CorruptionError: if the first one cannot be decoded.
    """
    batches: list[pa.RecordBatch] = []
    stop = rows = size = version = 0
    while stop < len(tail) and tail[stop].offset < end:
        run = _small_run(tail, stop, end)
        if batches:
            rows += sum([entry[1] for entry in run])
            size += sum([entry[7] for entry in run])
            before = tail[stop - 1]
            is_next = before.offset + before.count == run[0].offset
            if not is_next or rows > rows_max or size > bytes_max:
                break
        try:
            found = _decode_run(state, run) if len(run) > 1 else None
            if found is None:
                run = run[:1]
                found = _decode_entry(state, run[0])
        except CorruptionError:
            if not batches:
                raise
            break
        if batches and found[1] != version:
            # The schema has changed meanwhile.
            break
        if not batches:
            rows, size = sum([entry[1] for entry in run]), sum([entry[7] for entry in run])
        version = found[1]
        batches.append(found[0])
        stop += len(run)
    return _chunk_of_entries(batches, tail[:stop], version), stop


def chunk_of_entry(state: TopicState, entry: TailEntry) -> Chunk:
    """Return the chunk of one entry.

    Raises:
        CorruptionError: if it cannot be decoded.
    """
    batch, version = _decode_entry(state, entry)
    return _chunk_of_entries([batch], [entry], version)


def _chunk_of_entries(
    batches: list[pa.RecordBatch], entries: Sequence[TailEntry], version: int
) -> Chunk:
    return chunk_of(
        batches[0] if len(batches) == 1 else pa.concat_batches(batches),
        offset=entries[0].offset,
        version=version,
        times=[(entry[1], entry[2]) for entry in entries],
        # A batch that was not copied holds on to its whole frame.
        nbytes=entries[0].size if len(entries) == 1 else 0,
        changes=sum([entry[1] for entry in entries if entry[5] & fmt.FLAG_OP]),
    )


def _decode_run(state: TopicState, run: list[TailEntry]) -> tuple[pa.RecordBatch, int] | None:
    codec = state.codec
    frames = [_frame(entry) for entry in run]
    batch: pa.RecordBatch | None = None
    version = -1
    while version != codec.version:
        # The schema may change while this runs; a batch is of the version it was decoded to.
        version = codec.version
        try:
            batch = codec.decode_small(frames)
        except UNDECODABLE:
            # One by one they tell which of them it is.
            return None
    return None if batch is None else (batch, version)


def _decode_entry(state: TopicState, entry: TailEntry) -> tuple[pa.RecordBatch, int]:
    codec = state.codec
    frame = _frame(entry)
    version = -1
    while version != codec.version:
        version = codec.version
        try:
            batch = codec.decode(frame)
        except UNDECODABLE as error:
            raise CorruptionError(
                "records in memory cannot be decoded, run `frazil doctor`",
                topic=state.spec.name,
                offset_first=entry.offset,
                offset_next=entry.offset + entry.count,
                lsn=entry.lsn,
                reason=error,
            ) from error
    return batch, version


def _frame(entry: TailEntry) -> Frame:
    offset, count, time_us, lsn, kind, flags, version, size, data, _ = entry
    fields = (offset, 0, 0, kind, b"", flags, 0, 0, count, version, lsn, 0, 0, size, time_us, 0, 0)
    # Past the constructors, which cost more than all else here; decoders take any buffer.
    return _new(Frame, (_new(fmt.FrameHead, fields), data, 0))


def _small_run(tail: Sequence[TailEntry], start: int, end: int) -> list[TailEntry]:
    """Return the entries from a place on that are worth decoding together.

    They are small, alike and without a gap.
    """
    first = tail[start]
    kind, flags, version = first.kind, first.flags, first.version
    if kind != fmt.KIND_ROWS:
        return [first]
    count_max = 1 if flags & fmt.FLAG_PLAIN else SMALL_RECORDS_MAX
    run: list[TailEntry] = []
    records, offset = 0, first.offset
    for entry in islice(tail, start, None):
        if entry[0] != offset or entry[1] > count_max or offset >= end:
            break
        if entry[4] != kind or entry[5] != flags or entry[6] != version:
            break
        records += entry[1]
        if records > RUN_RECORDS_MAX:
            break
        offset += entry[1]
        run.append(entry)
    return run or [first]
