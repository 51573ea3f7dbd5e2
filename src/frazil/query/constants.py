"""Constants of a statement: their values, and values of all sources on one scale.

What is no plain literal (`now() - INTERVAL 5 MINUTES`) is evaluated by DuckDB itself, in the
transaction of the query, so that `now()` is the same in both.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from frazil.query.guard import SCALARS, VOLATILE

if TYPE_CHECKING:
    from frazil.query.guard import Node

__all__ = [
    "UNKNOWN",
    "Constant",
    "Folded",
    "Literal",
    "Moment",
    "Parameter",
    "Tried",
    "Unknown",
    "comparable",
    "constant_of",
    "is_missing",
    "literal_of",
    "moment_of",
    "scalar_value",
    "settled_params",
    "stored_range",
    "try_cast",
    "value_of",
]

_INTEGERS: Final = frozenset(
    {
        *("TINYINT", "SMALLINT", "INTEGER", "BIGINT"),
        *("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"),
    }
)
_NOW: Final = frozenset(
    {"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"}
)
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_DAYS: Final = dt.date(1970, 1, 1).toordinal()
_DAY_NS: Final = 86_400_000_000_000
_UNIT_NS: Final = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
_MICROSECOND_NS: Final = 1_000
_EXACT_FLOAT_MAX: Final = 2.0**53


class Literal(NamedTuple):
    """A value that stands in the text."""

    value: Any


class Parameter(NamedTuple):
    """A value that comes with the call."""

    name: str


class Folded(NamedTuple):
    """A value that DuckDB makes before the query: the number of its expression."""

    number: int


class Tried(NamedTuple):
    """A text that DuckDB casts before the query, null if it cannot: then only the query tells."""

    number: int


Constant = Literal | Parameter | Folded | Tried


class Unknown:
    """The value of a constant that only DuckDB can tell."""


UNKNOWN: Final = Unknown()


class Moment(NamedTuple):
    """A date or time as nanoseconds since 1970 in UTC, a time of day as those since midnight."""

    of_day: bool
    ns: int


def constant_of(
    node: Node, folds: list[Node], *, hidden: frozenset[str] | None = frozenset()
) -> Constant | None:
    """Return the constant that `node` is, None if it is none; what must be folded goes to `folds`.

    `hidden` are the folded names of columns, which hide words like `current_date`; None if they
    are not known.
    """
    if node["class"] == "PARAMETER":
        return Parameter(node["identifier"])
    literal = literal_of(node)
    if literal is not None:
        return literal
    if not _is_foldable(node, hidden):
        return None
    folds.append(node)
    return Folded(len(folds) - 1)


def literal_of(node: Node) -> Literal | None:
    """Return the value of a number, string, true, false or null in the text."""
    if node["class"] == "CAST":
        # This is how DuckDB writes true and false.
        child = node["child"]
        if node["cast_type"]["id"] == "BOOLEAN" and child["class"] == "CONSTANT":
            value = child["value"]["value"]
            return Literal(value == "t") if value in {"t", "f"} else None
        return None
    if node["class"] != "CONSTANT":
        return None
    value = node["value"]
    if value["is_null"]:
        return Literal(None)
    kind = value["type"]["id"]
    if kind in _INTEGERS or kind in {"VARCHAR", "BOOLEAN", "DOUBLE"}:
        return Literal(value["value"])
    if kind == "HUGEINT":
        return Literal(_huge(value["value"]))
    if kind == "DECIMAL":
        raw = value["value"]
        digits = _huge(raw) if isinstance(raw, dict) else int(raw)
        return Literal(Decimal(digits).scaleb(-value["type"]["type_info"]["scale"]))
    return None


def value_of(constant: Constant, params: Mapping[str, Any], folded: Sequence[Any]) -> Any:
    """Return the value of a constant, or `UNKNOWN`."""
    if isinstance(constant, Literal):
        return constant.value
    if isinstance(constant, Parameter):
        return params.get(constant.name)
    found = folded[constant.number] if constant.number < len(folded) else UNKNOWN
    return UNKNOWN if isinstance(constant, Tried) and found is None else found


def settled_params(params: object) -> object:
    """Return parameters as DuckDB takes them at their worth.

    Its binding leaves a positive exponent of a decimal out: 1E+2 would be 1. It knows no integers
    and truth values of numpy.
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


def try_cast(node: Node, type_id: str) -> Node:
    """Return the expression that casts `node`, to null where that fails."""
    return {
        "class": "CAST",
        "type": "OPERATOR_CAST",
        "alias": "",
        "query_location": 0,
        "child": node,
        "cast_type": {"id": type_id, "type_info": None},
        "try_cast": True,
    }


