"""Opening a journal whose last segment was never sealed, against reading the file + CRC."""

from __future__ import annotations

import os
import shutil
import time

import msgspec

from bench.baselines import read_and_sum
from bench.harness import Bench, Row, absolute, compare, in_turn
from frazil.clock import SystemClock
from frazil.config import Settings
from frazil.fs import RealFileSystem
from frazil.log import PLAIN, Control, Journal, Untracked
from frazil.log import format as fmt
from frazil.model import TopicSpec

FRAMES_MIN = 500_000
LARGE_BYTES = 64 << 10


class SoloPlain(Untracked):
    """Payload-only records, each in a frame of its own even where a group has many."""

    solo = True
    version = 0

    def encode(self, records):
        return PLAIN.encode([records])

    def upgraded(self, data, *, many):
        del many
        return self, data


def run(bench: Bench) -> list[Row]:
    repetitions = bench.pick(5, 3)
    large_frames = bench.pick(1 << 30, 192 << 20) // LARGE_BYTES
    source = bench.fresh("large")
    _generate(source, payload=os.urandom(LARGE_BYTES), frames=large_frames, group=64)
    large = in_turn(_sides(bench, source), repetitions)
    shutil.rmtree(source)
    small_frames = bench.pick(2_000_000, 300_000)
    source = bench.fresh("small")
    _generate(source, payload=os.urandom(100), frames=small_frames, group=1000)
    small = in_turn(_sides(bench, source), repetitions)
    rate = [small_frames / seconds for seconds in small["open"]]
    return [
        compare(
            "recovery, frames of 64 KiB in one unsealed segment",
            large["open"],
            large["read"],
            "s",
            ratio_max=1.5,
        ),
        absolute("recovery, frames of one record", rate, "frames/s", value_min=FRAMES_MIN),
        compare("recovery, frames of one record: time", small["open"], small["read"], "s"),
    ]


def _open(directory: str) -> Journal:
    settings = Settings(log={"segment_bytes_max": 2 << 30})
    return Journal.open(
        RealFileSystem(),
        directory,
        clock=SystemClock(),
        settings=settings.log,
        producers=settings.producers,
    )


def _generate(directory: str, *, payload: bytes, frames: int, group: int) -> None:
    """Write one segment of synced frames and leave it as a crash would: neither closed nor sealed."""
    journal = _open(directory)
    spec = TopicSpec(id=1, name="/default/recovered", kind="message", created_us=1)
    control = Control(fmt.KIND_TOPIC, 1, msgspec.msgpack.encode(spec))
    _commit(journal, [(None, None, control, 0, 0, None, None)])
    entry = (journal.state.topics[1], SoloPlain(), payload, 1, len(payload) + 8, None, None)
    left = frames
    while left:
        count = min(group, left)
        _commit(journal, [entry] * count)
        left -= count
    journal.write_marker()
    if len(journal.segments) != 1:
        raise SystemExit("the segment was rotated: there is nothing left to recover")


def _commit(journal: Journal, entries: list) -> None:
    journal.commit(entries, lambda _waiters, _results: None)
    if journal.failed is not None:
        raise SystemExit(f"journal failed: {journal.failed}")


def _sides(bench: Bench, source: str):
    """Both sides read a fresh copy that is in the page cache as a whole."""

    def copy() -> str:
        path = bench.fresh("copy")
        shutil.copytree(source, path)
        # Written back before the clock starts: after a crash there are no dirty pages either.
        os.sync()
        return path

    def read() -> float:
        path = copy()
        return read_and_sum([os.path.join(path, name) for name in os.listdir(path)])[1]

    def recover() -> float:
        path = copy()
        begin = time.perf_counter()
        journal = _open(path)
        seconds = time.perf_counter() - begin
        report = journal.report
        journal.close()
        if report.lost or report.bytes_torn:
            raise SystemExit(f"recovery lost what was synced: {report}")
        return seconds

    return {"open": recover, "read": read}
