"""The tables of a statement: each name is replaced by a placeholder for the planner's relation.

A common table expression hides the topic of the same name within its scope. A name that is neither
is refused, so that DuckDB never resolves a name itself: not in its catalog, not as a file, not as
a variable of the program.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa
from attrs import define

from frazil.errors import InvalidRequest, NotFound
from frazil.model import NAMESPACE_DEFAULT
from frazil.query.guard import Node, nodes
from frazil.query.views import LOG_SUFFIX, TopicInfo, TopicName, ViewColumn, view_columns

DATABASE: Final = "frazil"
INFORMATION_SCHEMA: Final = frozenset({"columns", "schemata", "tables"})
SHOW: Final = {
    '"tables"': "show_tables",
    '"schemas"': "show_schemas",
    '"databases"': "show_databases",
    "__show_tables_expanded": "show_all_tables",
}
"""The catalog tables of SHOW, by DuckDB's name."""

_TEXTS: Final = pa.list_(pa.string())

Topics = Mapping["TopicName", "TopicInfo"]
_Rows = Iterable[tuple[object, ...]]


def catalog_table(name: str, topics: Topics) -> pa.Table:
    """Return one of the catalog's tables for the current topics."""
    schema, rows = _TABLES[name]
    listed = {topic: info for topic, info in topics.items() if info.listed}
    names = schema.names
    return pa.Table.from_pylist(
        [dict(zip(names, row, strict=True)) for row in rows(listed)], schema=schema
    )


def _views(topics: Topics) -> Iterator[tuple[str, str, tuple[ViewColumn, ...]]]:
    """Yield schema, name and columns of all views, ordered by name."""
    for (namespace, name), info in sorted(topics.items(), key=lambda item: item[0]):
        yield namespace, name, view_columns(info, log=False)
        yield namespace, name + LOG_SUFFIX, view_columns(info, log=True)


def _tables(topics: Topics) -> _Rows:
    for namespace, name, _ in _views(topics):
        yield DATABASE, namespace, name, "VIEW", "NO"


def _columns(topics: Topics) -> _Rows:
    for namespace, name, columns in _views(topics):
        for position, column in enumerate(columns, 1):
            # DESCRIBE of DuckDB returns "YES" for all columns of views.
            yield DATABASE, namespace, name, column.name, position, None, "YES", column.sql_type


def _namespaces(topics: Topics) -> list[str]:
    return sorted({NAMESPACE_DEFAULT, *(namespace for namespace, _ in topics)})


def _show_tables(topics: Topics) -> _Rows:
    """List the topics; topics outside of the default namespace as `namespace.name`."""
    for namespace, name in sorted(topics, key=lambda topic: (topic[0] != NAMESPACE_DEFAULT, topic)):
        yield (name if namespace == NAMESPACE_DEFAULT else f"{namespace}.{name}",)


def _show_all_tables(topics: Topics) -> _Rows:
    for namespace, name, columns in _views(topics):
        names = [column.name for column in columns]
        yield DATABASE, namespace, name, names, [column.sql_type for column in columns], False


def _schema(names: str, **types: pa.DataType) -> pa.Schema:
    return pa.schema([(name, types.get(name, pa.string())) for name in names.split()])


_TABLES: Final[dict[str, tuple[pa.Schema, Callable[[Topics], _Rows]]]] = {
    "tables": (
        _schema("table_catalog table_schema table_name table_type is_insertable_into"),
        _tables,
    ),
    "columns": (
        _schema(
            "table_catalog table_schema table_name column_name ordinal_position column_default"
            " is_nullable data_type",
            ordinal_position=pa.int32(),
        ),
        _columns,
    ),
    "schemata": (
        _schema("catalog_name schema_name schema_owner"),
        lambda topics: [(DATABASE, name, DATABASE) for name in _namespaces(topics)],
    ),
    "show_tables": (_schema("name"), _show_tables),
    "show_all_tables": (
        _schema(
            "database schema name column_names column_types temporary",
            column_names=_TEXTS,
            column_types=_TEXTS,
            temporary=pa.bool_(),
        ),
        _show_all_tables,
    ),
    "show_schemas": (
        _schema("database_name schema_name"),
        lambda topics: [(DATABASE, name) for name in _namespaces(topics)],
    ),
    "show_databases": (_schema("database_name"), lambda _topics: [(DATABASE,)]),
}


_QUERIES: Final = frozenset({"RECURSIVE_CTE_NODE", "SELECT_NODE", "SET_OPERATION_NODE"})
_EMPTY: Final[frozenset[str]] = frozenset()

