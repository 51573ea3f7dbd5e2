"""What the guided run shows each second: the stream, the tiers at work, and a live aggregate."""

from __future__ import annotations

import contextlib
import importlib.util
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import attrs
import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table

from frazil.cli.output import console, size_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from frazil.engine import Engine

__all__ = [
    "Aggregate",
    "Shown",
    "aggregate",
    "lake_facts",
    "tier_facts",
    "topic_facts",
    "view",
]

AGGREGATE: Final = """
    SELECT city, count(*) AS readings, round(avg(celsius), 1) AS celsius
    FROM demo.readings GROUP BY city ORDER BY city
"""
STOCK: Final = "SELECT count(*), sum(quantity) FROM demo.stock"


@attrs.frozen
class Aggregate:
    """What SQL said about the stream, and how long the first query took."""

    rows: list[tuple[Any, ...]]
    items: int
    quantity: int
    taken_s: float

    def facts(self) -> dict[str, str]:
        """Return it in short."""
        count = sum(row[1] for row in self.rows)
        return {
            "sql": f"{self.taken_s * 1e3:.1f} ms for {count:,} rows",
            "stock": f"{self.items} items, {self.quantity:,} pieces",
        }


class Shown(NamedTuple):
    """All that is shown at once."""

    facts: dict[str, str]
    tiers: dict[str, str]
    topics: list[dict[str, str]]
    aggregate: Aggregate | None


def aggregate(engine: Engine) -> Aggregate | None:
    """Ask SQL about the topics of the guided run; None if DuckDB is not installed."""
    if importlib.util.find_spec("duckdb") is None:
        return None
    begin = time.perf_counter()
    rows = engine.query(AGGREGATE).rows()
    taken_s = time.perf_counter() - begin
    ((items, quantity),) = engine.query(STOCK).rows()
    return Aggregate(rows, items, int(quantity or 0), taken_s)


def tier_facts(stats: Mapping[str, Any]) -> dict[str, str]:
    """Return what the tiers of an engine hold and did, for people."""
    tiers = stats.get("tiers")
    if not tiers:
        return {}
    pressure, disk = tiers["pressure"], tiers["disk"]
    memory = sum(each["tiers"]["memory_bytes"] for each in stats["per_topic"].values())
    fired = ", ".join(f"{reason} {count}" for reason, count in tiers["signals_fired"].items())
    return {
        "zone": f"{pressure['zone']} ({pressure['percent']:.1f} %)",
        "memory": size_text(memory),
        "disk": f"{size_text(disk['bytes'])} in {disk['files']} files",
        "signals": fired or "none yet",
    }


def lake_facts(stats: Mapping[str, Any]) -> dict[str, str]:
    """Return how far the tables are, for people; nothing if no topic has one."""
    lake = stats.get("lake") or {}
    topics = lake.get("topics")
    if not topics:
        return {}
    behind = [each for each in topics.values() if each["state"] != "waiting"]
    why = next((each["why"] for each in behind if each["why"]), "")
    rows = sum(each["rows"] for each in behind)
    shown = f"{lake['state']}, {rows:,} rows committed" if rows else str(lake["state"])
    return {"lake": f"{shown} ({why})" if why else shown}


def topic_facts(name: str, stats: Mapping[str, Any]) -> dict[str, str]:
    """Return where the records of one topic lie, for people."""
    found = {"topic": name, "offsets": f"{stats['start']:,} .. {stats['head']:,}"}
    tiers = stats.get("tiers")
    if tiers:
        found |= {
            "in Iceberg up to": f"{stats['committed']:,}" if "committed" in stats else "-",
            "in files up to": f"{tiers['flushed']:,}",
            "in memory from": f"{tiers['memory_start']:,}",
            "memory": size_text(tiers["memory_bytes"]),
            "flushes": str(tiers["flushes"]),
            "last signal": tiers["signal_last"] or "-",
        }
    return found


@contextlib.contextmanager
def view() -> Iterator[Callable[[Shown], None]]:
    """Give a function that shows facts: a live table on a terminal, a line each time elsewhere."""
    screen = console()
    if not screen.is_terminal:
        yield _show_line
        return
    with Live(console=screen, auto_refresh=False, transient=True) as live:
        yield lambda shown: live.update(_tables(shown), refresh=True)


def _show_line(shown: Shown) -> None:
    facts = {**shown.facts, **shown.tiers}
    if shown.aggregate is not None:
        facts |= shown.aggregate.facts()
    facts |= {each["topic"]: each["offsets"] for each in shown.topics}
    typer.echo("  ".join(f"{key}={value}" for key, value in facts.items()))


def _tables(shown: Shown) -> Group:
    stream = Table(*shown.facts, title="frazil demo - Ctrl-C stops it", title_justify="left")
    stream.add_row(*shown.facts.values())
    parts = [stream]
    if shown.tiers:
        tiers = Table(*shown.tiers)
        tiers.add_row(*shown.tiers.values())
        parts.append(tiers)
    topics = Table(*shown.topics[0])
    for each in shown.topics:
        topics.add_row(*each.values())
    parts.append(topics)
    if shown.aggregate is not None:
        facts = shown.aggregate.facts()
        cities = Table("city", "readings", "celsius", title=f"SQL: {facts['sql']}")
        cities.caption = f"stock: {facts['stock']}"
        for city, readings, celsius in shown.aggregate.rows:
            cities.add_row(str(city), f"{readings:,}", f"{celsius}")
        parts.append(cities)
    return Group(*parts)
