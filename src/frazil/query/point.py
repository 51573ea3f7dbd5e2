"""Statements that look up rows by key: answered from the index, without a plan of DuckDB.

`SELECT columns FROM topic WHERE key = constant`, in any textual form: the tree is what is
recognised. All key columns must be compared, nothing else may stand in the statement but a LIMIT.
A statement that is more than that and still names whole keys is run by DuckDB over the rows that
the index finds (`prepared.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from frazil.query.pruning import Condition, Constant, constant_of
from frazil.query.tables import topic_of
from frazil.query.views import ViewColumn, view_columns

if TYPE_CHECKING:
    from frazil.query.guard import Node
    from frazil.query.views import TopicInfo, TopicName

__all__ = ["PointPlan", "point_of"]

_EMPTY_PARTS: Final = (*("group_expressions", "group_sets", "having", "sample", "qualify"),)


class PointPlan(NamedTuple):
    """Which rows to look up, and what to show of them: (name, column) pairs."""

    topic: TopicName
    key: tuple[Condition, ...]
    shown: tuple[tuple[str, ViewColumn], ...]
    limit: Constant | None

    def rows_max(self, params: Mapping[str, Any]) -> int | None:
        """Return the limit; None if the statement must be left to DuckDB."""
        if self.limit is None:
            return 1 << 62
        value = self.limit.of(params, ())
        return value if type(value) is int and value >= 0 else None


def point_of(statement: Node, topics: Mapping[TopicName, TopicInfo]) -> PointPlan | None:
    """Return the look-up that a statement is, None if it is more than that."""
    node = statement["node"]
    if node["type"] != "SELECT_NODE" or node["where_clause"] is None or node["cte_map"]["map"]:
        return None
    if any(node[part] for part in _EMPTY_PARTS):
        return None
    if node["aggregate_handling"] != "STANDARD_HANDLING":
        return None
    table = node["from_table"]
    if table["type"] != "BASE_TABLE" or table["sample"] is not None:
        return None
    if table["column_name_alias"] or table["catalog_name"] or table["at_clause"] is not None:
        return None
    topic = topic_of(table["schema_name"], table["table_name"], topics)
    if topic is None or not topics[topic].key_names:
        return None
    is_limit, limit = _limit_of(node["modifiers"])
    if not is_limit:
        return None
    names = _Names(table, topics[topic])
    shown = _shown(node["select_list"], names)
    key = _key(node["where_clause"], names, topics[topic].key_names)
    if shown is None or key is None:
        return None
    return PointPlan(topic, key, shown, limit)


class _Names:
    """The columns that can be named in a statement over one table."""

    def __init__(self, table: Node, info: TopicInfo) -> None:
        self.columns = {column.name.casefold(): column for column in view_columns(info, log=False)}
        self._alias = (table["alias"] or table["table_name"]).casefold()
        self._schema = "" if table["alias"] else table["schema_name"].casefold()

    def column(self, node: Node) -> ViewColumn | None:
        """Return the column that an expression names, None if it is another expression."""
        if node["class"] != "COLUMN_REF":
            return None
        *path, name = [name.casefold() for name in node["column_names"]]
        if path and not self.is_table(path):
            return None
        return self.columns.get(name)

    def is_table(self, path: list[str]) -> bool:
        return path == [self._alias] or (bool(self._schema) and path == [self._schema, self._alias])


def _shown(select_list: list[Node], names: _Names) -> tuple[tuple[str, ViewColumn], ...] | None:
    shown: list[tuple[str, ViewColumn]] = []
    for node in select_list:
        if node["class"] == "STAR":
            if not _is_plain_star(node, names):
                return None
            shown += [(column.name, column) for column in names.columns.values()]
            continue
        column = names.column(node)
        if column is None:
            return None
        shown.append((node["alias"] or column.name, column))
    # DuckDB has its own way to tell apart columns of one name.
    if len({name.casefold() for name, _ in shown}) != len(shown):
        return None
    return tuple(shown)


def _is_plain_star(node: Node, names: _Names) -> bool:
    extras = ("exclude_list", "replace_list", "columns", "expr", "rename_list")
    if any(node[extra] for extra in extras) or node["qualified_exclude_list"] or node["alias"]:
        return False
    relation = node["relation_name"].casefold()
    return not relation or names.is_table([relation])


def _key(where: Node, names: _Names, key_names: tuple[str, ...]) -> tuple[Condition, ...] | None:
    found: dict[str, Condition] = {}
    todo = [where]
    while todo:
        node = todo.pop()
        if node["type"] == "CONJUNCTION_AND":
            todo += node["children"]
            continue
        condition = _condition(node, names)
        if condition is None or condition.column.name in found:
            return None
        found[condition.column.name] = condition
    if found.keys() != set(key_names):
        return None
    return tuple(found[name] for name in key_names)


def _condition(node: Node, names: _Names) -> Condition | None:
    if node["type"] == "COMPARE_EQUAL":
        column = names.column(node["left"])
        other = node["right"]
        if column is None:
            column, other = names.column(node["right"]), node["left"]
        return _with_constants(column, "=", [other])
    if node["type"] == "COMPARE_IN" and node["class"] == "OPERATOR":
        return _with_constants(names.column(node["children"][0]), "in", node["children"][1:])
    return None


def _with_constants(
    column: ViewColumn | None, operator: str, nodes: list[Node]
) -> Condition | None:
    if column is None:
        return None
    folds: list[Node] = []
    constants = []
    for node in nodes:
        constant = constant_of(node, folds)
        if constant is None or folds:
            return None
        constants.append(constant)
    return Condition(column, operator, tuple(constants))


def _limit_of(modifiers: list[Node]) -> tuple[bool, Constant | None]:
    """Tell whether there is nothing but a limit, and which."""
    if not modifiers:
        return True, None
    modifier = modifiers[0]
    if len(modifiers) > 1 or modifier["type"] != "LIMIT_MODIFIER" or modifier["offset"] is not None:
        return False, None
    if modifier["limit"] is None:
        return True, None
    folds: list[Node] = []
    constant = constant_of(modifier["limit"], folds)
    return constant is not None and not folds, constant
