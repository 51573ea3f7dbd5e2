"""Statements over the tiers give what DuckDB gives for the same rows in a table of its own."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest

from frazil.model import OP_DELETE
from tests.unit.query.small_tiers import SmallTiers

START = dt.datetime(2026, 11, 15, 12, tzinfo=dt.UTC)
EVENTS = {
    "id": pa.int64(),
    "kind": pa.string(),
    "v": pa.float64(),
    "ts": pa.timestamp("us", "UTC"),
    "day": pa.date32(),
    "price": pa.decimal128(10, 2),
    "tags": pa.list_(pa.string()),
    "who": pa.struct([("first", pa.string()), ("age", pa.int32())]),
}
USERS = {"name": pa.string(), "region": pa.int32(), "score": pa.float64()}


def event(number):
    return {
        "id": number,
        "kind": None if number % 7 == 0 else f"k{number % 3}",
        "v": number / 4,
        "ts": START + dt.timedelta(minutes=number),
        "day": (START + dt.timedelta(days=number // 10)).date(),
        "price": Decimal(number) / 4,
        "tags": [f"t{number % 2}", "all"],
        "who": {"first": f"f{number}", "age": number % 50},
    }


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """An engine over tiers, and a DuckDB that has the same rows as tables."""
    tiers = SmallTiers(tmp_path_factory.mktemp("tiers"))
    events = tiers.create("events", EVENTS)
    for number in range(40):
        events.append(event(number), time_us=number)
        if number in {11, 23}:
            events.flush()
    users = tiers.create("app.users", USERS, key=["name", "region"])
    for number in range(30):
        row = {"name": f"f{number % 8}", "region": number % 2, "score": number * 1.5}
        users.append(row, op=OP_DELETE if number in {9, 27} else 3)
        if number in {6, 14}:
            users.flush()
    engine = tiers.engine()
    plain = duckdb.connect()
    plain.execute("SET TimeZone = 'UTC'")
    plain.execute("CREATE SCHEMA app")
    for name, quoted in (("events", "events"), ("users", "app.users")):
        part = tiers.all["default" if name == "events" else "app", name].parts[0]
        plain.register("rows_now", newest(part))
        plain.execute(f"CREATE TABLE {quoted} AS SELECT * FROM rows_now")
    yield engine, plain
    engine.close()
    plain.close()


def newest(part):
    """The state of a topic as one table, made without any of the product's code."""
    schema = part.topic.schemas[-1]
    kept = list(enumerate(part.records))
    if part.topic.key:
        last = {tuple(r[3][k] for k in part.topic.key): (o, r) for o, r in kept}
        kept = sorted((o, r) for o, r in last.values() if r[1] != OP_DELETE)
    columns = {
        "_offset": pa.array([offset for offset, _ in kept], pa.int64()),
        "_time": pa.array([r[0] for _, r in kept], pa.int64()).cast(pa.timestamp("us", "UTC")),
    }
    for field in schema:
        columns[field.name] = pa.array([r[3].get(field.name) for _, r in kept], field.type)
    return pa.table(columns)