Scope = frozenset[str]
"""Case-folded names of the visible common table expressions."""


@define(eq=False)
class TableUse:
    """One name of a topic's view, or of a table of the catalog, in a statement.

    `name` is the case-folded name that qualifies columns; `select` is the query whose FROM has the
    table; `described` means that it is in a DESCRIBE, which needs columns but no rows.
    """

    placeholder: str
    name: str
    node: Node
    topic: TopicName = ("", "")
    info: TopicInfo | None = None
    log: bool = False
    catalog: str = ""
    select: Node | None = None
    described: bool = False


def resolve_tables(
    statement: Node,
    topics: Mapping[TopicName, TopicInfo],
    placeholder: Callable[[int], str],
) -> list[TableUse]:
    """Replace tables by placeholders, in place, and return the table of each placeholder.

    Raises:
        NotFound: if no topic has the name.
        InvalidRequest: if the name cannot be a topic's.
    """
    uses: list[TableUse] = []
    qualified: set[tuple[str, str]] = set()
    described = _described(statement)
    for node, scope, select in _tables_of(statement):
        if node["type"] == "BASE_TABLE" and _is_common(node, scope):
            continue
        use = _use_of(node, topics, placeholder(len(uses)))
        use.select = select
        use.described = id(node) in described
        if node.get("schema_name") and not node["alias"]:
            qualified.add((node["schema_name"].casefold(), use.name))
        uses.append(use)
        _replace(node, use.placeholder, node["alias"] or node["table_name"])
    if qualified:
        _unqualify(statement, qualified)
    return uses


class WantedNames(NamedTuple):
    """The case-folded names in a statement: all of them, and the unqualified ones."""

    names: frozenset[str]
    alone: frozenset[str]


def wanted_names(statement: Node) -> WantedNames | None:
    """Return the names of columns that the statement may use; None if it may use any."""
    names: set[str] = set()
    alone: set[str] = set()
    for item in nodes(statement):
        kind = item.get("class") or _kind_of(item)
        if kind in {"STAR", "POSITIONAL_REFERENCE", "PIVOT", "SHOW_REF"}:
            return None
        if kind == "JOIN":
            if item["ref_type"] == "NATURAL":
                return None
            names.update(name.casefold() for name in item["using_columns"])
        elif kind == "COLUMN_REF":
            parts = [name.casefold() for name in item["column_names"]]
            names.update(parts)
            alone.update(parts if len(parts) == 1 else ())
    return WantedNames(frozenset(names), frozenset(alone))


def unnamed_columns(statement: Node) -> list[Node]:
    """Return the unnamed columns with a subquery.

    DuckDB names such a column after its text, which would show the placeholders of tables.
    """
    return [
        column
        for query in nodes(statement)
        if _kind_of(query) == "SELECT_NODE"
        for column in query["select_list"]
        if not column["alias"]
        and column["class"] != "STAR"
        and any(item.get("class") == "SUBQUERY" for item in nodes(column))
    ]


def _tables_of(statement: Node) -> list[tuple[Node, Scope, Node | None]]:
    """Yield the nodes that name tables, with their visible common names and their query."""
    found: list[tuple[Node, Scope, Node | None]] = []
    todo: list[tuple[Any, Scope, Node | None]] = [(statement, _EMPTY, None)]
    while todo:
        item, scope, select = todo.pop()
        if isinstance(item, list):
            todo += [(value, scope, None) for value in item]
        elif isinstance(item, dict) and _is_table(item):
            found.append((item, scope, select))
        elif isinstance(item, dict):
            todo += _inside(item, scope, select)
    found.sort(key=lambda entry: entry[0]["query_location"])
    return found


def _is_table(item: Node) -> bool:
    kind = _kind_of(item)
    return kind == "BASE_TABLE" or (kind == "SHOW_REF" and item.get("query") is None)


def _inside(item: Node, scope: Scope, select: Node | None) -> list[tuple[Any, Scope, Node | None]]:
    """Return the children of a node, each with its visible common names."""
    kind = _kind_of(item)
    if kind in _QUERIES:
        return _inside_query(item, scope)
    sides = {"left", "right"} if kind == "JOIN" else ()
    return [(value, scope, select if key in sides else None) for key, value in item.items()]


def _described(statement: Node) -> set[int]:
    """Return the identities of all nodes within a DESCRIBE."""
    return {
        id(item)
        for outer in nodes(statement)
        if outer.get("show_type") == "DESCRIBE"
        for item in nodes(outer)
    }


def _kind_of(item: Node) -> str:
    """Return the kind of a node; the type of a constant's value is a node too."""
    kind = item.get("type")
    return kind if isinstance(kind, str) else ""


