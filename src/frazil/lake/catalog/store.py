"""The catalog's SQLite rows, in the layout of Iceberg's JdbcCatalog V1 and PyIceberg's SqlCatalog.

A table is one row that names its newest metadata file; a commit swaps that name if it has not
changed since the commit was built. Other programs may write the same file, so nothing is cached.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import apsw

from frazil.errors import CorruptionError, Unavailable
from frazil.lake.catalog.refusals import (
    OutcomeUnknown,
    Refusal,
    already_exists,
    no_namespace,
    no_table,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from frazil.fs import FileSystem

__all__ = ["Store", "Swap", "SwapLost"]

MEMORY: Final = ":memory:"
"""The path of a file in memory."""
BUSY_TIMEOUT_MS: Final = 10_000
EXISTS: Final = "exists"
"""The property that every namespace has, so that one without properties has a row too."""

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS iceberg_tables (
  catalog_name VARCHAR(255) NOT NULL,
  table_namespace VARCHAR(255) NOT NULL,
  table_name VARCHAR(255) NOT NULL,
  metadata_location VARCHAR(1000),
  previous_metadata_location VARCHAR(1000),
  iceberg_type VARCHAR(5),
  PRIMARY KEY (catalog_name, table_namespace, table_name)
);
CREATE TABLE IF NOT EXISTS iceberg_namespace_properties (
  catalog_name VARCHAR(255) NOT NULL,
  namespace VARCHAR(255) NOT NULL,
  property_key VARCHAR(255) NOT NULL,
  property_value VARCHAR(1000) NOT NULL,
  PRIMARY KEY (catalog_name, namespace, property_key)
);
"""
_TABLES: Final = (
    "SELECT table_name FROM iceberg_tables WHERE catalog_name = ? AND table_namespace = ?"
    " AND (iceberg_type = 'TABLE' OR iceberg_type IS NULL)"
)
_LOCATION: Final = (
    "SELECT metadata_location FROM iceberg_tables"
    " WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?"
    " AND (iceberg_type = 'TABLE' OR iceberg_type IS NULL)"
)
_SWAP: Final = (
    "UPDATE iceberg_tables SET metadata_location = ?, previous_metadata_location = ?"
    " WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?"
    " AND metadata_location = ? AND (iceberg_type = 'TABLE' OR iceberg_type IS NULL)"
)
_DROP: Final = (
    "DELETE FROM iceberg_tables"
    " WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?"
    " AND (iceberg_type = 'TABLE' OR iceberg_type IS NULL)"
)
_RENAME: Final = (
    "UPDATE iceberg_tables SET table_namespace = ?, table_name = ?"
    " WHERE catalog_name = ? AND table_namespace = ? AND table_name = ?"
    " AND (iceberg_type = 'TABLE' OR iceberg_type IS NULL)"
)
_DAMAGE = (apsw.CorruptError, apsw.NotADBError)


class Swap(NamedTuple):
    """The swap of one table's metadata file: from `expected`, None for a new table, to `new`."""

    namespace: str
    name: str
    expected: str | None
    new: str


class SwapLost(Exception):
    """Another commit was first; nothing was changed."""


