"""DuckDB with everything external turned off, for good: the second wall behind the guard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from frazil.errors import InvalidRequest

if TYPE_CHECKING:
    import duckdb

__all__ = ["connect_locked", "quoted_text"]

DUCKDB_VERSION: Final = "1.5.5"
_OFF: Final = (
    "autoload_known_extensions",
    "autoinstall_known_extensions",
    "allow_community_extensions",
    "allow_unsigned_extensions",
    "allow_persistent_secrets",
    "python_enable_replacements",
    "enable_external_file_cache",
)


def connect_locked(
    *,
    threads: int = 0,
    memory_bytes: int,
    directories: Sequence[str] = (),
    temp_directory: str = "",
    temp_bytes_max: int = 0,
) -> duckdb.DuckDBPyConnection:
    """Open an instance in memory that reads `directories` alone, and lock its configuration.

    `temp_directory` takes what does not fit into `memory_bytes`; empty means that nothing may be
    written. 0 threads is one a core.

    Raises:
        InvalidRequest: if the version of DuckDB that SQL is made for is not installed.
    """
    try:
        import duckdb
    except ImportError as error:
        raise InvalidRequest("SQL needs DuckDB: pip install 'frazil[query]'") from error
    if duckdb.__version__ != DUCKDB_VERSION:
        raise InvalidRequest(
            "SQL needs another version of DuckDB: pip install 'frazil[query]'",
            needed=DUCKDB_VERSION,
            found=duckdb.__version__,
        )
    connection = duckdb.connect(":memory:")
    places = ", ".join(quoted_text(path) for path in directories)
    settings = [
        *(f"SET GLOBAL {name} = false" for name in _OFF),
        f"SET GLOBAL temp_directory = {quoted_text(temp_directory)}",
        f"SET GLOBAL memory_limit = '{memory_bytes}B'",
        "SET GLOBAL TimeZone = 'UTC'",
        "SET GLOBAL parquet_metadata_cache = true",
        # A join hands what it knows of its keys to the scans of the other side, at times as a
        # Bloom filter, which the scan of an Arrow table refuses.
        "SET GLOBAL disabled_optimizers = 'join_filter_pushdown'",
        f"SET GLOBAL allowed_directories = [{places}]",
    ]
    if threads:
        settings.append(f"SET GLOBAL threads = {threads}")
    if temp_directory:
        settings.append(f"SET GLOBAL max_temp_directory_size = '{temp_bytes_max}B'")
    # The last two come last: after them nothing of the above can be changed.
    settings += [
        "SET GLOBAL enable_external_access = false",
        "SET GLOBAL lock_configuration = true",
    ]
    try:
        connection.execute("; ".join(settings))
    except duckdb.Error:
        connection.close()
        raise
    return connection


def quoted_text(text: str) -> str:
    """Write `text` as a string of SQL."""
    return "'" + text.replace("'", "''") + "'"