STATEMENTS = """
select * from events
from events
table events
select count(*) from events
select count(*), count(kind), sum(id), avg(v), min(ts), max(day), sum(price) from events
select e.id, e.kind from events e where e.id between 5 and 30 and e.kind = 'k1'
select id from events where id in (3, 13, 33, 99)
select id from events where 20 <= id and id < 25.5
select id from events where ts >= '2026-11-15 12:20:00' and ts < TIMESTAMPTZ '2026-11-15 12:30:00+00'
select id from events where day = DATE '2026-11-17' or id = 2
select id from events where day = '2026-11-17'
select id from events where v > 7.25 and price <= 8
select id from events where kind is null
select id from events where kind like 'k%' and not (id > 5)
select _offset, _time from events where _offset >= 22 and _offset <= 25
select max(_offset) from events where _time < make_timestamptz(20)
select kind, count(*) n, sum(v) from events group by kind having count(*) > 3 order by n desc, kind
select kind, day, sum(v) from events group by rollup(kind, day)
select distinct kind from events
select id, row_number() over (partition by kind order by id desc) r from events qualify r = 1
select id, lag(v) over (order by id), sum(v) over (order by id rows 2 preceding) from events
select who.first, who.age + 1 from events where who.age = 17
select id, unnest(tags) from events where id < 3
select list_transform(tags, x -> upper(x)) from events where id = 4
select [x for x in tags if x = 'all'] as found from events where id = 4
select events from events where id = 6
select struct_extract(who, 'age') from events where id > 37
select * exclude (tags, who) from events where id = 8
select * replace (id + 1 as id) from events where id = 8
select columns('i.*') from events where id = 8
select e.* from events e where e.id = 9
select id from events union all select -id from events where id < 4 order by 1
select id from events except select id from events where id > 4
select id from events where id < 9 intersect select id from events where id > 5
with big as (select * from events where id > 30) select count(*) from big
with events as (select 1 as id) select * from events
with events as (select * from events where id = 3) select id from events
with a as (select id from events), b as (with a as (select 7 as id) select * from a) select (select count(*) from a), id from b
with recursive r(n) as (select 1 union all select n + 1 from r where n < 5) select r.n, e.kind from r join events e on e.id = r.n
select (select max(id) from events) - id from events where id > 36
select id from events e where exists (select 1 from app.users u where u.name = e.who.first)
select id from events where who.first in (select name from app.users where score > 20)
select e.id, l.n from events e, lateral (select e.id * 2 as n) l where e.id < 3
select e.id, u.score from events e left join app.users u on u.name = e.who.first and u.region = 0 where e.id < 12
select e.id, u.score from events e left join app.users u on u.name = e.who.first where u.score > 20
select count(*) from events a join events b on a.id = b.id + 1 where a.id > 3 and b.id < 20
select count(*) from events natural join events b
select a.id from events a semi join app.users u on u.name = a.who.first where id > 2
select a.id from events a anti join app.users u on u.name = a.who.first where a.id > 2
select * from (values (1, 'x'), (2, 'y')) v(i, s)
values (1), (2)
select i from range(5) t(i)
select * from generate_series(1, 3)
select count(*) from app.users
select * from app.users
select "app"."users"."score" from "app"."users" where users.name = 'f3'
select app.users.name from app.users order by app.users.score desc limit 2
select name, region, score from app.users where score between 10 and 30
select region, max(score) from app.users group by region
select * from APP.Users where NAME = 'f2' and Region = 0
select x.a, x.b from app.users as x(a, b, c, d, e)
select * from (pivot events on kind in ('k0', 'k1') using count(*) group by day)
unpivot (select id, v from events where id < 3) on id, v into name n value w
select t.id, u.v from events t positional join events u where t.id = 30
select e.id, u.score from events e asof join app.users u on e.v >= u.score where e.id = 30 and u.score > 4
describe events
describe select id, kind from events
select column_name, column_type from (describe app.users)
select * replace (round(std::double, 9) as std) from (summarize select id, v from events)
select id from events order by ts desc limit 3 offset 2
select id from events order by id limit 10%
select #1 from events where id = 3
select date_trunc('hour', ts) h, count(*) from events group by h
select time_bucket(interval '10 minutes', ts) b, sum(v) from events group by all order by all
select id from events where ts > now() - interval 5 minutes
select count(*) from events where ts < now()
select count(*) from events where _time < current_timestamp and id < 4
select cast(id as varchar) || kind, id::double, try_cast(kind as int) from events where id = 5
select case when id > 20 then 'high' else 'low' end s, count(*) from events group by s
select count(*) filter (where id > 3), string_agg(kind, ',' order by id) from events where id < 6
select approx_count_distinct(kind), median(v), arg_max(id, v), mode(kind) from events
select id from events where (id, kind) = (4, 'k1')
select id from events where coalesce(kind, 'none') = 'none'
select json_extract('{"a": 1}', '$.a'), 'abc' ~ 'b', 5 // 2, 7 % 3, 2 ** 3
select id from events where id = (select max(id) from events)
select a.id from events a, events b where a.id = b.id and b.id = 3
""".strip().splitlines()


@pytest.mark.parametrize("sql", STATEMENTS)
def test_statements_give_the_same_rows_and_columns(both, sql):
    """A statement has the rows, names and types that DuckDB gives for a table of the rows."""
    engine, plain = both
    result = engine.query(sql)
    expected = plain.execute(sql).to_arrow_table()
    assert result.columns == expected.column_names
    assert result.arrow().schema.types == expected.schema.types
    assert comparable(result.arrow()) == comparable(expected)


def comparable(table):
    return sorted(repr(row) for row in table.to_pylist())


@pytest.mark.parametrize(
    ("sql", "params"),
    [
        ("select id from events where id = ?", [7]),
        ("select id from events where id > $low and id < $high", {"low": 3, "high": 6}),
        ("select id from events where ts = ?", [START + dt.timedelta(minutes=3)]),
        ("select id from events where day = ?", [dt.date(2026, 11, 16)]),
        ("select id from events where price = ?", [Decimal("2.50")]),
        ("select id from events where id > ? - 3", [40]),
        ("select score from app.users where name = $n and region = $r", {"n": "f4", "r": 0}),
        ("select id from events limit ?", [2]),
    ],
)
def test_parameters_mean_what_they_mean_to_duckdb(both, sql, params):
    """Values of lists and mappings reach the statement, whether or not they prune."""
    engine, plain = both
    expected = plain.execute(sql, params).to_arrow_table()
    assert comparable(engine.query(sql, params).arrow()) == comparable(expected)