def _inside_query(node: Node, scope: Scope) -> list[tuple[Any, Scope, Node | None]]:
    """Return the children of a query, each with its visible common names.

    A common table expression sees the ones before it, and itself only if it is recursive; the
    query sees all of them.
    """
    found: list[tuple[Any, Scope, Node | None]] = []
    if node["type"] == "RECURSIVE_CTE_NODE":
        scope |= {node["cte_name"].casefold()}
    for entry in node["cte_map"]["map"]:
        found.append((entry["value"], scope, None))
        scope |= {_common_name(entry["key"])}
    for key, value in node.items():
        if key == "from_table" and node["type"] == "SELECT_NODE":
            found.append((value, scope, node))
        elif key != "cte_map":
            found.append((value, scope, None))
    return found


def _common_name(name: str) -> str:
    # DuckDB takes an unknown table name with these characters for a file name.
    if any(character in name for character in "./\\:*?"):
        raise InvalidRequest("a common table expression cannot have this name", name=name)
    return name.casefold()


def _is_common(node: Node, scope: Scope) -> bool:
    if node["schema_name"] or node["catalog_name"]:
        return False
    return str(node["table_name"]).casefold() in scope


def _use_of(node: Node, topics: Mapping[TopicName, TopicInfo], placeholder: str) -> TableUse:
    schema, table = node["schema_name"], node["table_name"]
    if node["type"] == "SHOW_REF":
        shown = SHOW.get(table)
        if shown is None or schema or node["catalog_name"]:
            raise InvalidRequest("only SHOW TABLES, ALL TABLES, SCHEMAS and DATABASES are known")
        return TableUse(placeholder, shown, node, catalog=shown)
    name = (node["alias"] or table).casefold()
    if node["catalog_name"]:
        raise _unknown(f"{node['catalog_name']}.{schema}.{table}", topics)
    if schema.casefold() == "information_schema":
        return TableUse(placeholder, name, node, catalog=_catalog_name(table))
    plain = table[: -len(LOG_SUFFIX)] if _is_log(table) else table
    topic = topic_of(schema, plain, topics)
    if topic is None:
        raise _unknown(f"{schema}.{plain}" if schema else plain, topics)
    return TableUse(placeholder, name, node, topic=topic, info=topics[topic], log=_is_log(table))


def _is_log(table: str) -> bool:
    return table.casefold().endswith(LOG_SUFFIX)


def _catalog_name(table: str) -> str:
    if table.casefold() not in INFORMATION_SCHEMA:
        raise NotFound(
            "no such table of information_schema",
            table=table,
            known=", ".join(sorted(INFORMATION_SCHEMA)),
        )
    return table.casefold()


def topic_of(schema: str, name: str, topics: Mapping[TopicName, TopicInfo]) -> TopicName | None:
    """Find a topic by its exact name, else the only one whose name differs in case alone."""
    namespace = schema or NAMESPACE_DEFAULT
    topic = (unicodedata.normalize("NFC", namespace), unicodedata.normalize("NFC", name))
    if topic in topics:
        return topic
    folded = (topic[0].casefold(), topic[1].casefold())
    like = [known for known in topics if (known[0].casefold(), known[1].casefold()) == folded]
    return like[0] if len(like) == 1 else None


def _unknown(name: str, topics: Mapping[TopicName, TopicInfo]) -> NotFound:
    import difflib

    known = [
        topic if namespace == NAMESPACE_DEFAULT else f"{namespace}.{topic}"
        for namespace, topic in topics
    ]
    close = difflib.get_close_matches(name, known, n=3)
    if close:
        return NotFound("no such topic", table=name, similar=", ".join(close))
    return NotFound("no such topic, SHOW TABLES lists them", table=name)


def _replace(node: Node, placeholder: str, alias: str) -> None:
    kept = {key: node[key] for key in ("sample", "query_location")}
    columns = node.get("column_name_alias", [])
    if node["type"] == "SHOW_REF":
        alias = node["alias"]
    node.clear()
    node.update(
        kept,
        type="BASE_TABLE",
        alias=alias,
        schema_name="",
        table_name=placeholder,
        column_name_alias=columns,
        catalog_name="",
        at_clause=None,
    )


def _unqualify(statement: Node, qualified: set[tuple[str, str]]) -> None:
    """Remove the namespace from columns written as `namespace.topic.column`."""
    for item in nodes(statement):
        names: list[str] = item["column_names"] if item.get("class") == "COLUMN_REF" else []
        if len(names) > 2 and (names[0].casefold(), names[1].casefold()) in qualified:
            del names[0]
