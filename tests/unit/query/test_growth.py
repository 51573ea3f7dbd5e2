"""One call cannot make a value that holds no limit of its query, and small values are made."""

from __future__ import annotations

import contextlib
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from frazil.errors import InvalidRequest
from frazil.query.engine import _fold
from frazil.query.functions import GROWING, SERIES
from frazil.query.growth import SIZE_MAX
from tests.unit.query.small_tiers import SmallTiers

LARGE = 100_000_000
SMALL = [
    "SELECT id, repeat('ab', id) FROM events ORDER BY id",
    "SELECT name, repeat('#', count(*)) FROM events GROUP BY ALL ORDER BY name",
    "SELECT repeat(name, id) FROM events GROUP BY repeat(name, id) ORDER BY 1",
    "SELECT repeat([id], 3), list_resize([id], id, 0), array_resize([1], id) FROM events",
    "SELECT lpad(name, 9, '.'), rpad(name, id::INT, '.') FROM events",
    "SELECT repeat('x', (SELECT max(id) FROM events)), repeat('x', NULL), repeat('x', -3)",
    "SELECT list_transform([1, 2], x -> repeat('y', x)), bar(3, 0, 10, 5.5), bar(id, 0, 10) FROM events",
    "SELECT repeat(lpad('7', 3, '0'), 4) a, repeat('x', row_number() OVER (ORDER BY id)) FROM events",
    "SELECT printf('%05d|%s', id, name), format('{:>7}', name), format(name || '{}', 1) FROM events",
    "SELECT range(5), range(2, 9, 3), generate_series(3), generate_series(9, -2, -4), range(0)",
    "SELECT [x * 2 for x in range(4)] a, unnest(range(3))",
    "SELECT bitstring('101', 8)::VARCHAR, bitstring('1', id::INT)::VARCHAR FROM events",
    "SELECT count(*) FROM range(2000000)",
    "SELECT count(*) FROM events, generate_series(1, id)",
]


@contextlib.contextmanager
def made_bytes():
    """Yield a list that has, behind the block, by how much the process was larger meanwhile."""
    made = []
    # Forget how large it ever was.
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    before = memory_bytes("VmRSS")
    yield made
    made.append(memory_bytes("VmHWM") - before)


def memory_bytes(name):
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    tiers = SmallTiers(tmp_path_factory.mktemp("tiers"))
    part = tiers.create("events", {"id": pa.int64(), "name": pa.string()})
    part.append({"id": 2, "name": "two"}, {"id": 3, "name": "three"}, {"id": 5, "name": "five"})
    engine = tiers.engine(timeout_s=30)
    yield engine
    engine.close()


@pytest.mark.parametrize(
    "sql",
    [
        f"SELECT len(range({LARGE}))",
        f"SELECT len(generate_series(1, {LARGE}))",
        f"SELECT count(*) FROM unnest(range({LARGE}))",
        "SELECT len(range(id)) FROM events",
        f"SELECT len(range(1, {LARGE}::BIGINT))",
        "SELECT generate_series(TIMESTAMP '2020-01-01', TIMESTAMP '2030-01-01', INTERVAL 1 SECOND)",
        f"SELECT len(repeat('x', {LARGE}))",
        f"SELECT len(repeat('x', '{LARGE}'))",
        f"SELECT len(repeat('x', {LARGE}::BIGINT))",
        f"SELECT len(repeat('x', id * {LARGE})) FROM events",
        f"SELECT len(repeat('xy', {SIZE_MAX}))",
        f"SELECT len(repeat('xy', {SIZE_MAX} - 1))",
        "SELECT len(repeat(repeat('x', 10000), 10000))",
        f"SELECT len('x'.repeat({LARGE}))",
        f"SELECT len(main.repeat('x', {LARGE}))",
        f"SELECT count(*) FROM events WHERE name = repeat('x', {LARGE})",
        f"SELECT len(rpad('x', {LARGE}, 'y'))",
        f"SELECT len(lpad('x', id::INT * {LARGE // 10}, 'y')) FROM events",
        f"SELECT len(list_resize([1], {LARGE}))",
        f"SELECT len(array_resize([1], {LARGE} + 1))",
        f"SELECT len(bar(1, 0, 2, {LARGE}))",
        "SELECT len(bar(1, 0, 2, 1e8))",
        f"SELECT len(bitstring('1', {LARGE}))",
        f"SELECT len(printf('%{LARGE}d', 1))",
        f"SELECT len(format('{{:>{LARGE}}}', 'x'))",
        f"SELECT len(format('{{:{{}}}}', 'x', {LARGE}))",
        f"SELECT len(printf('%*d', {LARGE}, 1))",
        f"SELECT len(format(name || '{{:{LARGE}}}', 'x')) FROM events",
        "SELECT list_transform(range(10000), x -> repeat('x', 10000))",
        "SELECT len(replace(repeat('x', 10000), 'x', repeat('y', 10000)))",
    ],
)
@pytest.mark.parametrize("explained", [False, True])
def test_a_large_value_is_refused(engine, sql, explained):
    """A call that would make a hundred million of anything is an error before there are any."""
    with made_bytes() as made:
        if explained:
            with contextlib.suppress(InvalidRequest):
                engine.explain(sql)
        else:
            with pytest.raises(InvalidRequest):
                engine.query(sql).rows()
    assert made[0] < LARGE // 2


