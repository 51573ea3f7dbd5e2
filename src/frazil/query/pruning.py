"""Pruning: compare a query's conditions with the statistics of chunks and files.

Only conjuncts of WHERE that compare a column with constants are used. Any other condition excludes
nothing, and DuckDB evaluates all conditions again on the rows that are read. A mistake here could
only hide rows, so in doubt every rule reads the chunk or file.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from itertools import product
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from frazil.query.guard import SCALARS, VOLATILE, nodes

if TYPE_CHECKING:
    from frazil.query.guard import Node
    from frazil.query.tables import TableUse
    from frazil.query.views import TopicInfo, ViewColumn

_INTEGERS: Final = frozenset(
    {
        *("TINYINT", "SMALLINT", "INTEGER", "BIGINT"),
        *("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"),
    }
)
_NOW: Final = frozenset(
    {"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"}
)
_FOLDABLE: Final = SCALARS - VOLATILE
_DAY_NS: Final = 86_400_000_000_000
_UNIT_NS: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_MICROSECOND_NS: Final = 1_000
_EXACT_FLOAT_MAX: Final = 2.0**53
KEYS_MAX: Final = 10_000

UNKNOWN: Final = object()
"""The value of a constant that only DuckDB can evaluate."""
UNFIT: Final = object()
"""The index cannot be used: DuckDB must compare the values."""
MISS: Final = object()
"""No value of the column equals the constant."""


# -- constants -------------------------------------------------------------------------------------


class Constant(NamedTuple):
    """A value in the text, a parameter, or an expression that DuckDB evaluates before the query.

    `tried` means that the expression is a cast that returns null where only the query can decide.
    """

    value: Any = None
    parameter: str = ""
    expression: int = -1
    tried: bool = False

    def of(self, params: Mapping[str, Any], folded: Sequence[Any]) -> Any:
        """Return the value; `folded` has the expressions' values, or nothing if one failed."""
        if self.parameter:
            return params.get(self.parameter)
        if self.expression < 0:
            return self.value
        found = folded[self.expression] if self.expression < len(folded) else UNKNOWN
        return UNKNOWN if self.tried and found is None else found


def constant_of(
    node: Node, folds: list[Node], *, hidden: frozenset[str] | None = frozenset()
) -> Constant | None:
    """Return `node` as a constant, else None; append expressions to evaluate to `folds`.

    `hidden` are the case-folded names of columns, which hide words like `current_date`; None if
    they are not known.
    """
    if node["class"] == "PARAMETER":
        return Constant(parameter=node["identifier"])
    literal = _literal_of(node)
    if literal is not None:
        return literal
    if not _is_foldable(node, hidden):
        return None
    folds.append(node)
    return Constant(expression=len(folds) - 1)


def _literal_of(node: Node) -> Constant | None:
    """Return the value of a number, string, true, false or null in the text."""
    kind = node["class"]
    if kind == "CAST" and node["cast_type"]["id"] == "BOOLEAN":
        # DuckDB's tree has true and false as casts of a string.
        child = node["child"]
        value = child["value"]["value"] if child["class"] == "CONSTANT" else None
        return Constant(value == "t") if value in ("t", "f") else None
    if kind != "CONSTANT":
        return None
    value = node["value"]
    if value["is_null"]:
        return Constant(None)
    read = _LITERALS.get(value["type"]["id"])
    return None if read is None else Constant(read(value))


def _raw(value: Node) -> Any:
    return value["value"]


def _digits(value: Node) -> int:
    raw = value["value"]
    return (raw["upper"] << 64) + raw["lower"] if isinstance(raw, dict) else int(raw)


def _decimal(value: Node) -> Decimal:
    return Decimal(_digits(value)).scaleb(-value["type"]["type_info"]["scale"])


_LITERALS: Final[dict[str, Callable[[Node], Any]]] = {
    **dict.fromkeys((*_INTEGERS, "VARCHAR", "BOOLEAN", "DOUBLE"), _raw),
    "HUGEINT": _digits,
    "DECIMAL": _decimal,
}


def _is_foldable(node: Node, hidden: frozenset[str] | None) -> bool:
    """Return whether DuckDB can evaluate the expression without any row."""
    return all(_needs_no_row(item, hidden) for item in nodes(node))


