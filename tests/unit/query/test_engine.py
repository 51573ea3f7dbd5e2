"""Queries end: by their rows, by their limits, by being cancelled, and leave nothing behind."""

from __future__ import annotations

import gc
import threading
import time
from decimal import Decimal

import pyarrow as pa
import pytest

from frazil.errors import Closed, FrazilError, InvalidRequest, NotFound, Overloaded, Unavailable
from frazil.query.engine import _fold
from tests.unit.query.small_tiers import SmallTiers

ENDLESS = "SELECT sum(a.i * b.i) FROM range(100000000) a(i), range(100000) b(i), events"
LONG = "SELECT i, i::VARCHAR s, events.id FROM range(3000000) t(i), events"


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    tiers = SmallTiers(tmp_path_factory.mktemp("tiers"))
    part = tiers.create("events", {"id": pa.int64(), "name": pa.string()})
    part.append({"id": 1, "name": "one"})
    return tiers


@pytest.fixture(scope="module")
def engine(shared):
    engine = shared.engine(result_bytes_ahead=1 << 16, timeout_s=30)
    yield engine
    engine.close()


@pytest.fixture
def part(shared):
    return shared.all["default", "events"].parts[0]


def begun(engine, count=1):
    """Wait until so many queries run."""
    for _ in range(500):
        if len(engine.running()) == count:
            return engine.running()
        time.sleep(0.01)
    pytest.fail(f"not {count} queries run: {engine.running()}")


def in_thread(work):
    """Run `work` in a thread; return it and the list that gets its result or error."""
    found = []

    def run():
        try:
            found.append(work())
        except FrazilError as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, found


def test_a_query_that_takes_too_long_is_stopped(engine, part):
    """The time limit of a call interrupts DuckDB, frees the slot and unpins the snapshot."""
    closed = part.closed
    # It would never end by itself.
    with pytest.raises(Unavailable, match=r"took too long.*timeout_s"):
        engine.query(ENDLESS, timeout_s=0.2)
    assert part.closed == closed + 1
    assert engine.running() == []
    assert engine.query("SELECT id FROM events").rows() == [(1,)]


def test_all_queries_can_be_cancelled(engine, part):
    """Cancelling stops all queries, and their callers get the reason."""
    one, first = in_thread(lambda: engine.query(ENDLESS))
    two, second = in_thread(lambda: engine.query(ENDLESS))
    running = begun(engine, 2)
    assert [query.sql for query in running] == [ENDLESS, ENDLESS]
    assert engine.cancel_all("memory is short") == 2
    one.join(10)
    two.join(10)
    for (error,) in (first, second):
        assert isinstance(error, Unavailable)
        assert error.details["reason"] == "memory is short"
    assert engine.running() == []


def test_one_query_can_be_cancelled(engine):
    """The number of a running query is enough to stop it, and no other."""
    thread, found = in_thread(lambda: engine.query(ENDLESS))
    (running,) = begun(engine)
    assert not engine.cancel(running.id + 1)
    assert engine.cancel(running.id)
    thread.join(10)
    assert isinstance(found[0], Unavailable)
    assert not engine.cancel(running.id)


def test_unread_results_are_named_as_what_holds_the_slots(shared):
    """The refusal of a slot counts the unread results; reading one frees its slot."""
    engine = shared.engine(concurrency_max=1, wait_s=0.05, result_bytes_ahead=1_000)
    held = engine.query("SELECT range FROM range(1000000)")
    with pytest.raises(Overloaded, match="until it is read or closed") as raised:
        engine.query("SELECT id FROM events")
    assert raised.value.details["results_unread"] == 1
    assert len(held.rows()) == 1_000_000
    assert engine.query("SELECT id FROM events").rows() == [(1,)]


def test_more_queries_than_slots_are_refused(shared):
    """A query that finds no slot in time gets a time to come back; later the slot is free."""
    engine = shared.engine(concurrency_max=1, wait_s=0.05)
    thread, _ = in_thread(lambda: engine.query(ENDLESS))
    begun(engine)
    with pytest.raises(Overloaded) as raised:
        engine.query("SELECT id FROM events")
    assert raised.value.details["concurrency_max"] == 1
    assert raised.value.details["retry_after_ms"] > 0
    engine.cancel_all()
    thread.join(10)
    assert engine.query("SELECT id FROM events").rows() == [(1,)]
    engine.close()


