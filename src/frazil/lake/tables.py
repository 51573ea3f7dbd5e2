"""The tables of topics in the catalog, by PyIceberg: create, load, evolve, adopt, drop.

The module is imported when the first topic with a lake is bound: it needs the extra `lake`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import attrs
from pyiceberg.exceptions import NoSuchTableError

from frazil.errors import CommitUnknown, Conflict, NotFound, Unavailable
from frazil.fs import RealFileSystem
from frazil.lake.binding import bind
from frazil.lake.connection import calls, connect
from frazil.lake.durable import make_durable, settled_ends
from frazil.lake.evolve import evolve
from frazil.lake.iceberg import ADOPTED, decode_ranges, encode_ranges
from frazil.lake.table import (
    PROTOCOL,
    PROTOCOL_VERSION,
    ROWS_DROPPED,
    ROWS_IN,
    ROWS_OUT,
    ROWS_REJECTED,
    TOPIC_ID,
    end_key,
)
from frazil.lake.table_state import look
from frazil.lake.watermark import watermarks

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyiceberg.table import Table

    from frazil.clock import Clock
    from frazil.config import Settings
    from frazil.lake.connection import CatalogAddress
    from frazil.lake.iceberg import Ranges
    from frazil.lake.plan import TableName
    from frazil.lake.table import Ends, TableDefinition, TableState
    from frazil.lake.watermark import Known

__all__ = ["CatalogTables"]

CHANGE_TRIES = 5


class CatalogTables:
    """The engine's view of the catalog at one address, without Spark.

    Every call may raise `Unavailable`. `columns` returns the topic's columns at a version.
    """

    def __init__(self, address: CatalogAddress, *, settings: Settings, clock: Clock) -> None:
        self.address = address
        self._settings = settings
        self._clock = clock
        self._catalog = connect(address)
        # Not the engine's: other processes write the tables' files.
        self._file_system = RealFileSystem()

    def look(self, table: TableName) -> TableState:
        """Read how far a table is.

        Raises:
            NotFound: there is no such table.
        """
        return look(self._catalog, table)

    def load(self, table: TableName) -> Table:
        """Load a table for reading rows.

        Raises:
            NotFound: there is no such table.
        """
        with calls("load table", table=table):
            return self._catalog.load_table(tuple(table))

    def make_durable(self, table: TableName, known: Known) -> None:
        """Sync the files of the table and its side table above the remembered watermarks.

        Raises:
            CorruptionError: a file of a commit was lost in a power failure.
        """
        settled = settled_ends(known.remembered, known.choice, known.chosen)
        for each in (table.rejects, table):
            make_durable(self._catalog, each, settled, file_system=self._file_system)

    def bind(self, definition: TableDefinition, columns: Callable[[int], pa.Schema]) -> int:
        """Make or check the table and its side table; return the version of its columns.

        Raises:
            Conflict: it has other columns, another format or is of another topic.
        """
        size = self._settings.lake.writer.target_file_bytes
        made = attrs.evolve(definition, root=self.address.warehouse, target_file_bytes=size)
        return bind(self._catalog, made, clock=self._clock, columns=columns)

    def evolve(self, definition: TableDefinition, columns: Callable[[int], pa.Schema]) -> int:
        """Update the table's columns to the definition's version; return the table's version.

        Raises:
            Conflict: another program changed them.
        """
        return evolve(
            self._catalog,
            definition.table,
            topic_id=definition.uid,
            wanted=definition.schema_version,
            columns=columns,
            partitioned=definition.parts > 0,
        )

    def take_over(self, table: TableName, uid: str, adopted: Ranges) -> None:
        """Make a table of another topic this one's, after its side table if there is one.

        The rows in `adopted` stay another log's.
        """

        def owned(found: dict[str, str]) -> dict[str, str]:
            return {TOPIC_ID: uid, ADOPTED: encode_ranges(decode_ranges(found, ADOPTED), adopted)}

        with contextlib.suppress(NotFound):
            self._change("take the table over", table.rejects, owned)
        self._change("take the table over", table, owned)

    def advance(self, table: TableName, ends: Ends) -> None:
        """Commit an empty snapshot that moves a table's watermark, unless it is there already."""
        for _attempt in range(CHANGE_TRIES):
            view = self.look(table)
            marks, _certain = watermarks(view, {})
            if all(marks.get(part, 0) >= end for part, end in ends.items()):
                return
            summary = {
                TOPIC_ID: view.topic_id or "",
                PROTOCOL: PROTOCOL_VERSION,
                **dict.fromkeys((ROWS_IN, ROWS_OUT, ROWS_REJECTED, ROWS_DROPPED), "0"),
                **{end_key(p): str(max(end, marks.get(p, 0))) for p, end in ends.items()},
            }
            with (
                contextlib.suppress(Conflict, CommitUnknown),
                calls("move the table's end", writes=True, table=table),
                self._catalog.load_table(tuple(table)).transaction() as change,
                change.update_snapshot(snapshot_properties=summary).fast_append(),
            ):
                pass
        raise Unavailable("others keep changing the table", table=table)

    def declare(self, table: TableName, key: str, ranges: Ranges) -> None:
        """Add ranges, by part, to a property of a table; see `frazil.lake.iceberg`."""
        self._change(
            "declare offsets",
            table,
            lambda found: {key: encode_ranges(decode_ranges(found, key), ranges)},
        )

    def _change(
        self, what: str, table: TableName, wanted: Callable[[dict[str, str]], dict[str, str]]
    ) -> None:
        """Set properties, which depend on those that are there; on return they are set."""
        for _attempt in range(CHANGE_TRIES):
            try:
                with calls(what, writes=True, table=table):
                    loaded = self._catalog.load_table(tuple(table))
                    found = loaded.properties
                    new = wanted(found)
                    if all(found.get(key) == value for key, value in new.items()):
                        return
                    with loaded.transaction() as change:
                        change.set_properties(new)
            except (Conflict, CommitUnknown):
                continue
            else:
                return
        raise Unavailable("others keep changing the table", table=table)

    def drop(self, table: TableName, uid: str) -> None:
        """Remove a table and its side table, files included, if they are this topic's.

        Raises:
            Conflict: the table is another topic's; nothing was removed.
            NotFound: there is no such table.
        """
        found = self.look(table)
        if found.topic_id != uid:
            raise Conflict("the table is another topic's", table=table, topic_id=found.topic_id)
        for each in (table, table.rejects):
            with calls("drop table", writes=True, table=each):
                try:
                    self._catalog.purge_table(tuple(each))
                except NoSuchTableError:
                    continue
