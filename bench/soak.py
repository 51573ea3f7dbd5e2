"""Everything at once for a while: `python bench/soak.py [--minutes 10]`.

Producers of all kinds, readers, tails, holds, rotation, retention, a lake, and a restart now and
then. At the end every producer's records are accounted for, those of the lake in its table, and
memory and descriptors must not have grown.
Then ten minutes of more load than flushes can take (`bench/overload.py`), in a process of its own.
Prints one line for the record of runs and returns 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RESTART_S = 45.0
RESIDENT_GROWTH_MAX_BYTES = 150_000_000
DESCRIPTOR_GROWTH_MAX = 16
SETTINGS = {
    "log.segment_bytes_max": 8 << 20,
    "log.write_bytes_max": 2 << 20,
    "log.retention_bytes": 64 << 20,
    "log.retention_age_s": 30.0,
    "lake.writer.flush_interval": 5.0,
    "lake.catalog.port": 0,
}


class Ledger:
    """What was published and what was seen, over all restarts."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.acked: dict[str, int] = {}
        """Topic -> the number of records acked; offsets are dense, so it is the head too."""
        self.seen: dict[str, int] = {}
        """Reader -> the offset it expects next."""
        self.repeats = 0
        self.restarts = 0
        self.batches_read = 0
        self.committed = 0
        self.problems: list[str] = []
        self.lock = threading.Lock()

    def ack(self, topic: str, ack) -> None:
        with self.lock:
            self.acked[topic] = max(self.acked.get(topic, 0), ack.offset_last + 1)

    def problem(self, text: str) -> None:
        with self.lock:
            self.problems.append(text)


