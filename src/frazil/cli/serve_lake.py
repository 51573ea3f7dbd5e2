"""What `frazil serve` says about tables while it runs: Spark's start, and each table's first rows."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from frazil.cli.output import write_out

if TYPE_CHECKING:
    from frazil.engine import Engine

__all__ = ["LakeNews", "tell_lake"]

LOOK_S: Final = 1.0
TABLES_SHOWN_MAX: Final = 20
"""Whoever has more topics looks at `frazil top`."""


class LakeNews:
    """What there is to say since the last look."""

    def __init__(self, engine: Engine) -> None:
        self._lake = engine.lake
        self._state = ""
        self._shown: set[str] = set()

    def look(self) -> list[str]:
        """Return the lines that were not said yet; it does not wait for anything."""
        found = []
        topics = [each for each in list(self._lake.topics.values()) if not each.keyed]
        state = self._now() if topics else ""
        if state != self._state:
            self._state = state
            found += [f"lake: {state}"] if state else []
        for topic in topics:
            rows = topic.counts["rows"]
            if rows and topic.name not in self._shown and len(self._shown) < TABLES_SHOWN_MAX:
                self._shown.add(topic.name)
                count = "row" if rows == 1 else f"{rows:,} rows"
                found.append(f"lake: {topic.name} has its first {count} in {topic.table}")
        return found

    def _now(self) -> str:
        worker = self._lake.worker
        if worker.state == "ready":
            return f"running, Iceberg catalog at {self._lake.catalog.uri()}"
        return f"starting ({worker.why})" if worker.why else "starting"


async def tell_lake(engine: Engine) -> None:
    """Print what is new, for ever."""
    news = LakeNews(engine)
    while True:
        for line in news.look():
            write_out(line + "\n")
        await asyncio.sleep(LOOK_S)
