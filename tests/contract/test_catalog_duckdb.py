"""DuckDB attaches to every catalog: it reads, inserts and creates tables at the same time as others."""

from __future__ import annotations

import duckdb
import duckdb_extensions
import pyarrow as pa
import pytest

ROWS = pa.table({"a": pa.array(range(10), pa.int64()), "b": ["x"] * 10})


@pytest.fixture
def lake(catalog):
    """Return a DuckDB connection with the catalog attached as `lake`."""
    connection = duckdb.connect()
    for name in ("avro", "httpfs", "iceberg"):
        duckdb_extensions.import_extension(name, con=connection)
        connection.load_extension(name)
    address = catalog.address
    connection.execute(f"CREATE SECRET frazil (TYPE iceberg, TOKEN '{address.token}')")
    connection.execute(f"ATTACH '' AS lake (TYPE iceberg, ENDPOINT '{address.uri}', SECRET frazil)")
    yield connection
    connection.close()


def one(connection, statement):
    return connection.execute(statement).fetchone()


def test_duckdb_reads_what_others_commit(catalog, lake):
    """Each commit of PyIceberg is seen by the next query."""
    ns = catalog.namespace()
    table = catalog.pyiceberg().create_table(f"{ns}.t", schema=ROWS.schema)
    for number in range(1, 4):
        table.append(ROWS)
        assert one(lake, f"SELECT count(*), sum(a) FROM lake.{ns}.t") == (10 * number, 45 * number)
    assert lake.execute(f"SELECT b FROM lake.{ns}.t WHERE a = 3 LIMIT 1").fetchall() == [("x",)]


def test_duckdb_inserts_what_others_read(catalog, lake):
    """Rows that DuckDB inserts are there for PyIceberg, between its own."""
    ns = catalog.namespace()
    table = catalog.pyiceberg().create_table(f"{ns}.t", schema=ROWS.schema)
    table.append(ROWS)
    lake.execute(f"INSERT INTO lake.{ns}.t VALUES (100, 'duck'), (101, NULL)")
    found = catalog.pyiceberg().load_table(f"{ns}.t")
    assert len(found.scan().to_arrow()) == 12
    found.append(ROWS)
    assert one(lake, f"SELECT count(*) FROM lake.{ns}.t") == (22,)


def test_duckdb_creates_and_drops_tables(catalog, lake):
    """A table of DuckDB is a table for everybody."""
    ns = catalog.namespace()
    lake.execute(f"CREATE TABLE lake.{ns}.made (id BIGINT, name VARCHAR)")
    lake.execute(f"INSERT INTO lake.{ns}.made SELECT range, 'n' || range FROM range(5)")
    client = catalog.pyiceberg()
    assert client.list_tables(ns) == [(ns, "made")]
    assert client.load_table(f"{ns}.made").scan().to_arrow()["name"].to_pylist()[4] == "n4"
    lake.execute(f"DROP TABLE lake.{ns}.made")
    assert client.list_tables(ns) == []


def test_duckdb_makes_several_changes_in_one_transaction(catalog, lake):
    """A transaction over two tables is seen whole, or not at all after a rollback."""
    ns = catalog.namespace()
    client = catalog.pyiceberg()
    for name in ("a", "b"):
        client.create_table(f"{ns}.{name}", schema=ROWS.schema)
    for end in ("ROLLBACK", "COMMIT"):
        lake.execute("BEGIN")
        lake.execute(f"INSERT INTO lake.{ns}.a VALUES (1, 'x')")
        lake.execute(f"INSERT INTO lake.{ns}.b VALUES (2, 'y')")
        lake.execute(end)
    counts = [len(client.load_table(f"{ns}.{name}").scan().to_arrow()) for name in ("a", "b")]
    assert counts == [1, 1]