class Round:
    """One life of the engine: everything runs until its time is up, then the engine is closed."""

    def __init__(self, engine, ledger: Ledger) -> None:
        self.engine = engine
        self.ledger = ledger
        self.stop = threading.Event()

    def run(self, seconds: float) -> None:
        jobs = [
            (self.messages, "plain"),
            (self.messages, "plain"),
            (self.envelopes, "envelopes"),
            (self.rows, "rows"),
            (self.many, "many"),
            (self.arrow, "arrow"),
            (self.idempotent, "once"),
            (self.relaxed, "periodic"),
            (self.rows, "lake"),
            (self.tails, "plain"),
            (self.tails, "arrow"),
            (self.scans, "rows"),
            (self.holds, "many"),
        ]
        threads = [threading.Thread(target=self._guard, args=job) for job in jobs]
        for thread in threads:
            thread.start()
        self.stop.wait(seconds)
        self.stop.set()
        for thread in threads:
            thread.join()

    def _guard(self, job, topic: str) -> None:
        try:
            job(topic)
        except Exception as error:  # noqa: BLE001 - the thread's top: it ends up in the record
            self.ledger.problem(f"{job.__name__} of {topic}: {type(error).__name__} {error}")
            self.stop.set()

    # -- producers -------------------------------------------------------------------------------

    def _publish(self, topic: str, call) -> None:
        while not self.stop.is_set():
            self.ledger.ack(topic, call())
            time.sleep(0.001)

    def messages(self, topic: str) -> None:
        handle, payload = self.engine.topic(topic), os.urandom(200)
        self._publish(topic, lambda: handle.append(payload))

    def envelopes(self, topic: str) -> None:
        handle = self.engine.topic(topic)
        self._publish(topic, lambda: handle.append(b"x" * 50, key="k", attributes={"a": "b"}))

    def rows(self, topic: str) -> None:
        from bench import workload

        handle = self.engine.topic(topic)
        self._publish(topic, lambda: handle.append(workload.row(1)))

    def many(self, topic: str) -> None:
        handle = self.engine.topic(topic)
        self._publish(topic, lambda: handle.append_many([b"y" * 100] * 50))

    def arrow(self, topic: str) -> None:
        from bench import workload

        handle, batch = self.engine.topic(topic), workload.arrow_batch(1)

        def call():
            time.sleep(0.01)
            return handle.append_arrow(batch)

        self._publish(topic, call)

    def idempotent(self, topic: str) -> None:
        """Publish with sequences, some of them twice: a repeat gets the first ack."""
        handle = self.engine.topic(topic)
        while not self.stop.is_set():
            sequence = self.ledger.acked.get(topic, 0)
            first = handle.append(b"once", producer="p", sequence=sequence)
            if first.offset != sequence:
                self.ledger.problem(f"sequence {sequence} got offset {first.offset}")
            if self.ledger.random.random() < 0.2:
                self.ledger.repeats += 1
                if handle.append(b"once", producer="p", sequence=sequence) != first:
                    self.ledger.problem(f"the repeat of {sequence} got another ack")
            self.ledger.ack(topic, first)
            time.sleep(0.002)

    def relaxed(self, topic: str) -> None:
        handle = self.engine.topic(topic)
        self._publish(topic, lambda: handle.append(b"z" * 300))

    # -- readers ---------------------------------------------------------------------------------

    def tails(self, topic: str) -> None:
        """Follow a topic over restarts; every record comes once and in order."""
        name = f"tail of {topic}"
        start = self.ledger.seen.get(name, 0)
        handle = self.engine.topic(topic)
        with handle.tail(start, timeout_s=5.0) as reader:
            for number, batch in enumerate(reader, 1):
                self._check(name, batch)
                if number % 50 == 0:
                    handle.advance("soak", batch.offset_next)
                if self.stop.is_set():
                    return

    def scans(self, topic: str) -> None:
        """Read a topic from its first record again and again, while retention takes it away."""
        while not self.stop.is_set():
            expected = None
            for batch in self.engine.topic(topic).read():
                if expected is not None and batch.offset != expected:
                    self.ledger.problem(f"scan of {topic}: {batch.offset} instead of {expected}")
                expected = batch.offset_next
                self.ledger.batches_read += 1
                if self.stop.is_set():
                    return
            time.sleep(0.2)

    def holds(self, topic: str) -> None:
        """Move a hold along and read what it keeps."""
        handle = self.engine.topic(topic)
        while not self.stop.is_set():
            held = handle.describe()["holds"]["soak"]
            for batch in handle.read(held, limit=20_000):
                held = batch.offset_next
                self.ledger.batches_read += 1
            handle.advance("soak", held)
            time.sleep(0.25)

    def _check(self, name: str, batch) -> None:
        expected = self.ledger.seen.get(name, 0)
        if batch.offset != expected:
            self.ledger.problem(f"{name}: {batch.offset} instead of {expected}")
        self.ledger.seen[name] = batch.offset_next
        self.ledger.batches_read += 1


def prepare(engine) -> None:
    """Make the topics."""
    from bench import workload

    for name in ("plain", "envelopes", "many", "once"):
        engine.create_topic(name)
    engine.create_topic("rows", workload.COLUMNS)
    engine.create_topic("arrow", workload.BATCH_COLUMNS)
    engine.create_topic("periodic", sync="periodic")
    engine.create_topic("lake", workload.COLUMNS, lake=True)
    for name in ("plain", "arrow", "many"):
        engine.topic(name).hold("soak", 0)


def verify(engine, ledger: Ledger) -> int:
    """Compare every head with what was acked; return the number of records."""
    for topic, count in ledger.acked.items():
        facts = engine.topic(topic).stats()
        if facts["head"] != count:
            ledger.problem(f"{topic} ends at {facts['head']}, acked were {count}")
        # What retention has let go, the log may still have for a while.
        held = sum(batch.count for batch in engine.topic(topic).read(facts["start"]))
        if held != facts["message_count"]:
            ledger.problem(f"{topic} gave {held} records of {facts['message_count']}")
    stats = engine.stats()
    if stats["health"] != "ok" or stats["warnings"]:
        ledger.problem(f"health {stats['health']}, warnings {stats['warnings']}")
    verify_lake(engine, ledger)
    return sum(ledger.acked.values())