def _needs_no_row(item: Node, hidden: frozenset[str] | None) -> bool:
    kind = item.get("class")
    if kind == "COLUMN_REF":
        names = [name.casefold() for name in item["column_names"]]
        return hidden is not None and len(names) == 1 and names[0] in _NOW - hidden
    if kind == "FUNCTION":
        return item["function_name"].lower() in _FOLDABLE
    return kind in {None, "CONSTANT", "PARAMETER", "CAST", "OPERATOR"}


def _try_cast(node: Node, type_id: str) -> Node:
    """Return the expression that casts `node`, with null where the cast fails."""
    return {
        "class": "CAST",
        "type": "OPERATOR_CAST",
        "alias": "",
        "query_location": 0,
        "child": node,
        "cast_type": {"id": type_id, "type_info": None},
        "try_cast": True,
    }


def folded_value(scalar: pa.Scalar) -> Any:
    """Return a value that DuckDB evaluated: dates and times unchanged, others as Python values."""
    return scalar if scalar.is_valid and pt.is_temporal(scalar.type) else scalar.as_py()


def settled_params(params: object) -> object:
    """Return parameters in the forms that DuckDB binds without changing their values.

    DuckDB ignores a decimal's positive exponent, so 1E+2 would be 1. It does not accept numpy's
    integers and booleans.
    """
    if isinstance(params, Mapping):
        return {name: _settled(value) for name, value in params.items()}
    if isinstance(params, list | tuple):
        return [_settled(value) for value in params]
    return params


def _settled(value: Any) -> Any:
    if isinstance(value, Decimal):
        exponent = value.as_tuple().exponent
        return Decimal(format(value, "f")) if isinstance(exponent, int) and exponent > 0 else value
    if isinstance(value, np.integer | np.bool_):
        return value.item()
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return [_settled(each) for each in value]
    if isinstance(value, dict):
        return {key: _settled(each) for key, each in value.items()}
    return value


def _temporal_scalar(value: Any) -> pa.Scalar | None:
    """Return a date or time as an Arrow scalar in UTC; None for any other value."""
    if isinstance(value, pa.Scalar):
        known = pt.is_date32(value.type) or pt.is_timestamp(value.type) or pt.is_time(value.type)
        return value if known else None
    if not isinstance(value, dt.date | dt.time):
        return None
    zoned = getattr(value, "tzinfo", None) is not None
    # NaT of pandas is an instance of datetime.
    if (isinstance(value, dt.time) and zoned) or not isinstance(getattr(value, "year", 0), int):
        return None
    with suppress(OverflowError):
        return pa.scalar(value.astimezone(dt.UTC) if zoned else value)  # type: ignore[union-attr]
    return None


def _unit_ns(data_type: pa.DataType) -> int:
    """Return the nanoseconds in one unit of a date or time type."""
    return _DAY_NS if pt.is_date32(data_type) else _UNIT_NS[data_type.unit]


# -- keys ------------------------------------------------------------------------------------------


def key_conditions(
    info: TopicInfo, conditions: Sequence[Condition]
) -> tuple[Condition, ...] | None:
    """Return one condition `=` or `in` for each key column, None if a column has none."""
    found: dict[str, Condition] = {}
    for condition in conditions:
        if condition.operator in {"=", "in"}:
            found.setdefault(condition.column.name, condition)
    if not info.key_names or any(name not in found for name in info.key_names):
        return None
    return tuple(found[name] for name in info.key_names)


def keys_of(
    conditions: Sequence[Condition], params: Mapping[str, Any], folded: Sequence[Any]
) -> list[tuple[Any, ...]] | None:
    """Return the keys that match the conditions, each once; None if only DuckDB can decide."""
    columns: list[list[Any]] = []
    count = 1
    for condition in conditions:
        found = [
            _column_value(value, condition.column.type)
            for value in condition.values(params, folded)
        ]
        values = dict.fromkeys(value for value in found if value is not MISS)
        count *= len(values)
        if UNFIT in values or count > KEYS_MAX:
            return None
        columns.append(list(values))
    return list(product(*columns))


def _column_value(value: Any, data_type: pa.DataType) -> Any:
    """Return the value of a column's type that equals a constant, else `MISS` or `UNFIT`."""
    if value is None:
        return MISS
    if pt.is_integer(data_type):
        return _integer(value, data_type)
    kind = _python_type(data_type)
    if kind is not None:
        return value if type(value) is kind else UNFIT
    found = (find(value, data_type) for is_kind, find in _FINDERS if is_kind(data_type))
    return next(found, UNFIT)


