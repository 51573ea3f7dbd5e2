"""Memory while much more passes through than the log keeps, with readers that lag behind."""

from __future__ import annotations

import statistics
import threading
import time
from typing import TYPE_CHECKING

from bench import workload
from bench.harness import Bench, Row, absolute, resident_bytes

if TYPE_CHECKING:
    import frazil

GROWTH_MAX_MB = 100.0
PRODUCERS = 4
GB = 1_000_000_000
LAGS_BYTES = (100_000_000, 400_000_000)
SETTINGS = {"log.retention_bytes": 1 << 30}


class Flow:
    """Producers of batches and of single records, and readers that stay behind on purpose."""

    def __init__(self, engine: frazil.Engine, total_bytes: int) -> None:
        self._engine = engine
        self._total = total_bytes
        self._topic = engine.create_topic("batches", workload.BATCH_COLUMNS)
        # A segment goes when all topics in it may go, so the trickle must not keep the rest.
        self._small = engine.create_topic("bytes", retention_bytes=0)
        self.published = 0
        self.read = [0 for _ in LAGS_BYTES]
        self.failures: list[BaseException] = []
        self._done = threading.Event()
        self._lock = threading.Lock()

    def run(self) -> list[tuple[int, int]]:
        """Let everything pass; return samples of (bytes published, resident bytes)."""
        jobs = [(self._produce, number) for number in range(PRODUCERS)]
        jobs += [(self._consume, number) for number in range(len(LAGS_BYTES))]
        jobs += [(self._trickle, 0)]
        threads = [threading.Thread(target=self._guard, args=job) for job in jobs]
        for thread in threads:
            thread.start()
        samples: list[tuple[int, int]] = []
        while self.published < self._total and not self.failures:
            samples.append((self.published, resident_bytes()))
            time.sleep(0.05)
        self._done.set()
        for thread in threads:
            thread.join()
        if self.failures:
            raise self.failures[0]
        return samples

    def _guard(self, job, number: int) -> None:
        try:
            job(number)
        except BaseException as error:  # noqa: BLE001 - the thread's top: `run` raises it again
            self.failures.append(error)
            self._done.set()

    def _produce(self, number: int) -> None:
        batches = [workload.arrow_batch(number * 16 + each) for each in range(16)]
        at = 0
        while not self._done.is_set():
            batch = batches[at % 16]
            self._topic.append_arrow(batch)
            at += 1
            with self._lock:
                self.published += batch.nbytes

    def _trickle(self, _number: int) -> None:
        while not self._done.is_set():
            self._small.append(bytes(100))

    def _consume(self, number: int) -> None:
        with self._topic.tail("earliest", timeout_s=0.2) as reader:
            while not self._done.is_set():
                if self.published - self.read[number] < LAGS_BYTES[number]:
                    time.sleep(0.005)
                    continue
                self.read[number] += next(reader).data.nbytes


def run(bench: Bench) -> list[Row]:
    total = bench.pick(10 * GB, 3 * GB)
    from frazil.engine import upkeep

    upkeep.RETENTION_CHECK_S = 0.5
    with workload.open_log(bench.fresh("engine"), **SETTINGS) as engine:
        begin = time.perf_counter()
        flow = Flow(engine, total)
        samples = flow.run()
        seconds = time.perf_counter() - begin
        stored = engine.stats()["bytes_stored"]
    first = statistics.median(rss for at, rss in samples if GB <= at <= 1.2 * GB)
    later = max(rss for at, rss in samples if at > GB)
    title = f"resident memory over {total / GB:.0f} GB"
    return [
        absolute(f"{title}: growth", [(later - first) / 1e6], "MB", value_max=GROWTH_MAX_MB),
        absolute(f"{title}: after the first GB", [first / 1e6], "MB"),
        absolute(f"{title}: throughput", [total / seconds / 1e6], "MB/s"),
        absolute(f"{title}: on disk at the end", [stored / 1e6], "MB"),
        *[
            absolute(f"{title}: lag of reader {number}", [(flow.published - read) / 1e6], "MB")
            for number, read in enumerate(flow.read)
        ],
    ]
