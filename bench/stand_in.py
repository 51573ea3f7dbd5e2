"""A stand-in for the tiers above the log: it takes held records over when they are old enough.

It is a `HistorySource`: it writes records to Arrow IPC files next to the journal and syncs them
before the log may free them.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_right
from typing import TYPE_CHECKING, Self

import attrs
import pyarrow as pa

from frazil.errors import FrazilError, NotFound
from frazil.log import Batch, Piece
from frazil.model import OffsetRange

if TYPE_CHECKING:
    import frazil


@attrs.frozen
class Taken:
    """One file: consecutive records of one topic."""

    first: int
    end: int
    path: str
    times: tuple[tuple[int, int], ...]


@attrs.define
class NoPin:
    """What the stand-in holds is never freed, so a pin has nothing to keep."""

    offset: int

    def advance(self, offset: int) -> None:
        self.offset = offset

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StandIn:
    """Flushes by age: a held topic's records go over when the oldest is older than `age_s`."""

    def __init__(self, engine: frazil.Engine, directory: str, *, age_s: float) -> None:
        self._engine = engine
        self._directory = directory
        self._age_us = int(age_s * 1e6)
        self._taken: dict[int, list[Taken]] = {}
        self._stop = threading.Event()
        self.flushes = 0
        self.failure: FrazilError | None = None
        os.makedirs(directory, exist_ok=True)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.25):
                for runtime in self._engine.runtimes:
                    if runtime.state.holds:
                        self.flush_if_old(self._engine.topic(runtime.name))
        except FrazilError as error:
            self.failure = error

    def flush_if_old(self, topic: frazil.Topic) -> None:
        """Take over what a hold keeps in the log for too long."""
        state = topic.runtime.state
        first = max(self.range(state.id).end, state.floor)
        if first >= state.durable:
            return
        oldest = next(iter(topic.read(first, limit=1)))
        if time.time_ns() // 1000 - oldest.time_us < self._age_us:
            return
        batches = list(topic.read(first, bytes_max=1 << 20))
        end = batches[-1].offset_next
        path = os.path.join(self._directory, f"{state.id}-{first:012d}.arrow")
        with open(path, "wb") as file:
            with pa.ipc.new_file(file, batches[0].data.schema) as writer:
                for batch in batches:
                    writer.write_batch(batch.data)
            file.flush()
            os.fsync(file.fileno())
        times = tuple(time for batch in batches for time in batch.times)
        known = self._taken.get(state.id, [])
        self._taken[state.id] = [*known, Taken(batches[0].offset, end, path, times)]
        self._engine.release(state.id, end)
        self.flushes += 1

    # -- HistorySource ---------------------------------------------------------------------------

    def range(self, topic: int) -> OffsetRange:
        taken = self._taken.get(topic)
        return OffsetRange(taken[0].first, taken[-1].end) if taken else OffsetRange(0, 0)

    def read(self, topic: int, *, offset: int, bytes_max: int) -> Piece:
        taken = self._taken.get(topic, [])
        number = bisect_right(taken, offset, key=lambda each: each.first) - 1
        if number < 0:
            raise NotFound("offset is below what was taken over", offset=offset)
        found = taken[number]
        if offset >= found.end:
            return Piece([], offset)
        with pa.memory_map(found.path) as file:
            data = pa.ipc.open_file(file).read_all().combine_chunks().to_batches()[0]
        batch = Batch(data, offset=found.first, times=found.times).slice(offset - found.first)
        if data.nbytes > bytes_max:
            share = bytes_max / data.nbytes
            batch = batch.slice(0, max(1, int(data.num_rows * share)))
        return Piece([batch], batch.offset_next)

    def offset_at(self, topic: int, *, time_us: int) -> int | None:
        for found in self._taken.get(topic, []):
            offset = found.first
            for count, us in found.times:
                if us >= time_us:
                    return offset
                offset += count
        return None

    def pin(self, topic: int, *, offset: int) -> NoPin:
        del topic
        return NoPin(offset)