def _fixed(value: Any, data_type: pa.DataType) -> Any:
    if type(value) is not bytes:
        return UNFIT
    return value if len(value) == data_type.byte_width else MISS


def _exact(value: Any, data_type: pa.DataType) -> Any:
    is_number = type(value) is int or (type(value) is Decimal and value.is_finite())
    return _converted(Decimal(value), data_type) if is_number else UNFIT


def _moment(value: Any, data_type: pa.DataType) -> Any:
    scalar = _temporal_scalar(value)
    # Python's datetime cannot represent all values of a column in nanoseconds.
    if scalar is None or scalar.type.id != data_type.id or getattr(data_type, "unit", "") == "ns":
        return UNFIT
    return _converted(scalar, data_type)


def _converted(value: Any, data_type: pa.DataType) -> Any:
    """Return the same value in another type, `MISS` if it has too many digits for it."""
    try:
        is_scalar = isinstance(value, pa.Scalar)
        return (value.cast(data_type) if is_scalar else pa.scalar(value, data_type)).as_py()
    except (pa.ArrowInvalid, OverflowError):
        return MISS


def _python_type(data_type: pa.DataType) -> type | None:
    """Return the Python type of a boolean, text or binary column's values, else None."""
    if pt.is_boolean(data_type):
        return bool
    if pt.is_string(data_type) or pt.is_large_string(data_type):
        return str
    return bytes if pt.is_binary(data_type) or pt.is_large_binary(data_type) else None


def _integer(value: Any, data_type: pa.DataType) -> Any:
    if type(value) is Decimal:
        if not value.is_finite():
            return UNFIT
        if value != value.to_integral_value():
            return MISS
        value = int(value)
    elif type(value) is not int:
        return UNFIT
    bits = data_type.bit_width
    signed = pt.is_signed_integer(data_type)
    low, high = (-(1 << bits - 1), 1 << bits - 1) if signed else (0, 1 << bits)
    return value if low <= value < high else MISS


_FINDERS: Final = (
    (pt.is_fixed_size_binary, _fixed),
    (pt.is_decimal, _exact),
    (pt.is_temporal, _moment),
)
"""For each kind of column type, the function that converts an equal constant to it."""


# -- conditions ------------------------------------------------------------------------------------

_FLIPPED: Final = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_COMPARISONS: Final = {
    "COMPARE_EQUAL": "=",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
}
IS_NULL: Final = "is null"
IS_NOT_NULL: Final = "is not null"
_TEMPORAL_CASTS: Final = frozenset(
    {
        *("DATE", "TIME", "TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"),
        "TIMESTAMP WITH TIME ZONE",
    }
)
_LOCAL_JOINS: Final = frozenset({"CROSS", "DEPENDENT", "REGULAR"})
"""Joins whose result stays the same without the rows that WHERE excludes.

A positional join counts rows and an ASOF join takes the nearest row: both results would change.
"""
_VISIBLE_JOINS: Final = frozenset({"FULL", "INNER", "LEFT", "OUTER", "RIGHT"})
"""Joins whose WHERE sees the columns of both sides."""


class Condition(NamedTuple):
    """A column compared with constants: `=`, `<`, `<=`, `>`, `>=`, or `in` several.

    `is null` and `is not null` have no constants.
    """

    column: ViewColumn
    operator: str
    constants: tuple[Constant, ...]

    def values(self, params: Mapping[str, Any], folded: Sequence[Any]) -> list[Any]:
        """Return the constants' values, `UNKNOWN` for those that only DuckDB can evaluate."""
        return [constant.of(params, folded) for constant in self.constants]


def conjuncts(where: Node | None) -> list[Node]:
    """Return the conditions that every row must match."""
    todo = [] if where is None else [where]
    found: list[Node] = []
    while todo:
        node = todo.pop()
        if node["type"] == "CONJUNCTION_AND":
            todo += node["children"]
        else:
            found.append(node)
    return found


