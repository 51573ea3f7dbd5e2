"""What there is: SHOW, DESCRIBE, SUMMARIZE and information_schema tell of topics, nothing else."""

from __future__ import annotations

import pyarrow as pa
import pytest

from frazil.errors import NotFound
from tests.unit.query.small_tiers import SmallTiers


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    tiers = SmallTiers(tmp_path_factory.mktemp("tiers"))
    events = tiers.create("events", {"id": pa.int64(), "tags": pa.list_(pa.string())})
    for number in range(4):
        events.append({"id": number, "tags": []})
    events.flush(2)
    tiers.create("app.users", {"name": pa.string()}, key=["name"])
    tiers.create("app.lanes", {"n": pa.int32()}, partitions=2)
    engine = tiers.engine()
    yield engine
    engine.close()


def test_show_lists_topics(engine):
    """Topics of the default namespace come by name, others behind their namespace."""
    names = [("events",), ("app.lanes",), ("app.users",)]
    assert engine.query("SHOW TABLES").rows() == names
    assert engine.query("SELECT name FROM (SHOW TABLES) WHERE name LIKE 'app%'").rows() == names[1:]
    every = engine.query("SHOW ALL TABLES")
    assert every.columns[:3] == ["database", "schema", "name"]
    assert ("frazil", "app", "users$log") in [row[:3] for row in every.rows()]
    assert engine.query("SHOW SCHEMAS").rows() == [("frazil", "app"), ("frazil", "default")]
    assert engine.query("SHOW DATABASES").rows() == [("frazil",)]
    assert engine.query("DESCRIBE").rows() == every.rows()


def test_describe_tells_columns_and_types(engine):
    """System columns come first; parts and logs have their own."""
    described = engine.query("DESCRIBE events").rows()
    assert [row[:2] for row in described] == [
        ("_offset", "BIGINT"),
        ("_time", "TIMESTAMP WITH TIME ZONE"),
        ("id", "BIGINT"),
        ("tags", "VARCHAR[]"),
    ]
    names = [row[0] for row in engine.query('DESCRIBE app."lanes$log"').rows()]
    assert names == ["_offset", "_time", "_part", "_op", "n"]


def test_information_schema_describes_every_view(engine):
    """Tables, columns and schemata are those of the topics, and can be queried like any table."""
    sql = "SELECT table_schema, table_name, table_type FROM information_schema.tables ORDER BY ALL"
    assert engine.query(sql).rows() == [
        ("app", "lanes", "VIEW"),
        ("app", "lanes$log", "VIEW"),
        ("app", "users", "VIEW"),
        ("app", "users$log", "VIEW"),
        ("default", "events", "VIEW"),
        ("default", "events$log", "VIEW"),
    ]
    sql = """
        SELECT column_name, ordinal_position, data_type FROM INFORMATION_SCHEMA.COLUMNS
        WHERE table_name = 'events$log' ORDER BY 2
    """
    assert engine.query(sql).rows() == [
        ("_offset", 1, "BIGINT"),
        ("_time", 2, "TIMESTAMP WITH TIME ZONE"),
        ("_op", 3, "VARCHAR"),
        ("id", 4, "BIGINT"),
        ("tags", 5, "VARCHAR[]"),
    ]
    nulls = engine.query(
        "SELECT column_name, is_nullable FROM information_schema.columns WHERE table_name = 'users'"
    ).rows()
    described = engine.query('DESCRIBE "app"."users"').arrow().to_pylist()
    assert nulls == [(column["column_name"], column["null"]) for column in described]
    schemata = engine.query("SELECT schema_name FROM information_schema.schemata").rows()
    assert schemata == [("app",), ("default",)]
    with pytest.raises(NotFound, match="known=columns"):
        engine.query("SELECT * FROM information_schema.routines")


def test_the_catalog_joins_with_topics(engine):
    """A table of the catalog and a topic can stand in one statement."""
    sql = """
        SELECT t.table_name, e.id FROM information_schema.tables t, events e
        WHERE t.table_name = 'events' AND e.id < 2 ORDER BY 2
    """
    assert engine.query(sql).rows() == [("events", 0), ("events", 1)]
    assert engine.explain(sql)["catalog"] == ["tables"]


def test_explain_tells_tiers_files_rows_and_bytes(engine):
    """What is considered, left out and read is shown for each tier, with the names of files."""
    facts = engine.explain("SELECT sum(id) FROM events WHERE id < 1")
    (table,) = facts["tables"]
    assert facts["path"] == "scan"
    assert (table["topic"], table["view"], table["log"]) == ("/default/events", "events", False)
    assert table["columns"] == ["id"]
    assert table["conditions"] == ["id < 1"]
    assert table["snapshot"] == [{"part": None, "end": 4, "cut": 2}]
    memory, disk = table["memory"], table["disk"]
    assert (memory["chunks"], memory["chunks_read"], memory["rows"]) == (1, 0, 2)
    assert (disk["files"], disk["files_read"], disk["rows_read"]) == (1, 1, 2)
    assert memory["bytes"] > 0 == memory["bytes_read"]
    assert disk["bytes_read"] == disk["bytes"] > 0
    assert disk["names_read"] == ["0000000000000000-0000000000000002-0.parquet"]
    assert "UNGROUPED_AGGREGATE" in facts["plan"]
    assert engine.running() == []


def test_describe_opens_no_file(tiers):
    """The columns of a topic are known without its records, however many there are."""
    part = tiers.create("cold", {"id": pa.int64()})
    part.in_place = False
    part.append({"id": 1})
    part.flush()
    engine = tiers.engine()
    assert [row[0] for row in engine.query("DESCRIBE cold").rows()] == ["_offset", "_time", "id"]
    assert part.opened == []
    assert engine.query("SUMMARIZE cold").rows()[2][2:4] == ("1", "1")
    assert part.opened == [part.files[0].name]
    engine.close()
