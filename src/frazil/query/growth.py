"""Values that one call of a function makes large: how large they may get.

DuckDB evaluates a call in one go. It neither asks whether the query was interrupted meanwhile nor
counts the memory, so that `repeat('x', 1000000000)` would hold no limit of a query. A size that
stands in the statement is checked here; any other is checked by an expression around it.
"""

from __future__ import annotations

import copy
import math
import re
from typing import TYPE_CHECKING, Any, Final

from frazil.errors import InvalidRequest
from frazil.query.constants import literal_of
from frazil.query.functions import GROWING, SERIES

if TYPE_CHECKING:
    from collections.abc import Callable

    from frazil.query.parse import Node

__all__ = ["SIZE_MAX", "limit_growth"]

SIZE_MAX: Final = 1_000_000
"""So many characters, elements or bits one call may make."""

_PATTERNS: Final = frozenset({"format", "printf"})
_MULTIPLYING: Final = frozenset({"regexp_replace", "replace"})
"""Put one argument in the place of many pieces of another."""
_WIDE: Final = r"[0-9]{7}|\{[^}]*\{|%[^a-zA-Z%]*\*"
"""A width of millions in a pattern, or one that another argument gives."""

_CHECKED: Final = (
    "SELECT list_extract(list_apply([$1], size -> "
    "CASE WHEN {condition} THEN error('{message}') ELSE size END), 1)"
)
"""Not a plain CASE: it would evaluate the size twice, and at random get another value."""


def limit_growth(statement: Node, parse: Callable[[str], Node]) -> None:
    """Refuse calls that make too large a value, and replace sizes that are not known yet, in place.

    Raises:
        InvalidRequest: naming the function.
    """
    order = list(_walk(statement))
    below: list[list[tuple[Node, int]]] = [[] for _ in order]
    # Arguments come behind their calls: the inner ones are judged first.
    for number in reversed(range(len(order))):
        item, parent = order[number]
        size = _size_of(item, below[number], parse)
        if parent >= 0:
            below[parent].append((item, size))


def _walk(root: Node) -> list[tuple[Node, int]]:
    """Return all nodes, each with the place of the one above it; those above come first."""
    found: list[tuple[Node, int]] = []
    todo: list[tuple[Any, int]] = [(root, -1)]
    while todo:
        item, parent = todo.pop()
        if isinstance(item, list):
            todo += [(value, parent) for value in item]
        elif isinstance(item, dict):
            found.append((item, parent))
            inside = list(item.values())
            if item.get("type") == "TABLE_FUNCTION":
                # The function itself gives rows piece by piece, its arguments do not.
                function = inside.pop(list(item).index("function"))
                inside += function.values()
            todo += [(value, len(found) - 1) for value in inside]
    return found


def _size_of(item: Node, below: list[tuple[Node, int]], parse: Callable[[str], Node]) -> int:
    """Return how large a value can get by calls that make it larger, 1 if there is none."""
    largest = max((size for _, size in below), default=1)
    if item.get("class") != "FUNCTION":
        return largest
    name = _name(item)
    if name in SERIES:
        return _series(name, item["children"])
    if name in _PATTERNS:
        _check_pattern(name, item["children"], parse)
        return largest
    product = math.prod(size for _, size in below)
    if name in GROWING and len(item["children"]) > GROWING[name]:
        return _grown(name, item["children"], product, parse)
    if name in _MULTIPLYING or any(node.get("class") == "LAMBDA" for node, _ in below):
        if product > SIZE_MAX:
            raise _too_large(name)
        return product
    return largest


def _series(name: str, arguments: list[Node]) -> int:
    values = [_literal(node) for node in arguments]
    integers = [value for value in values if isinstance(value, int)]
    count: float = math.inf
    if len(integers) == len(values) and 1 <= len(values) <= 3 and integers[2:] != [0]:
        start, stop, step = (0, *integers, 1) if len(integers) == 1 else (*integers, 1)[:3]
        if name == "generate_series":
            stop += 1 if step > 0 else -1
        count = len(range(start, stop, step))
    if count > SIZE_MAX:
        raise InvalidRequest(
            f"a list is made at once: give {name} plain numbers for at most {SIZE_MAX} elements,"
            f" or take its rows, FROM {name}(...)",
            function=name,
        )
    return max(int(count), 1)


def _grown(name: str, arguments: list[Node], others: int, parse: Callable[[str], Node]) -> int:
    content = _literal(arguments[0])
    if name == "repeat" and isinstance(content, str | bytes):
        others *= max(len(content), 1)
    size_max = SIZE_MAX // others
    place = GROWING[name]
    size = _literal(arguments[place])
    if isinstance(size, str):
        size = int(size) if re.fullmatch(r"\s*\d{1,18}\s*", size) else math.inf
    if size is None:
        if size_max < 1:
            raise _too_large(name)
        message = f"the size given to {name} is above {size_max}"
        arguments[place] = _checked(arguments[place], f"size > {size_max}", message, parse)
        return SIZE_MAX
    if size > size_max:
        raise _too_large(name)
    return max(int(size) * others, 1)


def _check_pattern(name: str, arguments: list[Node], parse: Callable[[str], Node]) -> None:
    if not arguments:
        return
    pattern = _literal(arguments[0])
    message = f"a width in the pattern of {name} must be a number below {SIZE_MAX}"
    if pattern is None:
        condition = f"regexp_matches(size, '{_WIDE}')"
        arguments[0] = _checked(arguments[0], condition, message, parse)
    elif isinstance(pattern, str) and re.search(_WIDE, pattern):
        raise InvalidRequest(message, function=name)


def _checked(node: Node, condition: str, message: str, parse: Callable[[str], Node]) -> Node:
    """Return an expression with the value of `node`; an error if it fulfils the condition."""
    statement = parse(_CHECKED.format(condition=condition, message=message))
    (made,) = statement["node"]["select_list"]
    held = made["children"][0]["children"][0]["children"]
    assert held[0]["class"] == "PARAMETER"
    held[0] = copy.copy(node)
    found: Node = made
    return found


def _literal(node: Node) -> Any:
    found = literal_of(node)
    return None if found is None else found.value


def _name(item: Node) -> str:
    return str(item["function_name"]).lower()


def _too_large(name: str) -> InvalidRequest:
    return InvalidRequest(
        "a value that large cannot be made, at most so many characters or elements at once",
        function=name,
        size_max=SIZE_MAX,
    )