def verify_lake(engine, ledger: Ledger) -> None:
    """Compare the rows of the table with what was acked, as another program reads them."""
    from frazil.lake.connection import connect

    engine.lake.flush("lake")
    table = connect(engine.lake.catalog.address()).load_table(("default", "lake"))
    offsets = table.scan(selected_fields=("_offset",)).to_arrow().column(0).to_pylist()
    ledger.committed = len(offsets)
    if sorted(offsets) != list(range(ledger.acked["lake"])):
        ledger.problem(
            f"table has {len(offsets)} rows of {len(set(offsets))} offsets, "
            f"acked were {ledger.acked['lake']}"
        )


def soak(directory: str, minutes: float, ledger: Ledger) -> dict[str, float]:
    """Run lives of the engine until the time is up; return the figures of the run."""
    from bench import harness, workload
    from frazil.engine import upkeep

    path = os.path.join(directory, "engine")
    upkeep.RETENTION_CHECK_S = 0.5
    with workload.open_engine(path, **SETTINGS) as engine:
        prepare(engine)
    begin = time.monotonic()
    end = begin + minutes * 60
    resident: list[int] = []
    descriptors: list[int] = []
    disk_max = freed = 0
    while time.monotonic() < end and not ledger.problems:
        with workload.open_engine(path, **SETTINGS) as engine:
            Round(engine, ledger).run(min(RESTART_S, max(1.0, end - time.monotonic())))
            disk_max = max(disk_max, harness.directory_bytes(engine.paths.journal))
            freed += engine.upkeep.segments_freed
        ledger.restarts += 1
        gc.collect()
        resident.append(harness.resident_bytes())
        descriptors.append(len(os.listdir("/proc/self/fd")))
    with workload.open_engine(path, **SETTINGS) as engine:
        records = verify(engine, ledger)
    # The first life fills pools and caches, so growth counts from its end.
    growth = max(resident) - resident[0]
    if growth > RESIDENT_GROWTH_MAX_BYTES:
        ledger.problem(f"resident memory grew by {growth / 1e6:.0f} MB: {resident}")
    if descriptors[-1] - descriptors[0] > DESCRIPTOR_GROWTH_MAX:
        ledger.problem(f"open descriptors grew: {descriptors}")
    return {
        "seconds": time.monotonic() - begin,
        "records": records,
        "segments_freed": freed,
        "disk_max_mb": disk_max / 1e6,
        "resident_growth_mb": growth / 1e6,
        "descriptors": descriptors[-1],
    }


def overload(seconds: float, directory: str, ledger: Ledger) -> None:
    """Run the overload where memory is its own; what it prints is the record of it."""
    script = os.path.join(ROOT, "bench", "overload.py")
    command = [sys.executable, script, "--seconds", str(seconds), "--directory", directory]
    if subprocess.run(command, check=False).returncode:
        ledger.problem("overload: see its problems above")


def main() -> int:
    sys.path[0] = ROOT
    from bench import harness

    parser = argparse.ArgumentParser(description="Load of all kinds with checks.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--overload-seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", default=os.path.join(ROOT, "data-bench"))
    arguments = parser.parse_args()
    ledger = Ledger(arguments.seed)
    with harness.scratch(arguments.directory) as directory:
        facts = soak(directory, arguments.minutes, ledger)
    if arguments.overload_seconds:
        overload(arguments.overload_seconds, arguments.directory, ledger)
    for text in ledger.problems:
        print(f"problem: {text}")
    figures = ", ".join(f"{name} {harness.figure(value)}" for name, value in facts.items())
    print(
        f"soak seed={arguments.seed} commit={harness.commit()}: {figures}, "
        f"restarts {ledger.restarts}, batches read {ledger.batches_read}, "
        f"repeats {ledger.repeats}, rows in the lake {ledger.committed}, "
        f"problems {len(ledger.problems)}"
    )
    return 1 if ledger.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