@pytest.mark.parametrize("size", [SIZE_MAX + 1, LARGE])
def test_a_large_parameter_is_refused_by_name(engine, size):
    """A size that comes with the call is refused with the function and what it may be."""
    with pytest.raises(InvalidRequest, match=f"repeat is above {SIZE_MAX}"):
        engine.query("SELECT len(repeat('x', ?))", [size])


@pytest.mark.parametrize("size", [0, 7, SIZE_MAX])
def test_a_parameter_up_to_the_limit_is_taken(engine, size):
    """A size up to the limit gives what was asked for."""
    assert engine.query("SELECT len(repeat('x', ?))", [size]).rows() == [(size,)]


def test_a_list_has_as_many_elements_as_the_limit(engine):
    """The longest list that is made is as long as the limit, one more is refused."""
    sql = "SELECT len(generate_series(1, {}))"
    assert engine.query(sql.format(SIZE_MAX)).rows() == [(SIZE_MAX,)]
    with pytest.raises(InvalidRequest, match=r"FROM generate_series\(\.\.\.\)"):
        engine.query(sql.format(SIZE_MAX + 1))


@pytest.mark.parametrize("sql", SMALL)
def test_small_values_are_as_duckdb_makes_them(engine, sql):
    """Rows and names of columns are those of DuckDB itself over the same rows."""
    plain = duckdb.connect()
    plain.execute(
        "CREATE TABLE events AS FROM (VALUES (2, 'two'), (3, 'three'), (5, 'five')) t(id, name)"
    )
    plain.execute("ALTER TABLE events ALTER id TYPE BIGINT")
    expected = plain.execute(sql)
    names = [column[0] for column in expected.description]
    found = engine.query(sql)
    assert sorted(map(repr, found.rows())) == sorted(map(repr, expected.fetchall()))
    assert found.columns == names


def test_a_random_size_is_evaluated_once(engine):
    """What was found small enough is what is used, not another value of the same expression."""
    sql = "SELECT len(repeat('x', (random() * 1000)::INT + 999500)) FROM range(40)"
    for _ in range(20):
        try:
            sizes = [size for (size,) in engine.query(sql).rows()]
        except InvalidRequest:
            continue
        assert max(sizes) <= SIZE_MAX


def test_what_makes_large_values_is_not_evaluated_before_the_query(engine):
    """Constants with such a call are left to the query: nothing of them is folded."""
    for name in (*GROWING, *SERIES):
        arguments = {0: "'%d', 1", 1: "'1', 2, '0'", 3: "1, 2, 3, 4"}.get(GROWING.get(name), "3")
        plan = engine._plans.plan(
            f"SELECT id FROM events WHERE name = {name}({arguments})::VARCHAR"
        )
        assert plan.fold_text == ""
    assert _fold(plan, {}, None) == []