def test_too_much_memory_is_an_overload(shared, tmp_path):
    """A query that needs more memory than allowed fails alone; the next one runs."""
    engine = shared.engine(memory_bytes=32 << 20)
    with pytest.raises(Overloaded, match=r"memory_bytes"):
        engine.query("SELECT list(i::VARCHAR || name) FROM range(5000000) t(i), events")
    assert engine.query("SELECT id FROM events").rows() == [(1,)]
    engine.close()


def test_what_does_not_fit_is_spilled_to_the_given_directory(shared, tmp_path):
    """With a directory for it a sort larger than memory ends, and leaves no file."""
    spill = tmp_path / "spill"
    engine = shared.engine(temp_directory=str(spill), memory_bytes=48 << 20)
    sql = "SELECT md5(i::VARCHAR) m FROM range(1500000) t(i) ORDER BY m OFFSET 1499999"
    assert len(engine.query(sql).rows()) == 1
    engine.close()
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_small_result_holds_nothing(engine, part):
    """Snapshot and slot are free before the caller sees a result that was read ahead."""
    closed = part.closed
    result = engine.query("SELECT * FROM events")
    assert part.closed == closed + 1
    assert engine.running() == []
    assert result.rows() == result.rows()
    assert result.arrow().num_rows == 1


def test_a_large_result_is_read_as_it_is_asked_for(engine, part):
    """The rest of a large result comes in batches; its snapshot is held until the end."""
    closed = part.closed
    result = engine.query(LONG)
    assert part.closed == closed
    assert len(engine.running()) == 1
    total = 0
    for batch in result.batches():
        total += batch.num_rows
    assert total == 3_000_000
    assert part.closed == closed + 1
    assert engine.running() == []
    with pytest.raises(InvalidRequest, match="once"):
        result.arrow()


@pytest.mark.parametrize("how", ["close", "context", "forget"])
def test_a_result_that_is_dropped_frees_what_it_holds(engine, part, how):
    """Closing, leaving the block and forgetting a result end its query."""
    closed = part.closed
    result = engine.query(LONG)
    assert len(engine.running()) == 1
    if how == "close":
        result.close()
    elif how == "context":
        with result:
            pass
    else:
        del result
        gc.collect()
        begun(engine, 0)
    assert engine.running() == []
    assert part.closed == closed + 1


def test_a_closed_result_says_so(engine):
    """Reading behind the end of a block is an error, not an empty table."""
    with engine.query("SELECT * FROM events") as result:
        assert result.columns == ["_offset", "_time", "id", "name"]
    with pytest.raises(Closed):
        result.rows()
    with engine.query(LONG) as large:
        batches = large.batches()
        next(batches)
    with pytest.raises(Closed):
        list(batches)


def test_a_result_that_is_not_read_in_time_is_taken_back(engine, part):
    """A forgotten result loses its snapshot after the time limit, and reading it says so."""
    closed = part.closed
    result = engine.query(LONG, timeout_s=0.5)
    for _ in range(500):
        if part.closed == closed + 1 and not engine.running():
            break
        time.sleep(0.01)
    assert part.closed == closed + 1
    assert engine.running() == []
    with pytest.raises(Unavailable, match="took too long"):
        result.arrow()


def test_an_error_in_the_middle_of_a_result_is_raised(engine, part):
    """Rows that were read before a failing one do not pass for all rows."""
    closed = part.closed
    sql = "SELECT CASE WHEN i = 2900000 THEN 'x' ELSE '1' END::INT n, i, name FROM range(3000000) t(i), events"
    result = engine.query(sql)
    with pytest.raises(InvalidRequest, match="Could not convert string 'x'"):
        result.arrow()
    assert part.closed == closed + 1
    assert engine.running() == []


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELEC 1", "syntax error"),
        ("SELECT nope FROM events", "nope"),
        ("SELECT id FROM events GROUP BY name", "GROUP BY"),
        ("SELECT name::INT FROM events WHERE name = 'one'", "Could not convert"),
        ("SELECT no_function(1)", "no_function"),
        ("SELECT id FROM events LIMIT -1", "LIMIT"),
        ("SELECT 1 / 'x'", "Could not convert"),
    ],
)
def test_mistakes_are_invalid_requests_in_duckdbs_words(engine, part, sql, words):
    """The error of a wrong statement names the mistake, without the text that ran."""
    closed = part.closed
    with pytest.raises(InvalidRequest, match=words) as raised:
        engine.query(sql)
    assert "__frazil" not in str(raised.value)
    assert "LINE" not in str(raised.value)
    assert engine.running() == []
    assert part.closed - closed in {0, 1}


