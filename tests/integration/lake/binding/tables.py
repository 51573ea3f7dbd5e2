"""Definitions of tables and rows for them, as the tests of binding need them."""

from __future__ import annotations

import datetime as dt
import zlib

import pyarrow as pa

from frazil.lake.table import TableDefinition
from frazil.model import WHOLE
from frazil.schema import declare_schema

TIME = dt.datetime(2026, 11, 15, tzinfo=dt.UTC)


def defined(topic, served, *, columns=None, **options):
    """Return a definition of a topic with the given columns, in the catalog's warehouse."""
    schema = options.pop("schema", None)
    if schema is None:
        schema = declare_schema(columns or {"id": "long", "name": "string"})
    return TableDefinition(
        topic=topic,
        uid=options.pop("uid", f"{zlib.crc32(topic.encode()):016x}"),
        schema=schema,
        schema_version=options.pop("version", 1),
        root=served.warehouse,
        **options,
    )


def append(catalog, table, places, **marks):
    """Append rows at `(part, offset)` to a table, with marks in the snapshot's summary."""
    found = catalog.load_table(tuple(table))
    fields = found.schema().as_arrow()
    rows = [
        {"_offset": offset, "_time": TIME, **({} if part == WHOLE else {"_part": part})}
        for part, offset in places
    ]
    found.append(pa.Table.from_pylist(rows, schema=fields), snapshot_properties=marks)
    return catalog.load_table(tuple(table))
