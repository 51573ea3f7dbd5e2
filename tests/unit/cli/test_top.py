"""The figures of `frazil top`: rates of two samples, samples of running engines only."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from rich.console import Console

from frazil.cli.top import RunningEngine, Sample, rates_of, render
from frazil.errors import NotFound
from frazil.fs import write_fully
from tests.support import SimulatedClock, SimulatedFileSystem


def stats(head, *, written=0, flushed=0, zone="green"):
    """The statistics of an engine, shortened to what is shown."""
    return {
        "data_dir": "d",
        "health": "ok",
        "journal": {"bytes_written": written, "syncs": written // 10},
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


def shown(sample, before=None):
    console = Console(width=250)
    with console.capture() as captured:
        console.print(render(sample, before or sample))
    return captured.get()


def test_rates_are_differences_over_the_time_between():
    """Records, bytes, syncs and flushes are counted a second, of the engine and of each topic."""
    before = Sample(1_000_000, 7, stats(100, written=1000, flushed=50))
    assert rates_of(Sample(3_000_000, 7, stats(300, written=2000, flushed=250)), before) == {
        "records": 100.0,
        "log_bytes": 500.0,
        "syncs": 50.0,
        "flushed_bytes": 100.0,
        "/default/t": 100.0,
    }


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
    found = rates_of(Sample(2_000_000, 7, stats(300)), before)
    assert found["records"] is None
    assert found["/default/t"] is None


def test_an_engine_without_tiers_is_shown():
    """With the memory tier off there are watermarks and rates, and no figures of tiers."""
    plain = stats(5)
    plain["tiers"] = None
    del plain["per_topic"]["/default/t"]["tiers"]
    assert "/default/t" in shown(Sample(1, 7, plain))


def test_the_view_has_everything():
    """Zone, memory, files, signals, watermarks, latencies, rates, errors and the lake are shown."""
    before = Sample(1_000_000, 7, stats(100))
    lake = {"worker": {"restarts": 41}, "totals": {"lag_seconds": 12.34}, "topics": {"t": 1}}
    more = {"lake": lake, "objects": {"why": "never shown", "topics": {}}}
    text = shown(Sample(2_000_000, 7, stats(1300, zone="yellow") | more), before)
    for word in (
        *("zone yellow", "budget_bytes 2 GB", "1.5 GB", "delays 7", "refusals 2", "files 6"),
        *("5 kB", "offsets 4, age 1", "1,300", "40", "30", "777 B", "11", "OSError: full"),
        *("0.50 ms", "2.50 ms", "1,200 records/s", "pid 7", "restarts 41", "lag_seconds 12.3"),
    ):
        assert word in text, word
    assert "never shown" not in text


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
        fields = {"time_us": self.clock.now_us(), "pid": os.getppid(), "stats": {"health": "ok"}}
        return json.dumps({**fields, **changes}).encode()


def test_a_running_engine_is_found_by_its_file():
    """A fresh file of a process that lives is a running engine; its sample is the content of its file."""
    place = Place()
    assert not place.engine.find()
    place.write(place.sample())
    assert place.engine.find()
    assert place.engine.sample() == Sample(place.clock.now_us(), os.getppid(), {"health": "ok"})


def test_a_dead_process_is_no_running_engine():
    """A file that a killed process left is not taken for a running engine."""
    process = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    place = Place()
    place.write(place.sample(pid=process.pid))
    assert place.engine.find()
    process.communicate(b"\n")
    assert not place.engine.find()


OTHERS = {
    "an old file": {"time_us": 1},
    "this process": {"pid": os.getpid()},
    "no process": {"pid": 0},
    "a process group": {"pid": -1},
    "an impossible process": {"pid": 2**70},
    "another type": {"stats": 1},
}


@pytest.mark.parametrize("fields", OTHERS.values(), ids=OTHERS)
def test_samples_of_no_running_engine_are_not_found(fields):
    """An old file, one of this very process, of no process, and junk are no running engine."""
    place = Place()
    place.write(place.sample(**fields))
    assert place.engine.find() is None
    with pytest.raises(NotFound):
        place.engine.sample()


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"time_us": 1}', b"\xff"])
def test_a_file_that_is_no_sample_is_ignored(data):
    """Junk is no sample and no error."""
    place = Place()
    place.write(data)
    assert place.engine.find() is None