def test_unknown_tables_are_not_found_with_a_hint(engine):
    """The error has the names that are close."""
    with pytest.raises(NotFound, match="similar=events"):
        engine.query("SELECT * FROM event")
    with pytest.raises(NotFound, match="SHOW TABLES"):
        engine.query("SELECT * FROM something_else")


@pytest.mark.parametrize(
    ("sql", "params", "words"),
    [
        ("SELECT ?", None, "missing=1"),
        ("SELECT ?", [1, 2], "unknown=2"),
        ("SELECT $a", {"b": 1}, "missing=a unknown=b"),
        ("SELECT 1", [1], "unknown=1"),
        ("SELECT ?", 5, "list or a mapping"),
        ("SELECT ?", "5", "list or a mapping"),
        ("SELECT ?, $a", [1], "Mixing named and positional"),
        ("SELECT ?", [object()], "object"),
    ],
)
def test_parameters_must_fit(engine, sql, params, words):
    """Missing, superfluous and impossible values are refused before anything is read."""
    with pytest.raises(InvalidRequest, match=words):
        engine.query(sql, params)


def test_params_of_all_kinds_arrive(engine):
    """Values come back as they were given."""
    values = [1, 2.5, "é'", b"\x00", True, None, Decimal("1.25"), [1, 2], {"a": 1}]
    found = engine.query(f"SELECT {', '.join('?' * len(values))}", values).rows()
    assert found == [tuple(values)]


def test_rows_have_integers_where_duckdb_has_huge_ones(engine):
    """A sum of integers is an integer, not a decimal, and null stays null."""
    sql = "SELECT sum(id), sum(id) FILTER (WHERE false), 170141183460469231731687303715884105727::HUGEINT FROM events"
    row = engine.query(sql).rows()[0][:2]
    assert row == (1, None)
    assert type(row[0]) is int
    assert list(engine.query("SELECT sum(id) FROM events")) == [(1,)]


def test_results_take_every_form(engine):
    """Rows, batches, Arrow, pandas and polars agree; iteration gives rows."""
    sql = "SELECT id, name FROM events"
    result = engine.query(sql)
    assert result.columns == ["id", "name"]
    assert result.rows() == list(result) == [(1, "one")]
    assert [batch.to_pylist() for batch in result.batches()] == [[{"id": 1, "name": "one"}]]
    assert result.arrow().to_pylist() == [{"id": 1, "name": "one"}]
    assert result.df().to_dict("records") == [{"id": 1, "name": "one"}]
    assert result.pl().rows() == [(1, "one")]


def test_a_closed_engine_refuses_and_keeps_results(shared):
    """Closing cancels what runs; what was read ahead stays readable."""
    engine = shared.engine(result_bytes_ahead=1 << 16)
    small = engine.query("SELECT id FROM events")
    large = engine.query(LONG)
    thread, found = in_thread(lambda: engine.query(ENDLESS))
    begun(engine, 2)
    engine.close()
    thread.join(10)
    assert isinstance(found[0], Unavailable)
    assert small.rows() == [(1,)]
    with pytest.raises(Unavailable, match="cancelled"):
        large.arrow()
    for sql in ("SELECT id FROM events", "SELECT 1", "SELECT id FROM events WHERE id = 1"):
        with pytest.raises(Closed):
            engine.query(sql)
    engine.close()


def test_constants_and_query_share_one_transaction(shared, engine):
    """What was folded from `now()` is the `now()` that the query then sees."""
    plan = engine._plans.plan("SELECT id FROM events WHERE _time < now()")
    lease = engine._pool.enter("white box")
    engine._pool.admit(lease)
    try:
        (folded,) = _fold(plan, {}, lease)
        time.sleep(0.01)
        (row,) = lease.connection.execute("SELECT epoch_us(now())").fetchall()
        assert folded.value == row[0]
    finally:
        engine._pool.release(lease)
