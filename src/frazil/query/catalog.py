"""What there is: the answers to SHOW TABLES and `information_schema`, made from the topics.

DuckDB's own catalog is empty and never shown: the statement reads these tables in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from frazil.model import NAMESPACE_DEFAULT
from frazil.query.views import LOG_SUFFIX, ViewColumn, view_columns

if TYPE_CHECKING:
    from frazil.query.sources import TopicInfo, TopicName

__all__ = ["INFORMATION_SCHEMA", "SHOW", "catalog_table"]

DATABASE: Final = "frazil"
INFORMATION_SCHEMA: Final = frozenset({"columns", "schemata", "tables"})
SHOW: Final = {
    '"tables"': "show_tables",
    '"schemas"': "show_schemas",
    '"databases"': "show_databases",
    "__show_tables_expanded": "show_all_tables",
}
"""What SHOW can show, by DuckDB's name for it."""

_TEXT: Final = pa.string()
_TEXTS: Final = pa.list_(pa.string())

Topics = Mapping["TopicName", "TopicInfo"]
_Rows = list[dict[str, object]]


def catalog_table(name: str, topics: Topics) -> pa.Table:
    """Return one of the tables of the catalog for the present topics."""
    schema, rows = _TABLES[name]
    listed = {topic: info for topic, info in topics.items() if info.listed}
    return pa.Table.from_pylist(rows(listed), schema=schema)


def _views(topics: Topics) -> Iterator[tuple[str, str, tuple[ViewColumn, ...]]]:
    """Yield schema, name and columns of all views, ordered by name."""
    for (namespace, name), info in sorted(topics.items(), key=lambda item: item[0]):
        yield namespace, name, view_columns(info, log=False)
        yield namespace, name + LOG_SUFFIX, view_columns(info, log=True)


def _tables(topics: Topics) -> _Rows:
    return [
        {
            "table_catalog": DATABASE,
            "table_schema": namespace,
            "table_name": name,
            "table_type": "VIEW",
            "is_insertable_into": "NO",
        }
        for namespace, name, _ in _views(topics)
    ]


def _columns(topics: Topics) -> _Rows:
    return [
        {
            "table_catalog": DATABASE,
            "table_schema": namespace,
            "table_name": name,
            "column_name": column.name,
            "ordinal_position": position,
            # What DESCRIBE says of all columns of views.
            "is_nullable": "YES",
            "data_type": column.sql_type,
        }
        for namespace, name, columns in _views(topics)
        for position, column in enumerate(columns, 1)
    ]


def _namespaces(topics: Topics) -> list[str]:
    return sorted({NAMESPACE_DEFAULT, *(namespace for namespace, _ in topics)})


def _schemata(topics: Topics) -> _Rows:
    return [
        {"catalog_name": DATABASE, "schema_name": namespace, "schema_owner": DATABASE}
        for namespace in _namespaces(topics)
    ]


def _show_tables(topics: Topics) -> _Rows:
    """List the topics; those outside of the default namespace as `namespace.name`."""
    return [
        {"name": name if namespace == NAMESPACE_DEFAULT else f"{namespace}.{name}"}
        for namespace, name in sorted(
            topics, key=lambda topic: (topic[0] != NAMESPACE_DEFAULT, topic)
        )
    ]


def _show_all_tables(topics: Topics) -> _Rows:
    return [
        {
            "database": DATABASE,
            "schema": namespace,
            "name": name,
            "column_names": [column.name for column in columns],
            "column_types": [column.sql_type for column in columns],
            "temporary": False,
        }
        for namespace, name, columns in _views(topics)
    ]


def _show_schemas(topics: Topics) -> _Rows:
    return [
        {"database_name": DATABASE, "schema_name": namespace} for namespace in _namespaces(topics)
    ]


def _show_databases(_topics: Topics) -> _Rows:
    return [{"database_name": DATABASE}]


def _texts(*names: str) -> pa.Schema:
    return pa.schema([(name, _TEXT) for name in names])


_TABLES: Final[dict[str, tuple[pa.Schema, Callable[[Topics], _Rows]]]] = {
    "tables": (
        _texts("table_catalog", "table_schema", "table_name", "table_type", "is_insertable_into"),
        _tables,
    ),
    "columns": (
        pa.schema(
            [
                *_texts("table_catalog", "table_schema", "table_name", "column_name"),
                pa.field("ordinal_position", pa.int32()),
                *_texts("column_default", "is_nullable", "data_type"),
            ]
        ),
        _columns,
    ),
    "schemata": (_texts("catalog_name", "schema_name", "schema_owner"), _schemata),
    "show_tables": (_texts("name"), _show_tables),
    "show_all_tables": (
        pa.schema(
            [
                *_texts("database", "schema", "name"),
                pa.field("column_names", _TEXTS),
                pa.field("column_types", _TEXTS),
                pa.field("temporary", pa.bool_()),
            ]
        ),
        _show_all_tables,
    ),
    "show_schemas": (_texts("database_name", "schema_name"), _show_schemas),
    "show_databases": (_texts("database_name"), _show_databases),
}