class Reader:
    """Reads conjuncts of WHERE as conditions on the columns of one table.

    Attributes:
        name: the case-folded name that qualifies the table's columns.
        columns: the columns of the table's view by their case-folded names.
    """

    def __init__(self, use: TableUse, columns: Sequence[ViewColumn], folds: list[Node]) -> None:
        self.name = use.name
        self.columns = {column.name.casefold(): column for column in columns}
        self._use = use
        self._folds = folds
        table = None if use.select is None else use.select["from_table"]
        self._joins = [node for node in nodes(table) if node.get("type") == "JOIN"]
        self._merged = {name.casefold() for join in self._joins for name in join["using_columns"]}
        self._visible = all(join["join_type"] in _VISIBLE_JOINS for join in self._joins)
        self._alone = table is use.node
        self._hidden = frozenset(self.columns) if self._alone else None

    def conditions(self) -> tuple[Condition, ...]:
        """Return the conditions that a row of the table must match to affect the query."""
        select, node = self._use.select, self._use.node
        if select is None or select["sample"] is not None:
            return ()
        if node["sample"] is not None or node["column_name_alias"]:
            return ()
        if any(join["ref_type"] not in _LOCAL_JOINS for join in self._joins):
            return ()
        found = [self._read(each) for each in conjuncts(select["where_clause"])]
        return tuple(condition for each in found for condition in each)

    def _read(self, node: Node) -> list[Condition]:
        kind = node["type"]
        operator = _COMPARISONS.get(kind)
        if operator is not None:
            found = self._condition(node["left"], operator, [node["right"]])
            return found or self._condition(node["right"], _FLIPPED[operator], [node["left"]])
        if kind == "COMPARE_BETWEEN":
            low = self._condition(node["input"], ">=", [node["lower"]])
            return low + self._condition(node["input"], "<=", [node["upper"]])
        if kind == "COMPARE_IN" and len(node["children"]) > 1:
            return self._condition(node["children"][0], "in", node["children"][1:])
        if kind == "OPERATOR_IS_NOT_NULL":
            return self._condition(node["children"][0], IS_NOT_NULL, [])
        # An outer join returns nulls for missing rows, so no row of its table may be left out.
        if kind == "OPERATOR_IS_NULL" and self._alone:
            return self._condition(node["children"][0], IS_NULL, [])
        return []

    def _condition(self, left: Node, operator: str, others: list[Node]) -> list[Condition]:
        column = self.column(left)
        if column is None:
            return []
        constants: list[Constant] = []
        mark = len(self._folds)
        for node in others:
            constant = constant_of(node, self._folds, hidden=self._hidden)
            if constant is None:
                del self._folds[mark:]
                return []
            if isinstance(constant.value, str) and column.sql_type in _TEMPORAL_CASTS:
                # DuckDB converts the text to the column's type.
                self._folds.append(_try_cast(node, column.sql_type))
                constant = Constant(expression=len(self._folds) - 1, tried=True)
            constants.append(constant)
        return [Condition(column, operator, tuple(constants))]

    def column(self, node: Node) -> ViewColumn | None:
        """Return the column that an expression names, None if it is another expression."""
        if node["class"] != "COLUMN_REF":
            return None
        names = [name.casefold() for name in node["column_names"]]
        if len(names) == 2 and names[0] == self.name:
            return self.columns.get(names[1])
        if len(names) == 1 and self._visible and names[0] not in self._merged:
            # DuckDB refuses a name that another table has too, because it is ambiguous.
            return self.columns.get(names[0])
        return None


# -- limits ----------------------------------------------------------------------------------------


class Known(NamedTuple):
    """Statistics of a column in a chunk or file: bounds in its type there, and the null count.

    A value that is not known is None.
    """

    least: Any
    greatest: Any
    data_type: pa.DataType
    nulls: int | None = None
    rows: int | None = None


class _Range(NamedTuple):
    """The values that match a comparison; None is no bound, an `open` range excludes its bound."""

    low: Any = None
    high: Any = None
    open: bool = False

    def overlaps(self, least: Any, greatest: Any) -> bool:
        """Return whether a value between these bounds may be in the range."""
        low, high = self.low, self.high
        if low is not None and greatest is not None:
            above = greatest > low if self.open else greatest >= low
            if not above:
                return False
        if high is not None and least is not None:
            return bool(least < high if self.open else least <= high)
        return True


class Test(NamedTuple):
    """A condition with its values converted to the comparison scale of its column."""

    column: ViewColumn
    operator: str
    values: tuple[Any, ...] = ()
    ranges: tuple[_Range, ...] = ()

    def may_match(self, known: Known) -> bool:
        """Return whether a value within these statistics can match the condition."""
        if self.operator == IS_NULL:
            return known.nulls != 0
        if known.nulls is not None and known.nulls == known.rows:
            return False
        if self.operator == IS_NOT_NULL:
            return True
        try:
            least, greatest = _stored_range(known)
            return any(each.overlaps(least, greatest) for each in self.ranges)
        except TypeError:
            # Statistics of another kind than the column's exclude nothing.
            return True