class Store:
    """The rows of one catalog. All methods may be called from any thread.

    Args:
        path: the SQLite file, made if it is missing.
        catalog: the name that this catalog's rows have.
        file_system: makes the file, for its owner only.
    """

    def __init__(self, path: str, *, catalog: str, file_system: FileSystem) -> None:
        self._catalog = catalog
        self._path = path
        self._lock = threading.RLock()
        with self._translated("open"):
            if path != MEMORY:
                with contextlib.suppress(FileExistsError):
                    file_system.open(path, "create").close()
            self._connection = connection = apsw.Connection(path)
            connection.set_busy_timeout(BUSY_TIMEOUT_MS)
            connection.execute("PRAGMA journal_mode = wal")
            connection.execute("PRAGMA synchronous = full")
        with self._transaction():
            connection.execute(_SCHEMA)
            columns = [row[1] for row in connection.execute("PRAGMA table_info(iceberg_tables)")]
            if "iceberg_type" not in columns:
                connection.execute("ALTER TABLE iceberg_tables ADD COLUMN iceberg_type VARCHAR(5)")

    def close(self) -> None:
        """Close the connection; committed rows stay."""
        with self._lock:
            self._connection.close()

    # --------------------------------------------------------------------- namespaces
    def create_namespace(self, namespace: str, properties: Mapping[str, str]) -> None:
        """Add a namespace; raise a Refusal if it exists."""
        with self._transaction() as connection:
            if self._has_namespace(connection, namespace):
                raise already_exists("namespace already exists", namespace=namespace)
            self._put_properties(connection, namespace, {EXISTS: "true", **properties})

    def drop_namespace(self, namespace: str) -> None:
        """Remove an empty namespace; raise a Refusal if it is missing or not empty."""
        with self._transaction() as connection:
            if not self._has_namespace(connection, namespace):
                raise no_namespace(namespace)
            inside = _first(
                connection,
                "SELECT table_name FROM iceberg_tables"
                " WHERE catalog_name = ? AND table_namespace = ?",
                (self._catalog, namespace),
            )
            below = [name for name in self._names(connection) if name.startswith(f"{namespace}.")]
            if inside is not None or below:
                raise Refusal(
                    409,
                    "NamespaceNotEmptyException",
                    "namespace is not empty",
                    namespace=namespace,
                    contains=below[0] if inside is None else inside[0],
                )
            connection.execute(
                "DELETE FROM iceberg_namespace_properties WHERE catalog_name = ? AND namespace = ?",
                (self._catalog, namespace),
            )

    def namespace_properties(self, namespace: str) -> dict[str, str]:
        """Return the properties of a namespace; raise a Refusal if it is missing."""
        with self._reading() as connection:
            if not self._has_namespace(connection, namespace):
                raise no_namespace(namespace)
            return self._properties(connection, namespace)

    def update_namespace(
        self, namespace: str, *, removals: Sequence[str], updates: Mapping[str, str]
    ) -> tuple[list[str], list[str]]:
        """Change properties; return which of `removals` were there, and which were not."""
        with self._transaction() as connection:
            if not self._has_namespace(connection, namespace):
                raise no_namespace(namespace)
            properties = self._properties(connection, namespace)
            removed = [key for key in removals if key in properties]
            connection.executemany(
                "DELETE FROM iceberg_namespace_properties"
                " WHERE catalog_name = ? AND namespace = ? AND property_key = ?",
                [(self._catalog, namespace, key) for key in removed],
            )
            self._put_properties(connection, namespace, {EXISTS: "true", **updates})
        return removed, [key for key in removals if key not in properties]

    def namespaces(self, parent: str | None) -> list[str]:
        """Return the namespaces directly below a parent, or those of the first level, sorted."""
        prefix = "" if parent is None else f"{parent}."
        with self._reading() as connection:
            if parent is not None and not self._has_namespace(connection, parent):
                raise no_namespace(parent)
            names = self._names(connection)
        inner = {name[len(prefix) :] for name in names if name.startswith(prefix)}
        return sorted({prefix + name.partition(".")[0] for name in inner})

    def _names(self, connection: apsw.Connection) -> set[str]:
        rows = connection.execute(
            "SELECT namespace FROM iceberg_namespace_properties WHERE catalog_name = ?"
            " UNION SELECT table_namespace FROM iceberg_tables WHERE catalog_name = ?",
            (self._catalog, self._catalog),
        )
        return {row[0] for row in rows}

    def _has_namespace(self, connection: apsw.Connection, namespace: str) -> bool:
        # A namespace also exists if a table or namespace is below it.
        return any(
            name == namespace or name.startswith(f"{namespace}.")
            for name in self._names(connection)
        )

    def _properties(self, connection: apsw.Connection, namespace: str) -> dict[str, str]:
        rows = connection.execute(
            "SELECT property_key, property_value FROM iceberg_namespace_properties"
            " WHERE catalog_name = ? AND namespace = ?",
            (self._catalog, namespace),
        )
        return {key: value for key, value in rows if key != EXISTS}

    def _put_properties(
        self, connection: apsw.Connection, namespace: str, properties: Mapping[str, str]
    ) -> None:
        connection.executemany(
            "INSERT OR REPLACE INTO iceberg_namespace_properties VALUES (?, ?, ?, ?)",
            [(self._catalog, namespace, key, value) for key, value in properties.items()],
        )

    # ------------------------------------------------------------------------- tables
    def tables(self, namespace: str) -> list[str]:
        """Return the sorted names of a namespace's tables; raise a Refusal if it is missing."""
        with self._reading() as connection:
            if not self._has_namespace(connection, namespace):
                raise no_namespace(namespace)
            return sorted(row[0] for row in connection.execute(_TABLES, (self._catalog, namespace)))

    def location(self, namespace: str, name: str) -> str | None:
        """Return a table's metadata file, None if there is no such table."""
        with self._reading() as connection:
            row = _first(connection, _LOCATION, (self._catalog, namespace, name))
        return None if row is None or row[0] is None else str(row[0])

    def has_namespace(self, namespace: str) -> bool:
        """Return whether a namespace exists."""
        with self._reading() as connection:
            return self._has_namespace(connection, namespace)

    def locations(self) -> list[str]:
        """Return the metadata files of everything in the SQLite file, of other catalogs too."""
        with self._reading() as connection:
            rows = connection.execute("SELECT metadata_location FROM iceberg_tables")
            return [row[0] for row in rows if row[0] is not None]

    def swap(self, swaps: Sequence[Swap]) -> None:
        """Apply all swaps or none; durable on return.

        Raises:
            SwapLost: a table's file is not the expected one; nothing was changed.
            Refusal: a new table's name is taken, or its namespace is missing.
            OutcomeUnknown: storage failed; the swaps may have happened.
        """
        with self._transaction() as connection:
            for swap in swaps:
                if swap.expected is None:
                    self._insert(connection, swap)
                    continue
                connection.execute(
                    _SWAP,
                    (swap.new, swap.expected, self._catalog, *swap[:2], swap.expected),
                )
                if connection.changes() != 1:
                    raise SwapLost

    def _insert(self, connection: apsw.Connection, swap: Swap) -> None:
        if not self._has_namespace(connection, swap.namespace):
            raise no_namespace(swap.namespace)
        try:
            connection.execute(
                "INSERT INTO iceberg_tables (catalog_name, table_namespace, table_name,"
                " metadata_location, previous_metadata_location, iceberg_type)"
                " VALUES (?, ?, ?, ?, NULL, 'TABLE')",
                (self._catalog, swap.namespace, swap.name, swap.new),
            )
        except apsw.ConstraintError as error:
            raise already_exists(
                "table or view already exists", table=f"{swap.namespace}.{swap.name}"
            ) from error

    def drop(self, namespace: str, name: str) -> str:
        """Remove a table's row and return its last metadata file."""
        with self._transaction() as connection:
            row = _first(connection, _LOCATION, (self._catalog, namespace, name))
            if row is None:
                raise no_table(namespace, name)
            connection.execute(_DROP, (self._catalog, namespace, name))
        return str(row[0])

    def rename(self, source: tuple[str, str], target: tuple[str, str]) -> None:
        """Rename a table, also into another namespace."""
        with self._transaction() as connection:
            if not self._has_namespace(connection, target[0]):
                raise no_namespace(target[0])
            try:
                connection.execute(_RENAME, (*target, self._catalog, *source))
            except apsw.ConstraintError as error:
                raise already_exists(
                    "table or view already exists", table=".".join(target)
                ) from error
            if connection.changes() != 1:
                raise no_table(*source)

    # --------------------------------------------------------------------- connections
    @contextlib.contextmanager
    def _reading(self) -> Iterator[apsw.Connection]:
        with self._lock, self._translated("read"):
            yield self._connection

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[apsw.Connection]:
        """Hold the file's write lock; commit at the end, or roll back."""
        connection = self._connection
        with self._lock, self._translated("write"):
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
            except BaseException:
                # After some errors SQLite has already rolled back.
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
            try:
                connection.execute("COMMIT")
            except apsw.Error as error:
                # The log may have the commit although the call failed: the outcome is unknown.
                with contextlib.suppress(apsw.Error):
                    connection.execute("ROLLBACK")
                raise OutcomeUnknown(
                    "commit of the catalog's file failed", path=self._path, reason=error
                ) from error

    @contextlib.contextmanager
    def _translated(self, verb: str) -> Iterator[None]:
        try:
            yield
        except _DAMAGE as error:
            raise CorruptionError(
                "catalog file is damaged", path=self._path, reason=error
            ) from error
        except (apsw.Error, OSError) as error:
            raise Unavailable(
                f"catalog file cannot be used to {verb}", path=self._path, reason=error
            ) from error


def _first(
    connection: apsw.Connection, statement: str, values: tuple[str, ...]
) -> tuple[object, ...] | None:
    rows = connection.execute(statement, values).fetchall()
    return rows[0] if rows else None