def comparable(value: Any, data_type: pa.DataType) -> Any:
    """Return a constant on the scale on which values of a column are compared.

    None if they cannot be compared safely: the constant then excludes nothing.
    """
    if pt.is_boolean(data_type):
        return value if isinstance(value, bool) else None
    if pt.is_integer(data_type):
        if isinstance(value, bool):
            return None
        if isinstance(value, float):
            return value if abs(value) <= _EXACT_FLOAT_MAX else None
        if isinstance(value, Decimal):
            return value if value.is_finite() else None
        return value if isinstance(value, int) else None
    if pt.is_float64(data_type):
        return _as_float(value)
    if pt.is_string(data_type) or pt.is_large_string(data_type):
        return value if isinstance(value, str) else None
    if pt.is_binary(data_type) or pt.is_large_binary(data_type):
        return value if isinstance(value, bytes) else None
    return _nanoseconds(value, data_type) if pt.is_temporal(data_type) else None


def _nanoseconds(value: Any, data_type: pa.DataType) -> int | None:
    moment = moment_of(value)
    if moment is None or moment.of_day != pt.is_time(data_type):
        return None
    if _is_zoned(data_type) and moment.ns % _MICROSECOND_NS:
        # DuckDB compares at whole microseconds, rounded in its own way.
        return None
    return moment.ns


def stored_range(least: Any, greatest: Any, data_type: pa.DataType) -> tuple[Any, Any]:
    """Return a least and a greatest value as kept with a file or chunk, on the same scale.

    SQL shows nanoseconds with a time zone as microseconds: the range is widened to whole ones.
    """
    least, greatest = _stored(least, data_type), _stored(greatest, data_type)
    if _is_zoned(data_type):
        if least is not None:
            least -= least % _MICROSECOND_NS
        if greatest is not None:
            greatest += -greatest % _MICROSECOND_NS
    return least, greatest


def _stored(value: Any, data_type: pa.DataType) -> Any:
    if value is None or not pt.is_temporal(data_type):
        return value
    if pt.is_date32(data_type):
        return value * _DAY_NS
    return value * _UNIT_NS[data_type.unit]


def _is_zoned(data_type: pa.DataType) -> bool:
    return pt.is_timestamp(data_type) and data_type.tz is not None


def is_missing(value: Any) -> bool:
    """Tell whether a value is the missing time of pandas, which calls itself a datetime."""
    return isinstance(value, dt.date) and not isinstance(value.year, int)


def moment_of(value: Any) -> Moment | None:
    """Return a date or time of Python as a moment; without a time zone it is in UTC."""
    if isinstance(value, Moment):
        return value
    if is_missing(value):
        return None
    if isinstance(value, dt.datetime):
        aware = value if value.tzinfo is not None else value.replace(tzinfo=dt.UTC)
        microseconds = (aware - _EPOCH) // dt.timedelta(microseconds=1)
        return Moment(of_day=False, ns=microseconds * 1_000)
    if isinstance(value, dt.date):
        return Moment(of_day=False, ns=(value.toordinal() - _EPOCH_DAYS) * _DAY_NS)
    if isinstance(value, dt.time) and value.tzinfo is None:
        seconds = (value.hour * 60 + value.minute) * 60 + value.second
        return Moment(of_day=True, ns=seconds * 1_000_000_000 + value.microsecond * 1_000)
    return None


def scalar_value(scalar: pa.Scalar) -> Any:
    """Return what DuckDB evaluated: a moment for dates and times, else the value of Python."""
    if not scalar.is_valid:
        return None
    data_type = scalar.type
    if pt.is_date32(data_type):
        return Moment(of_day=False, ns=scalar.value * _DAY_NS)
    if pt.is_timestamp(data_type):
        return Moment(of_day=False, ns=scalar.value * _UNIT_NS[data_type.unit])
    if pt.is_time(data_type):
        return Moment(of_day=True, ns=scalar.value * _UNIT_NS[data_type.unit])
    return scalar.as_py()


def _as_float(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    try:
        number = float(value)
    except (OverflowError, ValueError):
        return None
    return None if math.isnan(number) else number


def _huge(value: Mapping[str, int]) -> int:
    return (value["upper"] << 64) + value["lower"]


def _is_foldable(node: Node, hidden: frozenset[str] | None) -> bool:
    """Tell whether DuckDB can evaluate the expression without any row."""
    todo: list[Any] = [node]
    while todo:
        item = todo.pop()
        if isinstance(item, list):
            todo += item
            continue
        if not isinstance(item, dict):
            continue
        kind = item.get("class")
        if kind == "COLUMN_REF":
            names = item["column_names"]
            word = names[0].casefold()
            if hidden is None or len(names) > 1 or word not in _NOW or word in hidden:
                return False
        elif kind == "FUNCTION":
            name = item["function_name"].lower()
            if name not in SCALARS or name in VOLATILE:
                return False
        elif kind not in {None, "CONSTANT", "PARAMETER", "CAST", "OPERATOR"}:
            return False
        todo += item.values()
    return True
