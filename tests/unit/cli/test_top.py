"""The figures of `frazil top`: rates of two samples, samples of running engines only."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import pytest
from rich.console import Console

from frazil.cli.top_figures import Sample, figures
from frazil.cli.top_source import RunningEngine, is_alive, parse_sample
from frazil.cli.top_view import render
from frazil.errors import NotFound
from frazil.fs import write_fully
from tests.support import SimulatedClock, SimulatedFileSystem


def stats(head, *, written=0, flushed=0, zone="green"):
    """What an engine tells, shortened to what is shown."""
    return {
        "data_dir": "d",
        "health": "ok",
        "journals": [{"bytes_written": written, "syncs": written // 10}],
        "tiers": {
            "pressure": {
                "zone": zone,
                "percent": 61.4,
                "used_bytes": 1_300_000_000,
                "budget_bytes": 2_000_000_000,
                "rss_bytes": 1_500_000_000,
                "sources": {"batches": 1_200_000_000},
                "entries": {"yellow": 3},
                "delays": 7,
                "refusals": 2,
            },
            "signals_fired": {"offsets": 4, "age": 1},
            "disk": {"bytes": 5000, "bytes_max": 10**11, "purposes": {"staging": 5000}, "files": 6},
            "commit_queue": [{"topic": "/default/t"}],
            "errors": {"flush /default/t": "OSError: full"},
        },
        "latencies": {"ack": {"p50_us": 500.0, "p99_us": 2500.0, "count": 12}},
        "per_topic": {
            "/default/t": {
                "start": 0,
                "durable": head,
                "head": head,
                "bytes_stored": 9,
                "tiers": {
                    "flushed": 40,
                    "memory_start": 30,
                    "memory_bytes": 777,
                    "flushes": 2,
                    "flushed_bytes": flushed,
                    "signal_last": "offsets",
                    "index": {"keys": 11},
                },
            }
        },
    }


def shown(found, kind="running"):
    console = Console(width=250)
    with console.capture() as captured:
        console.print(render(found, kind=kind))
    return captured.get()


def test_rates_are_differences_over_the_time_between():
    """Records, bytes, syncs and flushes are counted a second, of the engine and of each topic."""
    before = Sample(1_000_000, 7, stats(100, written=1000, flushed=50))
    found = figures(Sample(3_000_000, 7, stats(300, written=2000, flushed=250)), before)
    assert found["rates"] == {
        "records": 100.0,
        "log_bytes": 500.0,
        "syncs": 50.0,
        "flushed_bytes": 100.0,
    }
    assert found["topics"][0]["records_rate"] == 100.0


@pytest.mark.parametrize(
    "before",
    [
        Sample(2_000_000, 7, stats(300)),
        Sample(1_000_000, 8, stats(300)),
        Sample(1_000_000, 7, stats(400)),
    ],
    ids=["the same time", "another process", "counters that began anew"],
)
def test_without_a_past_there_is_no_rate(before):
    """One sample, another engine's sample or one from before a restart give no rate of records."""
    found = figures(Sample(2_000_000, 7, stats(300)), before)
    assert found["rates"]["records"] is None
    assert found["topics"][0]["records_rate"] is None
    assert found["topics"][0]["head"] == 300


def test_an_engine_without_tiers_is_shown():
    """With the memory tier off there are watermarks and rates, and no figures of tiers."""
    plain = stats(5)
    plain["tiers"] = plain["latencies"] = None
    del plain["per_topic"]["/default/t"]["tiers"]
    found = figures(Sample(1, 7, plain), Sample(1, 7, plain))
    assert found["zone"] is None
    assert "/default/t" in shown(found)


def test_the_view_has_everything():
    """Zone, memory, files, purposes, signals, watermarks, latencies, rates and errors are shown."""
    before = Sample(1_000_000, 7, stats(100))
    text = shown(figures(Sample(2_000_000, 7, stats(1300, zone="yellow")), before))
    for word in (
        *("yellow", "61 % of 2 GB", "1.5 GB", "batches 1.2 GB", "yellow 3", "7 delayed, 2 refused"),
        *("6", "5 kB", "staging 5 kB", "offsets 4, age 1", "1,300", "40", "30", "777 B", "11"),
        *("0.50 ms", "2.50 ms", "1,200 records/s", "pid 7", "error in flush /default/t"),
    ):
        assert word in text, word
    assert "opened by this command" in shown(figures(before, before), kind="opened")


