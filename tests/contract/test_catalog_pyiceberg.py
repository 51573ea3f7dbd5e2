"""What PyIceberg does with tables works on every catalog: data, evolution, refs, races, purges."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.exceptions import (
    NoSuchTableError,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import SortField, SortOrder
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform
from pyiceberg.types import (
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

ROWS = pa.table({"a": pa.array(range(10), pa.int64()), "b": ["x"] * 10})


@pytest.fixture
def client(catalog):
    return catalog.pyiceberg()


@pytest.fixture
def ns(catalog):
    return catalog.namespace()


def count(table):
    return len(table.scan().to_arrow())


def test_columns_evolve(client, ns):
    """Adding, renaming, widening, moving and dropping columns keeps ids and old rows."""
    table = client.create_table(
        f"{ns}.t",
        schema=pa.schema(
            [("a", pa.int32()), ("b", pa.string()), ("s", pa.struct([("x", pa.int64())]))]
        ),
    )
    table.append(pa.table({"a": pa.array([1], pa.int32()), "b": ["x"], "s": [{"x": 5}]}))
    first = table.schema()
    with table.update_schema() as update:
        update.add_column("c", LongType())
        update.add_column(("s", "y"), StringType())
        update.rename_column("b", "name")
        update.update_column("a", LongType())
        update.move_first("c")
    found = client.load_table(f"{ns}.t")
    assert found.schema().find_field("name").field_id == first.find_field("b").field_id
    assert found.schema().fields[0].name == "c"
    assert isinstance(found.schema().find_type("a"), LongType)
    assert found.scan().to_arrow().to_pylist() == [
        {"c": None, "a": 1, "name": "x", "s": {"x": 5, "y": None}}
    ]
    with found.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("name")
    found = client.load_table(f"{ns}.t")
    assert [field.name for field in found.schema().fields] == ["c", "a", "s"]
    assert len(found.metadata.schemas) == 3


def test_partitions_and_orders_are_kept_and_evolve(client, ns):
    """A table keeps its spec and order, and a new spec is for new files only."""
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "ts", TimestamptzType(), required=True),
        NestedField(3, "name", StringType(), required=False),
        identifier_field_ids=[1],
    )
    table = client.create_table(
        f"{ns}.t",
        schema=schema,
        partition_spec=PartitionSpec(PartitionField(2, 1000, DayTransform(), "ts_day")),
        sort_order=SortOrder(SortField(1, IdentityTransform())),
    )
    assert (table.spec().fields[0].name, table.sort_order().fields[0].source_id) == ("ts_day", 1)
    assert table.schema().identifier_field_ids == [1]
    with table.update_spec() as update:
        update.add_field("id", BucketTransform(4), "id_bucket")
    found = client.load_table(f"{ns}.t")
    assert [field.name for field in found.spec().fields] == ["ts_day", "id_bucket"]
    assert [field.field_id for field in found.spec().fields] == [1000, 1001]
    assert len(found.specs()) == 2


def test_branches_and_tags_come_and_go(client, ns):
    """Refs hold snapshots with their retention, and a branch has rows of its own."""
    table = client.create_table(f"{ns}.t", schema=ROWS.schema)
    table.append(ROWS)
    first = table.current_snapshot().snapshot_id
    with table.manage_snapshots() as refs:
        refs.create_branch(first, "dev", max_snapshot_age_ms=5000, min_snapshots_to_keep=2)
        refs.create_tag(first, "v1", max_ref_age_ms=9000)
    branch = client.load_table(f"{ns}.t").refs()["dev"]
    assert (branch.max_snapshot_age_ms, branch.min_snapshots_to_keep) == (5000, 2)
    table.append(ROWS)
    table.append(ROWS, branch="dev")
    table.append(ROWS, branch="dev")
    found = client.load_table(f"{ns}.t")
    assert count(found) == 20
    assert (found.refs()["v1"].snapshot_id, found.refs()["v1"].max_ref_age_ms) == (first, 9000)
    assert len(found.scan(snapshot_id=found.refs()["dev"].snapshot_id).to_arrow()) == 30
    with found.manage_snapshots() as refs:
        refs.remove_tag("v1")
        refs.remove_branch("dev")
    assert set(client.load_table(f"{ns}.t").refs()) == {"main"}


def test_a_transaction_is_one_commit(client, ns):
    """A schema change, rows and properties in one transaction are one metadata file."""
    table = client.create_table(f"{ns}.t", schema=ROWS.schema)
    with table.transaction() as transaction:
        with transaction.update_schema() as update:
            update.add_column("c", LongType())
        transaction.append(ROWS)
        transaction.set_properties({"k": "v"})
    found = client.load_table(f"{ns}.t")
    assert len(found.metadata.metadata_log) == 1
    assert count(found) == 10
    assert found.properties["k"] == "v"


def test_a_table_is_made_with_its_first_rows(client, ns):
    """A staged creation appears with its rows or not at all."""
    with client.create_table_transaction(f"{ns}.t", schema=ROWS.schema) as transaction:
        with pytest.raises(NoSuchTableError):
            client.load_table(f"{ns}.t")
        transaction.append(ROWS)
    assert count(client.load_table(f"{ns}.t")) == 10
    with (
        pytest.raises(RuntimeError, match="stop"),
        client.create_table_transaction(f"{ns}.never", schema=ROWS.schema),
    ):
        raise RuntimeError("stop")
    assert client.list_tables(ns) == [(ns, "t")]


def test_a_purge_deletes_the_files_of_the_table_only(client, ns, tmp_path):
    """All files below the table go; its neighbour's and a file added from elsewhere stay."""
    table = client.create_table(f"{ns}.t", schema=ROWS.schema)
    neighbour = client.create_table(f"{ns}.n", schema=ROWS.schema)
    for each in (table, neighbour, table):
        each.append(ROWS)
    elsewhere = tmp_path / "elsewhere.parquet"
    pa.parquet.write_table(ROWS, elsewhere)
    table.add_files([str(elsewhere)])
    assert count(client.load_table(f"{ns}.t")) == 30
    home = Path(table.location())
    assert len([path for path in home.rglob("*") if path.is_file()]) > 8
    client.purge_table(f"{ns}.t")
    assert [path for path in home.rglob("*") if path.is_file()] == []
    assert elsewhere.exists()
    assert count(client.load_table(f"{ns}.n")) == 10


def test_tables_of_version_3_are_read(client, ns):
    """PyIceberg loads a table of version 3 that it cannot write itself."""
    table = client.create_table(f"{ns}.t", schema=ROWS.schema, properties={"format-version": "3"})
    assert table.metadata.format_version == 3
    assert count(client.load_table(f"{ns}.t")) == 0
