"""Reading a topic back, against reading its files and taking their CRC; and what a reader skips."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from bench import workload
from bench.baselines import read_and_sum
from bench.harness import Bench, Row, absolute, compare, in_turn, process_read_bytes
from frazil.engine import frames_of, inspect_journal
from frazil.fs import RealFileSystem
from frazil.log import DataDirectory
from frazil.log import format as fmt

if TYPE_CHECKING:
    import frazil

RECORDS_MIN = 1_000_000
TASKS = 256
BYTES = "bytes of 256 tasks"
DICTS_16 = "frames of 16 dicts"
DICTS = "dicts of 256 tasks"
ROWS = (BYTES, DICTS_16)
"""Their records lie in frames of rows, which is looked at; those of the crowd's dicts are Arrow."""
JUDGED = (*ROWS, DICTS)
ROWS_SHARE_MIN = 0.9


def run(bench: Bench) -> list[Row]:
    return [*_arrow_frames(bench), *_row_frames(bench), *_small_topic(bench)]


def _read(topic: frazil.Topic, count: int) -> float:
    """Read a topic to its end; return the seconds."""
    begin = time.perf_counter()
    found = sum(batch.count for batch in topic.read())
    seconds = time.perf_counter() - begin
    if found != count:
        raise SystemExit(f"read {found} records of {count}")
    return seconds


def _arrow_frames(bench: Bench) -> list[Row]:
    batches = [workload.arrow_batch(number) for number in range(32)]
    count = bench.pick(6000, 1500)
    with workload.open_log(bench.fresh("arrow")) as engine:
        topic = engine.create_topic("batches", workload.BATCH_COLUMNS, sync="periodic")
        for number in range(count):
            topic.append_arrow(batches[number % 32])
        engine.log.queue.call(engine.log.journal.write_marker)
        records = count * workload.ROWS_IN_BATCH
        paths = workload.journal_files(engine)
        stored = topic.stats()["bytes_stored"]

        def baseline() -> float:
            size, seconds = read_and_sum(paths)
            return size / seconds / 1e6

        results = in_turn(
            {
                "ours": lambda: stored / _read(topic, records) / 1e6,
                "files": baseline,
            },
            bench.pick(9, 5),
        )
    return [
        compare("read back, Arrow frames", results["ours"], results["files"], "MB/s", ratio_min=0.7)
    ]


def _row_frames(bench: Bench) -> list[Row]:
    """Rows as publishers leave them: in frames of rows, which are judged, and in other frames."""
    each = bench.pick(1500, 300)
    singles = bench.pick(200_000, 40_000)
    payloads = [os.urandom(100) for _ in range(64)]
    dicts = [workload.row(number) for number in range(64)]
    with workload.open_log(bench.fresh("rows")) as engine:
        topics = {
            BYTES: engine.create_topic("bytes"),
            DICTS_16: engine.create_topic("few-dicts", workload.COLUMNS, sync="periodic"),
            DICTS: engine.create_topic("dicts", workload.COLUMNS),
            "frames of one record, bytes": engine.create_topic("one-bytes", sync="periodic"),
            "frames of one record, dicts": engine.create_topic(
                "one-dict", workload.COLUMNS, sync="periodic"
            ),
        }
        workload.crowd_on(engine, "bytes", payloads, tasks=TASKS, each=each)
        workload.crowd_on(engine, "dicts", dicts, tasks=TASKS, each=each)
        for number in range(singles):
            topics["frames of one record, bytes"].append(payloads[number % 64])
            topics["frames of one record, dicts"].append(dicts[number % 64])
        for _ in range(singles // 16):
            topics[DICTS_16].append_many(dicts[:16])
        engine.log.queue.call(engine.log.journal.write_marker)
        counts = {name: topic.stats()["message_count"] for name, topic in topics.items()}
        results = in_turn(
            {
                name: lambda name=name: counts[name] / _read(topics[name], counts[name])
                for name in topics
            },
            bench.pick(7, 3),
        )
        directory = os.path.dirname(engine.log.journal.directory)
        ids = {name: topic.runtime.state.id for name, topic in topics.items()}
    _check_kinds(directory, {name: ids[name] for name in ROWS})
    return [
        absolute(
            f"read back, {name}",
            results[name],
            "records/s",
            value_min=RECORDS_MIN if name in JUDGED else None,
        )
        for name in topics
    ]


def _check_kinds(directory: str, topics: dict[str, int]) -> None:
    """Look at the frames: a bar on rows is not to be met with records that came out as Arrow."""
    records = {topic: {fmt.KIND_ROWS: 0, fmt.KIND_ARROW: 0} for topic in topics.values()}
    facts = inspect_journal(RealFileSystem(), DataDirectory(directory))
    if facts is None or facts.survey is None:
        raise SystemExit("the journal cannot be read")
    for found in facts.survey.found:
        for frame in frames_of(found):
            head = frame.head
            if head is not None and head.topic in records and head.kind in records[head.topic]:
                records[head.topic][head.kind] += head.records
    for name, topic in topics.items():
        rows, arrow = records[topic][fmt.KIND_ROWS], records[topic][fmt.KIND_ARROW]
        if rows < ROWS_SHARE_MIN * (rows + arrow) or not rows:
            raise SystemExit(f"{name}: {rows} records in frames of rows, {arrow} in Arrow frames")


def _small_topic(bench: Bench) -> list[Row]:
    """A topic with 1 % of a journal's records, one here and one there."""
    rounds = bench.pick(20_000, 4_000)
    path = bench.fresh("small")
    own = [os.urandom(100) for _ in range(64)]
    records = [bytes(100)] * 11
    overrides = {"log.segment_bytes_max": 8 << 20, "log.write_bytes_max": 2 << 20}
    with workload.open_log(path, **overrides) as engine:
        small = engine.create_topic("small", sync="periodic")
        others = [engine.create_topic(f"other-{number}", sync="periodic") for number in range(9)]
        for number in range(rounds):
            small.append(own[number % len(own)])
            for other in others:
                other.append_many(records)
        engine.log.queue.call(engine.log.journal.write_marker)
        rows = _bytes_read(engine, "")
    with workload.open_log(path, **overrides) as engine:
        return rows + _bytes_read(engine, " after a restart")


def _bytes_read(engine: frazil.Engine, when: str) -> list[Row]:
    topic = engine.topic("small")
    facts = topic.stats()
    own = facts["bytes_stored"]
    # Sealing reads segments in the background, and the system counts all reads of a process.
    while engine.log.journal.to_seal:
        time.sleep(0.05)
    time.sleep(0.5)
    journal = engine.stats()["journal"]["bytes_read"]
    process = process_read_bytes()
    _read(topic, facts["message_count"])
    journal = engine.stats()["journal"]["bytes_read"] - journal
    process = process_read_bytes() - process
    title = f"read back, a topic with 1 % of a journal{when}"
    return [
        compare(f"{title}: bytes_read", [journal / 1e6], [own / 1e6], "MB", ratio_max=2.0),
        # The system's own count: it has the indexes of the segments in it too.
        compare(f"{title}: bytes of all reads", [process / 1e6], [own / 1e6], "MB", ratio_max=2.0),
    ]