class Place:
    """A directory with the file of an engine."""

    def __init__(self):
        self.file_system = SimulatedFileSystem()
        self.file_system.make_directory("/run")
        self.clock = SimulatedClock(step_us=0)
        self.engine = RunningEngine(self.file_system, "/run", clock=self.clock)

    def write(self, data):
        file = self.file_system.open("/run/stats.json", "create")
        write_fully(file, 0, [data])
        file.close()

    def sample(self, **changes):
        told = {"time_us": self.clock.now_us(), "pid": os.getppid(), "stats": {"health": "ok"}}
        return json.dumps({**told, **changes}).encode()


def test_a_running_engine_is_found_by_its_file():
    """A fresh file of a process that lives is a running engine; its sample is what it told."""
    place = Place()
    assert not place.engine.is_there()
    place.write(place.sample())
    assert place.engine.is_there()
    assert place.engine.sample() == (place.clock.now_us(), os.getppid(), {"health": "ok"})


def test_an_old_file_is_no_running_engine():
    """If the file is not renewed the engine counts as ended."""
    place = Place()
    place.write(place.sample(time_us=place.clock.now_us() - 60_000_000))
    assert not place.engine.is_there()
    with pytest.raises(NotFound):
        place.engine.sample()


def test_what_this_process_left_is_no_running_engine():
    """A file with the number of this very process is not another engine."""
    place = Place()
    place.write(place.sample(pid=os.getpid()))
    assert not place.engine.is_there()


def test_a_dead_process_is_no_running_engine():
    """A file that a killed process left is not taken for a running engine."""
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    place = Place()
    place.write(place.sample(pid=process.pid))
    assert place.engine.is_there()
    process.communicate(b"\n")
    assert not is_alive(process.pid)
    assert not place.engine.is_there()


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"time_us": 1}', b'{"time_us":"x"}', b"\xff"])
def test_a_file_that_is_no_sample_is_passed_over(data):
    """Junk is no sample and no error."""
    place = Place()
    place.write(data)
    assert parse_sample(data) is None
    assert not place.engine.is_there()


@pytest.mark.parametrize("pid", [0, -1, 2**70])
def test_impossible_processes_are_not_alive(pid):
    """Numbers that no process has are not asked for."""
    assert not is_alive(pid)


def test_the_lake_is_shown_where_a_topic_has_one():
    """Commits, lag, restarts of the worker and stopped topics are in one row."""
    lake = {
        "state": "running",
        "worker": {"state": "ready", "restarts": 41},
        "totals": {
            "commits": 1234,
            "rows": 56789,
            "bytes": 10_000_000,
            "rejected": 77,
            "lag_records": 888,
            "lag_bytes": 4_000_000,
            "lag_seconds": 12.34,
            "commit_seconds": {"count": 5, "p50": 0.81, "p99": 2.75, "max": 3.0},
            "states": {"running": 1, "stopped": 6},
        },
        "topics": {"/default/t": {}},
    }

    def shown(found):
        sample = Sample(2_000_000, 1, stats(100) | found)
        console = Console(width=250, record=True, file=io.StringIO())
        console.print(render(figures(sample, sample), kind="running"))
        return console.export_text()

    text = shown({"lake": lake})
    for word in ("ready", "41", "1,234", "56,789", "77", "888", "12.3 s", "0.81 s, 2.75 s", "6"):
        assert word in text
    assert "restarts" in text
    assert "restarts" not in shown({"lake": {"state": "off", "topics": {}}})


def test_the_object_store_is_shown_where_topics_are_uploaded():
    """Objects, what is behind, failures and stopped topics are in one row; marks with the topics."""
    objects = {
        "state": "running",
        "store": "s3",
        "root": "s3://bucket/root",
        "totals": {
            "objects": 4321,
            "bytes": 10_000_000,
            "objects_uploaded": 1234,
            "bytes_uploaded": 20_000_000,
            "lag_records": 888,
            "lag_bytes": 4_000_000,
            "lag_seconds": 12.34,
            "failures": 99,
            "states": {"running": 1, "stopped": 7},
        },
        "topics": {"/default/t": {}},
    }
    sample = Sample(2_000_000, 1, stats(100) | {"objects": objects})
    console = Console(width=250, record=True, file=io.StringIO())
    console.print(render(figures(sample, sample), kind="running"))
    text = console.export_text()
    for word in ("s3://bucket/root", "4,321", "1,234", "888", "12.3 s", "99", "7"):
        assert word in text
