"""Conditions behind the border of a subquery: they hold for the table inside if it is plain.

`SELECT * FROM (SELECT * FROM events) WHERE n = 5` needs no other rows of `events` than those with 5.
That is so for a subquery, or a common table expression that is used once, that only picks columns
of one table: nothing in it depends on rows that the condition would take away.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from frazil.query.parse import Node
    from frazil.query.views import ViewColumn

__all__ = ["Border", "Columns", "borders_of", "picked_columns"]

Columns = Mapping[str, "ViewColumn"]
"""Columns of a table by the names, folded, under which they can be seen."""

_ALTERING: Final = (
    *("modifiers", "group_expressions", "group_sets", "having", "qualify", "sample"),
)
_STAR_EXTRAS: Final = (
    *("exclude_list", "replace_list", "columns", "expr", "qualified_exclude_list"),
    *("rename_list", "alias"),
)


class Border(NamedTuple):
    """Where the rows of a query are used: the place in FROM, and the query of that FROM."""

    node: Node
    select: Node | None

    @property
    def name(self) -> str:
        """What its columns are qualified by, folded."""
        name = self.node["alias"] or self.node.get("table_name") or "unnamed_subquery"
        return str(name).casefold()


def borders_of(statement: Node) -> dict[int, Border]:
    """Return where each query is used that is used in one place alone, by its identity.

    For a statement whose topics were replaced: all other names are of common table expressions.
    """
    found: dict[int, Border] = {}
    named: dict[str, list[Border]] = {}
    common: dict[str, list[Node]] = {}
    todo: list[tuple[Any, Node | None]] = [(statement, None)]
    while todo:
        item, select = todo.pop()
        if isinstance(item, list):
            todo += [(value, None) for value in item]
            continue
        if not isinstance(item, dict):
            continue
        kind = None if "class" in item else item.get("type")
        if kind == "SUBQUERY":
            found[id(item["subquery"]["node"])] = Border(item, select)
        elif kind == "BASE_TABLE":
            named.setdefault(item["table_name"].casefold(), []).append(Border(item, select))
        for entry in item["cte_map"]["map"] if "cte_map" in item else ():
            common.setdefault(entry["key"].casefold(), []).append(entry["value"])
        for key, value in item.items():
            below = item if kind == "SELECT_NODE" and key == "from_table" else None
            if kind == "JOIN" and key in {"left", "right"}:
                below = select
            todo.append((value, below))
    for name, entries in common.items():
        uses = named.get(name, [])
        if len(entries) == len(uses) == 1 and not entries[0]["aliases"]:
            found[id(entries[0]["query"]["node"])] = uses[0]
    return found


def picked_columns(select: Node, node: Node, name: str, columns: Columns) -> Columns | None:
    """Return the columns that a query gives of the one table in its FROM.

    None if it does more than pick them.
    """
    if select["from_table"] is not node or any(select[part] for part in _ALTERING):
        return None
    if select["aggregate_handling"] != "STANDARD_HANDLING":
        return None
    picked: list[tuple[str, ViewColumn]] = []
    for item in select["select_list"]:
        if item["class"] == "STAR":
            if any(item[extra] for extra in _STAR_EXTRAS):
                return None
            if item["relation_name"].casefold() not in {"", name}:
                return None
            picked += columns.items()
            continue
        column = _column(item, name, columns)
        if column is None:
            return None
        picked.append((item["alias"].casefold() or item["column_names"][-1].casefold(), column))
    found = dict(picked)
    # Of two columns with one name it is not known which one is meant.
    return found if len(found) == len(picked) else None


def _column(node: Node, name: str, columns: Columns) -> ViewColumn | None:
    if node["class"] != "COLUMN_REF":
        return None
    *path, last = [each.casefold() for each in node["column_names"]]
    return columns.get(last) if path in ([], [name]) else None
