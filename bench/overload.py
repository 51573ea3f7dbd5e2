"""More load than flushes can take: `python bench/overload.py [--seconds 60] [--directory D]`.

Producers offer three times what the throttled flushes write, with a budget of 256 MB. Every zone
must be entered and left, memory must stay below the budget and a stated base, nothing that was
acked may be missing, and the engine must be green again soon after the load has ended. Prints the
figures as JSON and returns 1 if one of these does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from frazil.tiers import topic_tiers

if TYPE_CHECKING:
    import pyarrow as pa

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUDGET_BYTES = 256 << 20
BASE_BYTES = 512 << 20
"""What the process may have beside its budget: the interpreter, libraries, buffers of the log."""
GREEN_S_MAX = 10.0
PRODUCERS = 4
TOPICS = 4
BATCH_BYTES = 256 << 10
RECORD_BYTES = 1024
SETTINGS = {
    "memory.budget_bytes": BUDGET_BYTES,
    "memory.wait_s": 0.3,
    "log.segment_bytes_max": 32 << 20,
    "disk.log_keep_s": 0.0,
}


class Throttle:
    """Lets flushes write so many bytes a second, and no more."""

    def __init__(self, bytes_per_s: float) -> None:
        self._rate = bytes_per_s
        self._free_at = time.monotonic()
        self.written = 0
        flush = self._flush = topic_tiers.flush_set

        def throttled(disk: object, *, batches: Iterable[pa.RecordBatch], **rest: object) -> object:
            return flush(disk, batches=self._slowly(batches), **rest)

        topic_tiers.flush_set = throttled

    def close(self) -> None:
        """Let flushes write as fast as they can."""
        topic_tiers.flush_set = self._flush

    def _slowly(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            self._wait(batch.nbytes)
            yield batch

    def _wait(self, size: int) -> None:
        self.written += size
        now = time.monotonic()
        self._free_at = max(self._free_at, now) + size / self._rate
        if self._free_at > now:
            time.sleep(self._free_at - now)


class Load:
    """Producers at a steady pace; what was acked is counted by topic."""

    def __init__(self, engine, bytes_per_s: float, seconds: float) -> None:
        self.engine = engine
        self.pause_s = BATCH_BYTES * PRODUCERS / bytes_per_s
        self.end = time.monotonic() + seconds
        self.acked = [0] * PRODUCERS
        self.offered = 0
        self.refused = 0
        self.retry_after: list[int] = []
        self.problems: list[str] = []

    def run(self) -> None:
        threads = [threading.Thread(target=self._guard, args=(n,)) for n in range(PRODUCERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _guard(self, number: int) -> None:
        try:
            self._produce(number)
        except Exception as error:  # noqa: BLE001 - the thread's top: it ends up in the figures
            self.problems.append(f"producer {number}: {type(error).__name__} {error}")

    def _produce(self, number: int) -> None:
        from frazil.errors import Overloaded

        topic = self.engine.topic(f"load{number % TOPICS}")
        due = time.monotonic()
        while time.monotonic() < self.end:
            # Random bytes, so that files are as large as what was offered.
            noise = os.urandom(BATCH_BYTES)
            payloads = [noise[at : at + RECORD_BYTES] for at in range(0, BATCH_BYTES, RECORD_BYTES)]
            self.offered += BATCH_BYTES
            try:
                ack = topic.append_many(payloads)
            except Overloaded as error:
                self.refused += 1
                self.retry_after.append(error.details.get("retry_after_ms", -1))
            else:
                self.acked[number] += ack.offset_last - ack.offset + 1
            # A publisher that was held back does not catch up later.
            due = max(due + self.pause_s, time.monotonic())
            time.sleep(max(due - time.monotonic(), 0))


class Watch:
    """Samples zones and resident memory while something runs."""

    def __init__(self, engine) -> None:
        self._pressure = engine.tiers.pressure
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.zones: list[str] = []
        self.rss_max = 0
        self.accounted_max = 0

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        # The end counts, too: the thread may have slept through it.
        self._look()

    def _run(self) -> None:
        while not self._stop.wait(0.02):
            self._look()

    def _look(self) -> None:
        facts = self._pressure.snapshot()
        if not self.zones or self.zones[-1] != facts.zone:
            self.zones.append(facts.zone)
        self.rss_max = max(self.rss_max, facts.rss_bytes)
        self.accounted_max = max(self.accounted_max, facts.accounted_bytes)


def wait_for_green(engine) -> float:
    """Return the seconds until the zone is green."""
    begin = time.monotonic()
    while engine.tiers.pressure.snapshot().zone != "green":
        if time.monotonic() > begin + 6 * GREEN_S_MAX:
            break
        time.sleep(0.02)
    return time.monotonic() - begin


def ask(engine, sql: str) -> list:
    """Run a query; publishes come before it while memory is short, so it may have to try again."""
    from frazil.errors import Overloaded, Unavailable

    for _ in range(20):
        try:
            return engine.query(sql).rows()
        except (Overloaded, Unavailable):
            time.sleep(0.5)
    raise SystemExit(f"no answer: {sql}")


def wait_for_sync(topic) -> None:
    """Wait for the periodic sync: readers and SQL see durable records only."""
    while (marks := topic.describe()["watermarks"])["durable"] < marks["head"]:
        time.sleep(0.02)


def count_records(engine) -> int:
    """Read every topic to its end and return how many records it gave, each offset once."""
    total = 0
    for number in range(TOPICS):
        expected = 0
        topic = engine.topic(f"load{number}")
        wait_for_sync(topic)
        for batch in topic.read():
            if batch.offset != expected:
                raise SystemExit(f"load{number}: offset {batch.offset} instead of {expected}")
            expected = batch.offset_next
        total += expected
        [(rows, last)] = ask(engine, f"SELECT count(*), max(_offset) FROM load{number}")
        if rows != expected or last != expected - 1:
            raise SystemExit(f"load{number}: SQL counts {rows} up to {last} of {expected}")
    return total


def overload(directory: str, *, seconds: float, bytes_per_s: float) -> dict:
    """Run the load; return figures, with `problems` if something did not hold."""
    import frazil

    options = {"log.free_ratio_min": 0.0, "log.free_bytes_min": 0, **SETTINGS}
    with frazil.open(directory, **options) as engine:
        for number in range(TOPICS):
            engine.create_topic(f"load{number}", sync="periodic")
        throttle = Throttle(bytes_per_s / 3)
        load = Load(engine, bytes_per_s, seconds)
        with Watch(engine) as watch:
            load.run()
            written = throttle.written
            green_s = wait_for_green(engine)
            green_bytes = throttle.written - written
        facts = engine.tiers.pressure.snapshot()
        throttle.close()
        found = count_records(engine)
    problems = list(load.problems)
    acked = sum(load.acked)
    if found != acked:
        problems.append(f"{found} records of {acked} acked ones are there")
    if watch.rss_max > BUDGET_BYTES + BASE_BYTES:
        problems.append("resident memory is above budget and base")
    missing = [zone for zone in ("yellow", "red", "green") if not facts.entries.get(zone)]
    if missing:
        problems.append(f"zones never entered: {missing}")
    if not load.refused or min(load.retry_after) <= 0:
        problems.append("no publish was refused with a time to come back")
    return {
        "seconds": seconds,
        "offered_mb_per_s": bytes_per_s / 1e6,
        "tried_mb": load.offered / 1e6,
        "acked_mb": acked * RECORD_BYTES / 1e6,
        "flushed_mb": throttle.written / 1e6,
        "acked_records": acked,
        "found_records": found,
        "refused": load.refused,
        "rss_max_mb": watch.rss_max / 1e6,
        "rss_bar_mb": (BUDGET_BYTES + BASE_BYTES) / 1e6,
        "accounted_max_mb": watch.accounted_max / 1e6,
        "green_s": green_s,
        "green_s_bar": GREEN_S_MAX,
        "green_mb": green_bytes / 1e6,
        "budget_mb": BUDGET_BYTES / 1e6,
        "zones": watch.zones,
        "entries": facts.entries,
        "problems": problems,
    }


def main() -> int:
    sys.path[0] = ROOT
    from bench import harness

    parser = argparse.ArgumentParser(description="Load beyond what flushes can take.")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--mb-per-s", type=float, default=60.0)
    parser.add_argument("--directory", default=os.path.join(ROOT, "data-bench"))
    arguments = parser.parse_args()
    with harness.scratch(arguments.directory) as directory:
        path = os.path.join(directory, "engine")
        rate = arguments.mb_per_s * 1e6
        facts = overload(path, seconds=arguments.seconds, bytes_per_s=rate)
    print(json.dumps(facts, indent=2))
    return 1 if facts["problems"] or facts["green_s"] > GREEN_S_MAX else 0


if __name__ == "__main__":
    raise SystemExit(main())
