"""The calls of the commit protocol on real tables: looks by PyIceberg, writes by Spark and Iceberg.

A write is fenced by the snapshot of the look before it: `overwrite` with a filter that is never
true deletes nothing, is recorded as an append, and fails if any data was added since that snapshot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from frazil.errors import CommitUnknown
from frazil.fs import RealFileSystem
from frazil.lake.connection import calls, load
from frazil.lake.durable import make_durable
from frazil.lake.expiry import METADATA_BYTES_MAX, SNAPSHOTS_MAX
from frazil.lake.iceberg import parse_metadata
from frazil.lake.java_errors import java_calls
from frazil.lake.stages.columns import quoted
from frazil.lake.table_state import look

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession
    from pyspark.sql import types as T  # noqa: N812 - as F

    from frazil.fs import FileSystem
    from frazil.lake.iceberg import Snapshot, TableMetadata
    from frazil.lake.plan import TableName
    from frazil.lake.table import Ends, Rows, TableState

__all__ = ["SparkTables"]

SNAPSHOTS_KEPT: Final = 64
"""The limit of commits whose snapshot ids are cached."""


class SparkTables:
    """The tables of one catalog, as the commit protocol uses them. Any thread may call.

    Every call may raise `NotFound` (no such table), `Conflict` (another program committed, this
    call did not), `CommitUnknown` (the commit may have happened, or may still happen) or
    `Unavailable` (catalog or storage cannot be reached; a write may still have happened).

    Args:
        spark: the session.
        catalog: PyIceberg's catalog, for looks and properties.
        name: Spark's name of the same catalog.
        file_system: of a local warehouse.
    """

    def __init__(
        self,
        spark: SparkSession,
        catalog: Catalog,
        *,
        name: str,
        file_system: FileSystem | None = None,
    ) -> None:
        self._spark = spark
        self._catalog = catalog
        self._name = name
        self._file_system = file_system or RealFileSystem()
        self._made_last: dict[int, Snapshot] = {}
        self.large: set[TableName] = set()
        """Tables that had more metadata than they should when they were last written to."""

    def made(self, sid: int | None) -> Snapshot | None:
        """Return the snapshot that a commit of this object made, once."""
        return None if sid is None else self._made_last.pop(sid, None)

    def columns(self, table: TableName) -> T.StructType:
        """Return the columns of a table as Spark has them."""
        with java_calls("read the table's columns", table):
            return self._spark.table(self._identifier(table)).schema

    def load(self, table: TableName) -> TableState:
        """Read the table's current metadata once."""
        return look(self._catalog, table)

    def make_durable(self, table: TableName, settled: Ends) -> None:
        """Sync the files of the commits above these watermarks; see `frazil.lake.durable`."""
        make_durable(self._catalog, table, settled, file_system=self._file_system)

    def cas_append(
        self, table: TableName, rows: Rows, *, sid: int | None, summary: Mapping[str, str]
    ) -> int:
        """Append rows if no data was added since snapshot `sid`; return the new snapshot's id.

        `sid` None means a table without a snapshot. `rows` may be empty: the commit still makes a
        snapshot with `summary`.
        """
        assert isinstance(rows, DataFrame)
        with java_calls("append", table, writes=True):
            writer = rows.writeTo(self._identifier(table))
            writer = writer.option("isolation-level", "serializable")
            if sid is not None:
                writer = writer.option("validate-from-snapshot-id", str(sid))
            # The stages decide how many files there are; a shuffle would only cost.
            writer = writer.option("distribution-mode", "none")
            for key, value in summary.items():
                writer = writer.option(f"snapshot-property.{key}", value)
            writer.overwrite(F.lit(False))
        return self._made(table, sid, summary)

    def set_property(self, table: TableName, properties: Mapping[str, str]) -> None:
        """Set properties of the table."""
        with (
            calls("set property", writes=True, table=table),
            self._catalog.load_table(tuple(table)).transaction() as transaction,
        ):
            transaction.set_properties(dict(properties))

    def expire(self, table: TableName, snapshots: Sequence[int]) -> None:
        """Expire exactly these snapshots, with the files that only they have.

        This uses Iceberg's Java call: the procedure runs Spark jobs over the files of all
        snapshots, and the table's next commit waits for it.
        """
        java: Any = self._spark.sparkContext._jvm  # noqa: SLF001 - PySpark has no call for it
        with java_calls("expire snapshots", table, writes=True):
            found = java.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
                self._spark._jsparkSession,  # noqa: SLF001 - as above
                self._identifier(table),
            )
            # Without an explicit time Iceberg would also expire snapshots by age.
            change = found.expireSnapshots().expireOlderThan(0)
            for sid in snapshots:
                change = change.expireSnapshotId(sid)
            change.cleanExpiredFiles(True).commit()

    # -- with Spark --

    def _identifier(self, table: TableName) -> str:
        return ".".join(quoted(part) for part in (self._name, table.namespace, table.name))

    # -- with the catalog --

    def _metadata(self, table: TableName) -> TableMetadata:
        loaded = load(self._catalog, table)
        found = parse_metadata(loaded.metadata, table)
        if len(found.snapshots) > SNAPSHOTS_MAX or len(loaded.metadata) > METADATA_BYTES_MAX:
            self.large.add(table)
        return found

    def _made(self, table: TableName, sid: int | None, summary: Mapping[str, str]) -> int:
        """Find the snapshot that a write has just made: others may have committed since then."""
        for snapshot in self._metadata(table).ancestors():
            if snapshot.snapshot_id == sid:
                break
            if summary.items() <= snapshot.summary.items():
                self._made_last[snapshot.snapshot_id] = snapshot
                while len(self._made_last) > SNAPSHOTS_KEPT:
                    self._made_last.pop(next(iter(self._made_last)))
                return snapshot.snapshot_id
        raise CommitUnknown(
            "snapshot of the commit is not there any more, look before anything else", table=table
        )
