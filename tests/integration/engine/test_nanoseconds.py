"""Values finer than Python's own types, in rows and in keys, without pandas."""

from __future__ import annotations

import subprocess
import sys

import pyarrow as pa
import pytest

from frazil.errors import InvalidRequest

NS = pa.timestamp("ns", "UTC")

HIDE_PANDAS = """
import importlib.abc, sys

class Hidden(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] == "pandas":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Hidden())
import pyarrow as pa
import frazil
from frazil.schema.python_rows import python_rows
"""

WITHOUT_PANDAS = """
NS = pa.timestamp("ns", "UTC")
with frazil.open(sys.argv[1]) as engine:
    topic = engine.create_topic("t", pa.schema([("id", pa.int64()), ("at", NS)]), primary_key="id")
    topic.append_arrow(pa.table({"id": [1], "at": pa.array([1001], NS)}))
    for _turn in range(2):
        records = [record for batch in topic.read() for record in batch.records()]
        for row in (topic.get(1), next(iter(topic.changes()))["after"], records[0]):
            assert row["at"].microsecond == 1, row
        assert next(iter(topic.read())).data.column("at").cast("int64").to_pylist() == [1001]
        engine.tiers.flush()
        engine.tiers.evict()
nested = pa.record_batch({
    "a": pa.array([[1001]], pa.list_(NS)),
    "b": pa.array([{"x": 1001}], pa.struct([("x", NS)])),
    "c": pa.array([1001], pa.time64("ns")),
})
(row,) = python_rows(nested)
assert row["a"][0].microsecond == row["b"]["x"].microsecond == row["c"].microsecond == 1, row
print("done")
"""

QUERY = """
LOCAL = pa.timestamp("ns")
columns = pa.schema([("id", pa.int64()), ("ts", LOCAL)])
with frazil.open(sys.argv[1]) as engine:
    topic = engine.create_topic("t", columns, primary_key="id")
    topic.append_arrow(pa.table({"id": [1, 2], "ts": pa.array([1001, 2000], LOCAL)}))
    for _turn in range(2):
        records = [record for batch in topic.read() for record in batch.records()]
        for sql in ("select ts, id, ts from t order by id", "select ts, id, ts from t where id = 1"):
            result = engine.query(sql)
            assert result.rows()[0] == (records[0]["ts"], 1, records[0]["ts"]), result.rows()
            assert next(iter(engine.query(sql))) == result.rows()[0]
        whole = engine.query("select ts from t order by id").arrow()
        assert whole.column(0).cast("int64").to_pylist() == [1001, 2000]
        engine.tiers.flush()
        engine.tiers.evict()
print("done")
"""


def without_pandas(script, path):
    """Run a script in which pandas cannot be imported; return what it printed, and its errors."""
    command = [sys.executable, "-c", HIDE_PANDAS + script, str(path)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return run.stdout, run.stderr


def test_rows_are_readable_though_a_value_has_no_python_form(tmp_path):
    """Look-ups, the feed and records have the value cut to microseconds; Arrow has all of it."""
    printed, errors = without_pandas(WITHOUT_PANDAS, tmp_path)
    assert printed == "done\n", errors


def test_rows_of_a_query_have_the_form_that_reads_have(tmp_path):
    """A query's `rows()` cut what has no Python form as topic reads do; Arrow has all of it."""
    printed, errors = without_pandas(QUERY, tmp_path)
    assert printed == "done\n", errors


def test_an_update_by_such_a_key_is_refused_and_touches_no_other_row(engine):
    """A key that Python cannot say is refused with the reason; exact ones are found."""
    columns = pa.schema([("k", NS), ("v", pa.int64())])
    topic = engine.create_topic("t", columns, primary_key="k")
    topic.append_arrow(pa.table({"k": pa.array([1000, 1001], NS), "v": [1, 2]}))

    def update(key):
        data = {"k": pa.array([key], NS), "v": [9], "_op": ["update"]}
        return topic.append_changes(pa.table(data))

    with pytest.raises(InvalidRequest, match="finer than a microsecond"):
        update(1001)
    update(1000)
    (batch,) = [each.data for each in topic.read(2)]
    assert batch.column("k").cast("int64").to_pylist() == [1000]
    assert engine.query("select count(*) from t where v = 9").rows() == [(1,)]