class Limits(NamedTuple):
    """The tests of one table's columns; `describe` is for `explain`."""

    tests: tuple[Test, ...]

    def may_match(self, known_of: Callable[[ViewColumn], Known | None]) -> bool:
        """Return whether rows with these statistics can match."""
        return all(
            (known := known_of(test.column)) is None or test.may_match(known) for test in self.tests
        )

    def describe(self) -> list[str]:
        """Return the conditions that can exclude rows as text."""
        return [
            f"{column.name} {operator} "
            f"{', '.join(_shown(value, column.type) for value in values)}".rstrip()
            for column, operator, values, _ in self.tests
        ]


def limits_of(
    conditions: Sequence[Condition], params: Mapping[str, Any], folded: Sequence[Any]
) -> Limits:
    """Return the conditions with their values, without those that cannot exclude any row."""
    tests: list[Test] = []
    for condition in conditions:
        column, operator = condition.column, condition.operator
        if operator in {IS_NULL, IS_NOT_NULL}:
            tests.append(Test(column, operator))
            continue
        given = [_comparable(value, column.type) for value in condition.values(params, folded)]
        values = tuple(value for value in given if value is not None)
        if len(values) == len(given):
            ranges = tuple(_range_of(operator, value, column.type) for value in values)
            tests.append(Test(column, operator, values, ranges))
    return Limits(tuple(tests))


def _range_of(operator: str, value: Any, data_type: pa.DataType) -> _Range:
    """Return the range of values that match a comparison with a constant."""
    low = high = value
    is_float = pt.is_floating(data_type)
    if is_float:
        # The wider range allows for rounding errors.
        low, high = math.nextafter(value, -math.inf), math.nextafter(value, math.inf)
    if operator in {"<", "<="}:
        return _Range(None, high, open=operator == "<" and not is_float)
    if operator in {">", ">="}:
        # DuckDB sorts NaN last, and statistics ignore it.
        return _Range() if is_float else _Range(low, None, open=operator == ">")
    return _Range(low, high)


def _comparable(value: Any, data_type: pa.DataType) -> Any:
    """Return a constant on the comparison scale of a column.

    None if the values cannot be compared safely: the constant then excludes nothing.
    """
    if pt.is_integer(data_type):
        return _as_number(value)
    if pt.is_float64(data_type):
        return _as_float(value)
    if pt.is_temporal(data_type):
        return _as_nanoseconds(value, data_type)
    return value if type(value) is _python_type(data_type) else None


def _as_number(value: Any) -> Any:
    if isinstance(value, float):
        return value if abs(value) <= _EXACT_FLOAT_MAX else None
    is_finite = not isinstance(value, Decimal) or value.is_finite()
    return value if type(value) in {int, Decimal} and is_finite else None


def _as_nanoseconds(value: Any, data_type: pa.DataType) -> int | None:
    scalar = _temporal_scalar(value)
    if scalar is None or pt.is_time(scalar.type) != pt.is_time(data_type):
        return None
    ns = int(scalar.value) * _unit_ns(scalar.type)
    # DuckDB compares values with a time zone at whole microseconds, rounded in its own way.
    return None if _is_zoned(data_type) and ns % _MICROSECOND_NS else ns


def _as_float(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    try:
        number = float(value)
    except (OverflowError, ValueError):
        return None
    return None if math.isnan(number) else number


def _stored_range(known: Known) -> tuple[Any, Any]:
    """Return the bounds of a file or chunk on the scale of `_comparable`.

    SQL shows nanoseconds with a time zone as microseconds: the range is widened to whole
    microseconds.
    """
    least, greatest, data_type = known[:3]
    if not pt.is_temporal(data_type):
        return least, greatest
    unit = _unit_ns(data_type)
    step = _MICROSECOND_NS if _is_zoned(data_type) else 1
    if least is not None:
        least = least * unit // step * step
    if greatest is not None:
        greatest = -(-greatest * unit // step) * step
    return least, greatest


def _is_zoned(data_type: pa.DataType) -> bool:
    return pt.is_timestamp(data_type) and data_type.tz is not None


def _shown(value: Any, data_type: pa.DataType) -> str:
    if pt.is_temporal(data_type) and not pt.is_time(data_type):
        return str(
            pa.scalar(value, pa.timestamp("ns", "UTC")).cast(pa.timestamp("us", "UTC"), False)
        )
    return repr(value)
