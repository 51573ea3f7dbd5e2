"""Statements that look up rows by key: answered from the index, without a plan of DuckDB.

`SELECT columns FROM topic WHERE key = constant`, in any textual form: the tree is what is
recognised. All key columns must be compared, nothing else may stand in the statement but a LIMIT.
A statement that is more than that and still names whole keys is run by DuckDB over the rows that
the index finds (`prepared.py`).
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


def point_of(statement: Node, uses: Sequence[TableUse]) -> PointPlan | None:
    """Return the look-up that a statement is, None if it is more than that."""
    node: Node = statement["node"]
    use = uses[0] if len(uses) == 1 else None
    if use is None or use.info is None or node is not use.select or not _is_plain(node):
        return None
    folds: list[Node] = []
    reader = Reader(use, view_columns(use.info, log=False), folds)
    conditions = reader.conditions()
    key = None if use.log else key_conditions(use.info, conditions)
    # Anything in WHERE beyond one condition on each key column is left to DuckDB.
    is_whole = len(conjuncts(node["where_clause"])) == len(conditions) == len(use.info.key_names)
    if key is None or folds or not is_whole:
        return None
    is_limit, limit = _limit_of(node["modifiers"])
    shown = _shown(node["select_list"], reader)
    return PointPlan(use.topic, key, shown, limit) if is_limit and shown else None


def _is_plain(node: Node) -> bool:
    """Tell whether a SELECT has neither common tables, groups nor samples."""
    parts = (node["cte_map"]["map"], *(node[part] for part in _EMPTY_PARTS))
    return not any(parts) and node["aggregate_handling"] == "STANDARD_HANDLING"


def _shown(select_list: list[Node], reader: Reader) -> tuple[tuple[str, ViewColumn], ...]:
    """Return the names and columns that are selected; nothing if there are others."""
    found = [_selected(node, reader) for node in select_list]
    shown = [each for columns in found for each in columns]
    # DuckDB has its own way to distinguish columns of one name.
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
