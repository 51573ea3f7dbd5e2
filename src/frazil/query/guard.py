"""What a statement may consist of: every node of its tree must be of a known kind.

The guard refuses what it does not know. It does not look at names of tables: `tables.py` replaces
each of them by what it stands for, and refuses those it does not know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from frazil.errors import InvalidRequest
from frazil.query.functions import SCALARS, TABLE_FUNCTIONS

if TYPE_CHECKING:
    from frazil.query.parse import Node

__all__ = ["check_statement"]

EXPRESSIONS: Final = frozenset(
    {
        "BETWEEN",
        "CASE",
        "CAST",
        "COLLATE",
        "COLUMN_REF",
        "COMPARISON",
        "CONJUNCTION",
        "CONSTANT",
        "FUNCTION",
        "LAMBDA",
        "OPERATOR",
        "PARAMETER",
        "POSITIONAL_REFERENCE",
        "STAR",
        "SUBQUERY",
        "WINDOW",
    }
)
"""Classes of expressions."""

KINDS: Final = frozenset(
    {
        # Queries.
        "RECURSIVE_CTE_NODE",
        "SELECT_NODE",
        "SET_OPERATION_NODE",
        # What stands behind FROM.
        "BASE_TABLE",
        "EMPTY",
        "EXPRESSION_LIST",
        "JOIN",
        "PIVOT",
        "SHOW_REF",
        "SUBQUERY",
        "TABLE_FUNCTION",
        # Modifiers of queries, and orders in them.
        "DISTINCT_MODIFIER",
        "LIMIT_MODIFIER",
        "LIMIT_PERCENT_MODIFIER",
        "ORDER_MODIFIER",
        "ASCENDING",
        "DESCENDING",
        "ORDER_DEFAULT",
        # Types of casts and constants.
        "ARRAY_TYPE_INFO",
        "DECIMAL_TYPE_INFO",
        "LIST_TYPE_INFO",
        "STRING_TYPE_INFO",
        "STRUCT_TYPE_INFO",
        "UNBOUND_TYPE_INFO",
    }
)
"""Types of all other nodes."""


def check_statement(statement: Node) -> None:
    """Refuse a statement with a node or a function that is not known to be harmless.

    Raises:
        InvalidRequest: naming what is not allowed.
    """
    todo: list[Any] = [statement]
    while todo:
        item = todo.pop()
        if isinstance(item, list):
            todo += item
            continue
        if not isinstance(item, dict):
            continue
        expression = item.get("class")
        kind = item.get("type")
        if expression is not None:
            _check_expression(expression, item)
        elif isinstance(kind, str) and kind not in KINDS:
            raise InvalidRequest("this kind of SQL is not allowed", kind=kind)
        elif kind == "TABLE_FUNCTION":
            # Its function is one of tables, the arguments are expressions like any other.
            todo += _arguments(item)
            continue
        elif kind == "BASE_TABLE" and item.get("at_clause") is not None:
            raise InvalidRequest("use as_of_offset or as_of_time instead of AT", table=_name(item))
        todo += item.values()


def _check_expression(expression: object, item: Node) -> None:
    if expression not in EXPRESSIONS:
        raise InvalidRequest("this kind of SQL is not allowed", kind=expression)
    if expression not in {"FUNCTION", "WINDOW"}:
        return
    name = str(item["function_name"]).lower()
    if name not in SCALARS:
        raise InvalidRequest("this function is not allowed or does not exist", function=name)


def _arguments(item: Node) -> list[Any]:
    function = item["function"]
    name = str(function.get("function_name", "")).lower()
    if function.get("class") != "FUNCTION" or name not in TABLE_FUNCTIONS:
        raise InvalidRequest(
            "this table function is not allowed or does not exist",
            function=name,
            allowed=", ".join(sorted(TABLE_FUNCTIONS)),
        )
    rest = [value for key, value in item.items() if key != "function"]
    return [*rest, *function.values()]


def _name(item: Node) -> str:
    return str(item.get("table_name", ""))
