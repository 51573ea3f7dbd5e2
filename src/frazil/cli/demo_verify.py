"""What the guided run does first: read everything back and compare it with what was acked."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import attrs

from frazil.cli.demo_changes import ChangeTally, rows_of
from frazil.cli.demo_records import Tally
from frazil.errors import CorruptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from frazil.engine import AsyncEngine, Engine

__all__ = ["MESSAGES", "READINGS", "STOCK", "TOPICS", "Verified", "verify"]

MESSAGES: Final = "/demo/messages"
READINGS: Final = "/demo/readings"
STOCK: Final = "/demo/stock"
TOPICS: Final = (MESSAGES, READINGS, STOCK)


@attrs.define
class Verified:
    """What was found, and where each writer goes on."""

    records: int = 0
    acked: int = 0
    keys: int = 0
    """Keys whose row was compared with what their changes make."""
    problems: list[str] = attrs.Factory(list)
    ends: dict[str, int] = attrs.Factory(dict)
    """The offset behind the last record of each topic."""
    numbers: dict[tuple[str, int], int] = attrs.Factory(dict)
    """The next number of each writer."""
    stopped: bool = False


async def verify(engine: AsyncEngine, acked: Mapping[str, int], stop: asyncio.Event) -> Verified:
    """Read all topics of the guided run, from files and memory as they lie, and check them."""
    known = set(engine.topics("demo"))
    result = Verified()
    for name in TOPICS:
        kind = ChangeTally if name == STOCK else Tally
        tally = kind(acked_end=acked.get(name, 0))
        if name in known:
            await _read_back(engine, name, tally, stop)
        result.records += tally.records
        if stop.is_set():
            result.stopped = True
            return result
        tally.finish()
        result.problems += [f"{name}: {problem}" for problem in tally.problems]
        result.acked += tally.acked
        result.ends[name] = tally.offset_next
        for writer, number in tally.last.items():
            result.numbers[name, writer] = number + 1
        if name == STOCK and not tally.problems:
            await asyncio.to_thread(_compare_rows, engine.engine, tally.last, result)
    return result


async def _read_back(engine: AsyncEngine, name: str, tally: Tally, stop: asyncio.Event) -> None:
    topic = engine.topic(name)
    tally.offset_next = topic.stats()["start"]
    try:
        async for batch in topic.read():
            tally.take(batch.data, batch.offset)
            if stop.is_set():
                return
    except CorruptionError as error:
        tally.problems.append(str(error))


def _compare_rows(engine: Engine, last: Mapping[int, int], result: Verified) -> None:
    """Compare the row of every key with what the changes of its writer make."""
    topic: Any = engine.topic(STOCK)
    for writer, number in last.items():
        expected = rows_of(writer, number + 1)
        found = topic.get_many(list(expected))
        for (key, row), stored in zip(expected.items(), found, strict=True):
            result.keys += 1
            if stored != row:
                result.problems.append(f"{STOCK}: key {key} is {stored}, not {row}")
