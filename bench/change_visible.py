"""Change a row, then ask for it in SQL: the next query must see it; time of ack and query together."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

from bench import people, workload
from bench.harness import Bench, Row, absolute, percentile
from bench.quiet import freeze, wait_until_quiet

if TYPE_CHECKING:
    import frazil

P99_MAX_MS = 20.0
QUERIES = {
    "by key": "SELECT score FROM people WHERE id = ?",
    "in the log": 'SELECT score FROM "people$log" WHERE id = ? ORDER BY _offset DESC LIMIT 1',
    "by a scan": "SELECT max(score) FROM people WHERE id + 0 = ?",
}
BARS = {"by key": P99_MAX_MS}


def run(bench: Bench) -> list[Row]:
    count = bench.pick(1_000_000, 50_000)
    calls, rounds = bench.pick(1_000, 50), bench.pick(5, 2)
    found: dict[str, list[list[float]]] = {name: [] for name in QUERIES}
    unseen = 0
    with workload.open_engine(bench.fresh("engine")) as engine:
        topic = engine.create_topic("people", people.COLUMNS, primary_key=["id"])
        people.publish(topic, people.keys_in_random_order(count))
        wait_until_quiet(engine)
        freeze()
        for number in range(-1, rounds):
            for name, sql in QUERIES.items():
                draw = random.Random(f"{number} {name}")
                keys = [2 * draw.randrange(count) for _ in range(calls)]
                seconds, missed = _round(engine, topic, sql, keys, is_scan=name != "by key")
                unseen += missed
                if number >= 0:
                    found[name].append(seconds)
    title = f"change, {count:,} keys"
    rows = [
        absolute(f"{title}: not seen by the next query", [unseen], "changes", value_max=0),
    ]
    for name, seconds in found.items():
        p99 = [percentile(each, 0.99) * 1e3 for each in seconds]
        p50 = [percentile(each, 0.5) * 1e3 for each in seconds]
        rows.append(
            absolute(f"{title}: ack + query {name}: p99", p99, "ms", value_max=BARS.get(name))
        )
        rows.append(absolute(f"{title}: ack + query {name}: p50", p50, "ms"))
    return rows


def _round(
    engine: frazil.Engine, topic: frazil.Topic, sql: str, keys: list[int], *, is_scan: bool
) -> tuple[list[float], int]:
    """Change rows in turn by upsert, update and delete; return seconds and how many were unseen."""
    seconds: list[float] = []
    unseen = 0
    if is_scan:
        keys = keys[: max(len(keys) // 5, 20)]
    for number, key in enumerate(keys):
        value = number + 0.5
        begin = time.perf_counter()
        if number % 4 == 3:
            topic.delete(key)
        elif number % 4 == 2:
            topic.upsert({**people.row(key), "score": value})
        else:
            topic.update(key, {"score": value})
        answer = engine.query(sql, [key]).rows()
        seconds.append(time.perf_counter() - begin)
        unseen += not _is_seen(answer, by_key=not is_scan, value=None if number % 4 == 3 else value)
        if number % 4 == 3:
            topic.upsert(people.row(key))
    return seconds, unseen


def _is_seen(answer: list[tuple[Any, ...]], *, by_key: bool, value: float | None) -> bool:
    """Tell whether an answer is that of the change; a deleted row has no value."""
    if value is None and by_key:
        return answer == []
    # The log still has the deleted key, without values; a scan gives the maximum of nothing.
    return answer == [(value,)]
