"""SQL that looks rows up by key, in ten textual forms, among 1 M keys in memory.

Forms with a literal have another text in each call, so that no statement is planned before.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from bench import people, workload
from bench.harness import Bench, Row, absolute
from bench.pacing import PacedWriter, Timed, percentiles_us, timed
from bench.quiet import freeze, wait_until_quiet

if TYPE_CHECKING:
    import frazil

WRITES_PER_SECOND = 20_000
IDLE_P99_MAX_US = 1_000.0
BUSY_P99_MAX_US = 5_000.0
REGIONS = 16

Call = tuple[str, Any]
FORMS: dict[str, Callable[[int], Call]] = {
    "parameter": lambda key: ("SELECT * FROM people WHERE id = ?", [key]),
    "literal": lambda key: (f"select * from people where id = {key}", None),
    "alias": lambda key: ("SELECT p.name, p.age AS years FROM people AS p WHERE p.id = ?", [key]),
    "quoting": lambda key: (f'SELECT "name", "Age" FROM "people" WHERE "id" = {key}', None),
    "namespace": lambda key: (f'select name from "default".people where people.id={key};', None),
    "column list": lambda key: (
        f"SELECT city,\n  score, seen, id\nFROM people\nWHERE (id) = {key}",
        None,
    ),
    "composite key": lambda key: (
        "SELECT * FROM places WHERE region = ? AND id = ?",
        [f"region-{key % REGIONS}", key],
    ),
    "composite key, literals": lambda key: (
        f"SELECT l.value FROM places l WHERE {key} = l.id AND l.region = 'region-{key % REGIONS}'",
        None,
    ),
    "in": lambda key: (f"SELECT id, name FROM people WHERE id IN ({key}, {key + 2}, 1)", None),
    "limit": lambda key: ("SELECT name FROM people WHERE id = $key LIMIT 1", {"key": key}),
}


def run(bench: Bench) -> list[Row]:
    count = bench.pick(1_000_000, 50_000)
    ids = people.keys_in_random_order(count)
    with workload.open_engine(bench.fresh("engine")) as engine:
        topic = engine.create_topic("people", people.COLUMNS, primary_key=["id"])
        people.publish(topic, ids)
        _publish_places(engine, count)
        wait_until_quiet(engine)
        _check(engine)
        freeze()
        seconds, rounds = bench.pick(1.5, 0.1), bench.pick(7, 3)
        idle: dict[str, list[Timed]] = {form: [] for form in FORMS}
        busy: dict[str, list[Timed]] = {form: [] for form in FORMS}
        rates: list[float] = []
        for number in range(-1, rounds):
            alone = _round(engine, count, seed=number, seconds=seconds)
            writer = PacedWriter(
                topic, lambda n: people.row(n * 7919 % count * 2, n), WRITES_PER_SECOND
            )
            with writer:
                beside = _round(engine, count, seed=number, seconds=seconds, beside=True)
            if number >= 0:
                rates.append(writer.acks_per_second)
                for form in FORMS:
                    idle[form].append(alone[form])
                    busy[form].append(beside[form])
    title = f"SQL point query, {count:,} keys"
    beside_title = f"{title}, beside {WRITES_PER_SECOND:,} writes/s"
    return [
        *_rows(f"{title}, idle", idle, IDLE_P99_MAX_US),
        *_rows(beside_title, busy, BUSY_P99_MAX_US),
        absolute(f"{beside_title}: acks", rates, "acks/s"),
    ]


def _rows(title: str, found: dict[str, list[Timed]], limit: float) -> list[Row]:
    """Return the worst form's p99, which is judged, and each form's for the picture."""
    p99 = {form: percentiles_us(rounds, 0.99) for form, rounds in found.items()}
    p50 = {form: statistics.median(percentiles_us(rounds, 0.5)) for form, rounds in found.items()}
    own = {form: percentiles_us(rounds, 0.99, cpu=True) for form, rounds in found.items()}
    worst = max(p99, key=lambda form: statistics.median(p99[form]))
    return [
        absolute(f"{title}: p99 of the slowest form ({worst})", p99[worst], "us", value_max=limit),
        absolute(f"{title}: p50 of all forms", [statistics.median(p50.values())], "us"),
        absolute(f"{title}: p99 of that form, CPU time of its thread", own[worst], "us"),
        *[absolute(f"{title}: p99, {form}", values, "us") for form, values in p99.items()],
    ]


def _round(
    engine: frazil.Engine, count: int, *, seed: int, seconds: float, beside: bool = False
) -> dict[str, Timed]:
    found: dict[str, Timed] = {}
    for form, make in FORMS.items():
        draw = random.Random(f"{seed} {form}")
        keys = (draw.randrange(count) * 2 for _ in itertools.count())
        found[form] = timed(_calls(engine, make, keys), seconds=seconds, beside=beside)
    return found


def _calls(
    engine: frazil.Engine, form: Callable[[int], Call], keys: Iterator[int]
) -> Iterator[Callable[[], object]]:
    for key in keys:
        yield partial(_rows_of, engine, *form(key))


def _rows_of(engine: frazil.Engine, sql: str, params: Any) -> list[tuple[Any, ...]]:
    return engine.query(sql, params).rows()


def _publish_places(engine: frazil.Engine, count: int) -> None:
    """Fill a topic whose key has two columns."""
    import numpy as np
    import pyarrow as pa

    places = engine.create_topic(
        "places",
        {"region": "string", "id": "long", "value": "double"},
        primary_key=["region", "id"],
    )
    ids = people.keys_in_random_order(count)
    regions = pa.array([f"region-{number}" for number in range(REGIONS)])
    for first in range(0, count, people.BATCH_ROWS):
        part = ids[first : first + people.BATCH_ROWS]
        region = regions.take(pa.array(part % REGIONS))
        places.append_arrow(
            pa.record_batch(
                {"region": region, "id": pa.array(part), "value": pa.array(np.sqrt(part))}
            )
        )


def _check(engine: frazil.Engine) -> None:
    """See that each form takes the index path and finds what it should."""
    expected = {"in": 2}
    for form, make in FORMS.items():
        sql, params = make(4)
        found = len(_rows_of(engine, sql, params))
        path = engine.explain(sql, params)["path"]
        if found != expected.get(form, 1) or path != "index":
            raise SystemExit(f"form {form!r} found {found} rows by way of the {path}: {sql}")
