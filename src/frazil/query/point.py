"""Look-up statements: rows by key, read from the index without DuckDB.

The form is `SELECT columns FROM topic WHERE key = constant`. It is recognised in the syntax tree,
so spelling and layout do not matter. The statement must compare all key columns and may have a
LIMIT, but nothing else. DuckDB runs other statements that name whole keys, over the rows that the
index returns (`engine.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from frazil.query.pruning import Condition, Constant, Reader, conjuncts, constant_of, key_conditions
from frazil.query.views import ViewColumn, view_columns

if TYPE_CHECKING:
    from frazil.query.guard import Node
    from frazil.query.tables import TableUse
    from frazil.query.views import TopicName

_EMPTY_PARTS: Final = ("group_expressions", "group_sets", "having", "sample", "qualify")
_STAR_EXTRAS: Final = (
    *("exclude_list", "replace_list", "columns", "expr", "rename_list"),
    *("qualified_exclude_list", "alias"),
)


class PointPlan(NamedTuple):
    """The keys to look up and the result's columns as (name, column) pairs."""

    topic: TopicName
    key: tuple[Condition, ...]
    shown: tuple[tuple[str, ViewColumn], ...]
    limit: Constant | None

    def rows_max(self, params: Mapping[str, Any]) -> int | None:
        """Return the limit; None if DuckDB must run the statement."""
        if self.limit is None:
            return 1 << 62
        value = self.limit.of(params, ())
        return value if type(value) is int and value >= 0 else None


def point_of(statement: Node, uses: Sequence[TableUse]) -> PointPlan | None:
    """Return the look-up plan of a statement, None if it is not a plain look-up."""
    node: Node = statement["node"]
    use = uses[0] if len(uses) == 1 else None
    if use is None or use.info is None or node is not use.select or not _is_plain(node):
        return None
    folds: list[Node] = []
    reader = Reader(use, view_columns(use.info, log=False), folds)
    conditions = reader.conditions()
    key = None if use.log else key_conditions(use.info, conditions)
    # DuckDB runs a statement whose WHERE has more than one condition on each key column.
    is_whole = len(conjuncts(node["where_clause"])) == len(conditions) == len(use.info.key_names)
    if key is None or folds or not is_whole:
        return None
    is_limit, limit = _limit_of(node["modifiers"])
    shown = _shown(node["select_list"], reader)
    return PointPlan(use.topic, key, shown, limit) if is_limit and shown else None


def _is_plain(node: Node) -> bool:
    """Return whether a SELECT has no common table expressions, groups or samples."""
    parts = (node["cte_map"]["map"], *(node[part] for part in _EMPTY_PARTS))
    return not any(parts) and node["aggregate_handling"] == "STANDARD_HANDLING"


def _shown(select_list: list[Node], reader: Reader) -> tuple[tuple[str, ViewColumn], ...]:
    """Return the selected names and columns; empty if the list has anything but columns."""
    found = [_selected(node, reader) for node in select_list]
    shown = [each for columns in found for each in columns]
    # DuckDB renames columns of the same name, so it runs such statements.
    is_clear = len({name.casefold() for name, _ in shown}) == len(shown)
    return tuple(shown) if is_clear and all(found) else ()


def _selected(node: Node, reader: Reader) -> list[tuple[str, ViewColumn]]:
    if node["class"] == "STAR":
        is_own = node["relation_name"].casefold() in {"", reader.name}
        if not is_own or any(node[extra] for extra in _STAR_EXTRAS):
            return []
        return [(column.name, column) for column in reader.columns.values()]
    column = reader.column(node)
    return [] if column is None else [(node["alias"] or column.name, column)]


def _limit_of(modifiers: list[Node]) -> tuple[bool, Constant | None]:
    """Return whether the modifiers are at most a limit, and the limit."""
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
