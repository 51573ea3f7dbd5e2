"""Everything that Spark does to tables works on the embedded catalog, in versions 2 and 3."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from tests.integration.lake.spark_world import MARKS

pytestmark = MARKS

CATALOG = "frazil"
OLD_S = 1_700_000_000
_numbers = itertools.count(1)


@pytest.fixture
def spark(world):
    return world.session


@pytest.fixture
def namespace(spark):
    name = f"spark_{next(_numbers)}"
    spark.sql(f"CREATE NAMESPACE {CATALOG}.{name}")
    return name


@pytest.fixture(params=[2, 3])
def table(request, spark, namespace):
    """A table with four commits of 25 rows, and its full name."""
    name = f"{CATALOG}.{namespace}.t"
    spark.sql(
        f"CREATE TABLE {name} (id BIGINT, v STRING) USING iceberg TBLPROPERTIES "
        f"('format-version'='{request.param}', 'write.merge.mode'='merge-on-read',"
        " 'write.delete.mode'='merge-on-read')"
    )
    for number in range(4):
        append(spark, name, number * 25, number * 25 + 25)
    return name


def append(spark, name, first, end):
    rows = spark.range(first, end).selectExpr("id", "concat('v', id) AS v").coalesce(1)
    rows.writeTo(name).append()


def count(spark, name, suffix=""):
    return spark.sql(f"SELECT count(*), count(DISTINCT id) FROM {name}{suffix}").collect()[0][:]


def snapshots(spark, name):
    found = spark.sql(f"SELECT snapshot_id FROM {name}.snapshots ORDER BY committed_at").collect()
    return [row[0] for row in found]


def call(spark, procedure, name, **arguments):
    given = "".join(f", {key} => {value}" for key, value in arguments.items())
    inner = name.removeprefix(f"{CATALOG}.")
    return spark.sql(f"CALL {CATALOG}.system.{procedure}(table => '{inner}'{given})").collect()


def merge(spark, name, first, end, mark, branch=""):
    spark.range(first, end).selectExpr("id", f"'{mark}' AS v").createOrReplaceTempView("changes")
    spark.sql(
        f"MERGE INTO {name}{branch} t USING changes c ON t.id = c.id"
        " WHEN MATCHED THEN UPDATE SET t.v = c.v WHEN NOT MATCHED THEN INSERT *"
    )


@pytest.mark.parametrize("version", [2, 3])
def test_a_table_is_made_from_rows_and_replaced(spark, namespace, version):
    """Create-as-select and replace-as-select are each one state with their rows."""
    name = f"{CATALOG}.{namespace}.c"
    properties = f"TBLPROPERTIES ('format-version'='{version}')"
    spark.sql(f"CREATE TABLE {name} USING iceberg {properties} AS SELECT id FROM range(50)")
    assert count(spark, name) == (50, 50)
    spark.sql(
        f"CREATE OR REPLACE TABLE {name} USING iceberg {properties}"
        " AS SELECT id, id * 2 AS twice FROM range(10)"
    )
    assert count(spark, name) == (10, 10)
    assert spark.table(name).columns == ["id", "twice"]
    assert len(snapshots(spark, name)) == 2


def test_merges_overwrites_and_deletes_commit(spark, table):
    """Row-level changes are commits like others, with the rows one expects."""
    from pyspark.sql.functions import col

    merge(spark, table, 90, 120, "merged")
    assert count(spark, table) == (120, 120)
    spark.sql(f"DELETE FROM {table} WHERE id < 10")
    spark.sql(f"UPDATE {table} SET v = 'updated' WHERE id = 50")
    assert count(spark, table) == (110, 110)
    rows = spark.range(10, 20).selectExpr("id", "'over' AS v").coalesce(1)
    rows.writeTo(table).overwrite(col("id") < 25)
    assert count(spark, table) == (105, 105)
    found = spark.sql(f"SELECT v FROM {table} WHERE id IN (15, 50, 95) ORDER BY id").collect()
    assert [row[0] for row in found] == ["over", "updated", "merged"]


def test_branches_merge_and_fast_forward(spark, table):
    """A merge into a branch leaves main alone until it is moved there; tags stay where they are."""
    sid = snapshots(spark, table)[-1]
    spark.sql(f"ALTER TABLE {table} CREATE BRANCH work AS OF VERSION {sid} RETAIN 7 DAYS")
    spark.sql(f"ALTER TABLE {table} CREATE TAG start AS OF VERSION {sid} RETAIN 30 DAYS")
    merge(spark, table, 90, 110, "merged", branch=".branch_work")
    assert (count(spark, table), count(spark, table, ".branch_work")) == ((100, 100), (110, 110))
    call(spark, "fast_forward", table, branch="'main'", to="'work'")
    spark.sql(f"ALTER TABLE {table} DROP BRANCH work")
    assert (count(spark, table), count(spark, table, ".tag_start")) == ((110, 110), (100, 100))
    refs = spark.sql(f"SELECT name, max_reference_age_in_ms FROM {table}.refs").collect()
    assert {row[0]: row[1] for row in refs} == {"main": None, "start": 30 * 86_400_000}
    call(spark, "rollback_to_snapshot", table, snapshot_id=sid)
    assert count(spark, table) == (100, 100)


def test_maintenance_runs(spark, table, world):
    """Rewrites, statistics, expiry and the removal of orphans keep every row."""
    merge(spark, table, 90, 110, "merged")
    call(spark, "rewrite_data_files", table, options="map('rewrite-all', 'true')")
    merge(spark, table, 95, 115, "again")
    call(
        spark,
        "rewrite_data_files",
        table,
        strategy="'sort'",
        sort_order="'id'",
        options="map('rewrite-all', 'true')",
    )
    call(spark, "rewrite_position_delete_files", table, options="map('rewrite-all', 'true')")
    call(spark, "rewrite_manifests", table)
    call(spark, "compute_table_stats", table)
    assert count(spark, table) == (115, 115)
    call(
        spark,
        "expire_snapshots",
        table,
        older_than="current_timestamp()",
        retain_last="1",
        clean_expired_metadata="true",
    )
    assert len(snapshots(spark, table)) == 1
    inner = table.removeprefix(f"{CATALOG}.")
    home = Path(world.catalog.load_table(inner).location())
    orphan = home / "data" / "orphan.parquet"
    orphan.write_bytes(b"nobody's")
    for path in home.rglob("*"):
        os.utime(path, times=(OLD_S, OLD_S))
    call(spark, "remove_orphan_files", table)
    assert not orphan.exists()
    assert count(spark, table) == (115, 115)
    append(spark, table, 200, 210)
    assert count(spark, table) == (125, 125)


def test_tables_evolve(spark, table):
    """Columns, partitions, order and properties change, and old rows are read through it all."""
    spark.sql(f"ALTER TABLE {table} ADD COLUMN extra INT")
    spark.sql(f"ALTER TABLE {table} RENAME COLUMN v TO value")
    spark.sql(f"ALTER TABLE {table} ALTER COLUMN extra TYPE BIGINT")
    spark.sql(f"ALTER TABLE {table} ADD PARTITION FIELD bucket(4, id)")
    spark.sql(f"ALTER TABLE {table} WRITE ORDERED BY id")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('k'='v', 'gone'='x')")
    spark.sql(f"ALTER TABLE {table} UNSET TBLPROPERTIES ('gone')")
    spark.sql(f"INSERT INTO {table} VALUES (1000, 'new', 7)")
    call(spark, "compute_partition_stats", table)
    spark.sql(f"ALTER TABLE {table} DROP PARTITION FIELD bucket(4, id)")
    assert count(spark, table) == (101, 101)
    row = spark.sql(f"SELECT value, extra FROM {table} WHERE id = 3").collect()[0]
    assert tuple(row) == ("v3", None)
    properties = {row[0]: row[1] for row in spark.sql(f"SHOW TBLPROPERTIES {table}").collect()}
    assert properties["k"] == "v"
    assert "gone" not in properties


def test_a_table_is_upgraded_and_its_rows_get_ids(spark, namespace):
    """Version 2 becomes version 3; every row then has an id of its own, through merges too."""
    name = f"{CATALOG}.{namespace}.up"
    spark.sql(f"CREATE TABLE {name} (id BIGINT, v STRING) USING iceberg")
    append(spark, name, 0, 25)
    spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('format-version'='3')")
    append(spark, name, 25, 50)
    merge(spark, name, 40, 60, "merged")
    append(spark, name, 60, 70)
    ids = spark.sql(f"SELECT count(_row_id), count(DISTINCT _row_id), count(*) FROM {name}")
    assert ids.collect()[0][:] == (70, 70, 70)
