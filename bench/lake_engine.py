"""An engine whose lake runs: catalog and worker are there, and the first commit is done."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bench import workload

if TYPE_CHECKING:
    import frazil

START_S_MAX = 300.0


@contextlib.contextmanager
def lake_engine(path: str, *, interval_s: float, **settings: Any) -> Iterator[frazil.Engine]:
    """Open an engine with the defaults, but for the commit interval and a free port."""
    given = {"lake.writer.flush_interval": interval_s, "lake.catalog.port": 0, **settings}
    with workload.open_engine(path, **given) as engine:
        yield engine


def begin(engine: frazil.Engine, topic: frazil.Topic, *, commits: int = 1) -> None:
    """Start the lake and wait until a topic has been committed so often, with a row each time."""
    engine.lake.start()
    for number in range(commits):
        topic.append(workload.row(-1 - number))
        wait_committed(engine, topic)


def wait_committed(engine: frazil.Engine, topic: frazil.Topic) -> None:
    """Wait until everything that a topic has is in its table."""
    head = topic.describe()["watermarks"]["head"]
    deadline = time.monotonic() + START_S_MAX
    while committed(engine, topic) < head:
        if time.monotonic() > deadline:
            raise SystemExit(f"the lake does not get there: {engine.lake.status()}")
        time.sleep(0.005)


def committed(engine: frazil.Engine, topic: frazil.Topic) -> int:
    """Return how far a table is."""
    return engine.lake.committed(topic.name).get(-1, 0)


def resident_mb(pid: int) -> float:
    """Return how much memory a process has in RAM."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1e3


def java_option(pid: int, prefix: str) -> str:
    """Return what follows a prefix in the options that a JVM was started with."""
    with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
        options = file.read().split("\0")
    return next(each.removeprefix(prefix) for each in options if each.startswith(prefix))
