"""What need not be read: conditions of a query against what is known of chunks and files.

Only conjuncts of WHERE that compare a column with constants count. A condition that is not
understood excludes nothing, and DuckDB evaluates all of them again on what is read: a mistake here
could only hide rows, so every rule errs on the side of reading.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from itertools import product
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from frazil.query.guard import SCALARS, VOLATILE
from frazil.query.views import column_id
from frazil.tiers import Partitioner

if TYPE_CHECKING:
    from frazil.model import PartitionField
    from frazil.query.guard import Node
    from frazil.query.tables import TableUse
    from frazil.query.views import SnapshotFile, TopicInfo, TopicSnapshot, ViewColumn

__all__ = [
    "EVERY_PARTITION",
    "MISS",
    "UNFIT",
    "UNKNOWN",
    "Condition",
    "Constant",
    "Folded",
    "Known",
    "Limits",
    "Literal",
    "Miss",
    "Moment",
    "Parameter",
    "PartitionLimits",
    "Tried",
    "Unfit",
    "Unknown",
    "column_value",
    "comparable",
    "conditions_of",
    "constant_of",
    "is_missing",
    "key_conditions",
    "keys_of",
    "limits_of",
    "literal_of",
    "moment_of",
    "partition_limits",
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


KEYS_MAX: Final = 10_000


class Unfit:
    """The index cannot answer: compare as DuckDB does."""


class Miss:
    """No value of the column equals it."""


UNFIT: Final = Unfit()
MISS: Final = Miss()


def key_conditions(
    info: TopicInfo, conditions: Sequence[Condition]
) -> tuple[Condition, ...] | None:
    """Return one condition `=` or `in` for each key column, None if a column has none."""
    if not info.key_names:
        return None
    found: dict[str, Condition] = {}
    for condition in conditions:
        if condition.operator in {"=", "in"}:
            found.setdefault(condition.column.name, condition)
    if any(name not in found for name in info.key_names):
        return None
    return tuple(found[name] for name in info.key_names)


def keys_of(
    conditions: Sequence[Condition], params: Mapping[str, Any], folded: Sequence[Any]
) -> list[tuple[Any, ...]] | Unfit:
    """Return the keys that fulfil the conditions, each once."""
    columns: list[list[Any]] = []
    count = 1
    for condition in conditions:
        values: list[Any] = []
        for value in condition.values(params, folded):
            found = column_value(value, condition.column.type)
            if isinstance(found, Unfit):
                return UNFIT
            if found is not MISS:
                values.append(found)
        columns.append(list(dict.fromkeys(values)))
        count *= len(values)
        if count > KEYS_MAX:
            return UNFIT
    return list(product(*columns))


def column_value(value: Any, data_type: pa.DataType) -> Any:
    """Return the value of a column's type that equals a constant.

    `MISS` if there is none, `UNFIT` if only DuckDB can tell.
    """
    if value is None:
        return MISS
    if is_missing(value) or (isinstance(value, Decimal) and not value.is_finite()):
        return UNFIT
    if pt.is_integer(data_type):
        return _integer(value, data_type)
    if pt.is_string(data_type) or pt.is_large_string(data_type):
        return value if type(value) is str else UNFIT
    if pt.is_boolean(data_type) or pt.is_binary(data_type) or pt.is_large_binary(data_type):
        wanted = bool if pt.is_boolean(data_type) else bytes
        return value if type(value) is wanted else UNFIT
    if pt.is_fixed_size_binary(data_type):
        if type(value) is not bytes:
            return UNFIT
        return value if len(value) == data_type.byte_width else MISS
    if pt.is_decimal(data_type):
        return _decimal(value, data_type)
    if pt.is_temporal(data_type):
        return _temporal(value, data_type)
    return UNFIT


def _integer(value: Any, data_type: pa.DataType) -> Any:
    if type(value) is Decimal:
        if value != value.to_integral_value():
            return MISS
        value = int(value)
    elif type(value) is not int:
        return UNFIT
    bits = data_type.bit_width
    signed = pt.is_signed_integer(data_type)
    low, high = (-(1 << bits - 1), 1 << bits - 1) if signed else (0, 1 << bits)
    return value if low <= value < high else MISS


def _decimal(value: Any, data_type: pa.DataType) -> Any:
    if type(value) not in {int, Decimal}:
        return UNFIT
    try:
        scalar = pa.scalar(Decimal(value), data_type)
    except pa.ArrowInvalid:
        # Too many digits, before or behind the point.
        return MISS
    return scalar.as_py()


def _temporal(value: Any, data_type: pa.DataType) -> Any:
    if isinstance(value, Moment):
        value = _from_moment(value, data_type)
    if pt.is_date32(data_type):
        return value if type(value) is dt.date else UNFIT
    if pt.is_time(data_type):
        is_local = type(value) is dt.time and value.tzinfo is None
        return value if is_local and data_type.unit == "us" else UNFIT
    if not isinstance(value, dt.datetime) or data_type.unit == "ns":
        return UNFIT
    if data_type.unit != "us" and value.microsecond % (1_000 if data_type.unit == "ms" else 10**6):
        return MISS
    if value.tzinfo is None:
        return value.replace(tzinfo=dt.UTC) if data_type.tz is not None else value
    in_utc = value.astimezone(dt.UTC)
    return in_utc if data_type.tz is not None else in_utc.replace(tzinfo=None)


def _from_moment(moment: Moment, data_type: pa.DataType) -> Any:
    """Return the value of Python that a moment is, as far as the column's type has it."""
    if moment.ns % 1_000 or moment.of_day != pt.is_time(data_type):
        return None
    try:
        instant = _EPOCH + dt.timedelta(microseconds=moment.ns // 1_000)
    except OverflowError:
        return None
    if moment.of_day:
        return instant.time()
    if pt.is_date32(data_type):
        return instant.date() if instant.time() == dt.time() else None
    return instant


class _Limit(NamedTuple):
    """The values that one field of the spec can have; `place` is its number in the spec."""

    place: int
    field: pa.Field
    transform: str
    values: frozenset[Any]


class PartitionLimits:
    """Which partitions of a topic can have rows that match; immutable."""

    def __init__(self, limits: Sequence[_Limit] = ()) -> None:
        self._limits = limits

    def may_match(self, file: SnapshotFile, snapshot: TopicSnapshot) -> bool:
        """Tell whether a file's partition can have such rows."""
        if not self._limits or not file.partition_values:
            return True
        schema = snapshot.file_schema(file)
        return all(
            limit.place >= len(file.partition_values)
            or file.partition_values[limit.place] in limit.values
            or not _has_column(schema, limit.field)
            for limit in self._limits
        )

    def describe(self) -> list[str]:
        """Write the partitions, for `explain`."""
        return [
            f"{limit.transform}({limit.field.name}) in "
            + ", ".join(sorted(map(repr, limit.values)))
            for limit in self._limits
        ]


EVERY_PARTITION: Final = PartitionLimits()


def partition_limits(
    info: TopicInfo,
    conditions: Sequence[Condition],
    params: Mapping[str, Any],
    folded: Sequence[Any],
) -> PartitionLimits:
    """Return the partitions of the values that columns must equal."""
    limits = []
    for place, partition in enumerate(info.partition_by):
        for condition in conditions:
            own = condition.column.field
            if own is None or column_id(own) != str(partition.column_id).encode():
                continue
            if condition.operator in {"=", "in"}:
                values = _values(own, partition, condition.values(params, folded))
                if values is not None:
                    limits.append(_Limit(place, own, partition.transform, values))
    return PartitionLimits(limits)


def _values(
    field: pa.Field, partition: PartitionField, constants: Sequence[Any]
) -> frozenset[Any] | None:
    """Return the values of the partitions that constants lie in, None if they are not known."""
    found = [column_value(constant, field.type) for constant in constants]
    if any(value is UNFIT for value in found):
        return None
    array = pa.array([value for value in found if value is not MISS], field.type)
    batch = pa.RecordBatch.from_arrays([array], schema=pa.schema([field]))
    pieces = Partitioner(batch.schema, [partition]).split(batch)
    return frozenset(piece.values[0] for piece, _rows in pieces)


def _has_column(schema: pa.Schema, field: pa.Field) -> bool:
    """Tell whether the column was of the same type when a file was written.

    The partition of a value can be another one under another type.
    """
    number = column_id(field)
    return any(column_id(each) == number and each.type.equals(field.type) for each in schema)


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
"""Joins that lose nothing without the rows that WHERE excludes.

A positional join counts rows, and one as of a value takes the nearest: both would find others.
"""

_VISIBLE_JOINS: Final = frozenset({"FULL", "INNER", "LEFT", "OUTER", "RIGHT"})
"""Joins behind which WHERE sees the columns of both sides."""


class Condition(NamedTuple):
    """A column compared with constants: `=`, `<`, `<=`, `>`, `>=`, or `in` several.

    `is null` and `is not null` have no constants.
    """

    column: ViewColumn
    operator: str
    constants: tuple[Constant, ...]

    def values(self, params: Mapping[str, Any], folded: Sequence[Any]) -> list[Any]:
        """Return the values of the constants, `UNKNOWN` for those that only DuckDB can tell."""
        return [value_of(constant, params, folded) for constant in self.constants]


class Known(NamedTuple):
    """What is known of a column in a chunk or file: bounds in its type there, how many nulls.

    None where it is not known.
    """

    least: Any
    greatest: Any
    data_type: pa.DataType
    nulls: int | None = None
    rows: int | None = None


class Test(NamedTuple):
    """A condition with its values on the column's scale."""

    operator: str
    values: tuple[Any, ...]
    is_float: bool

    def may_match(self, known: Known) -> bool:
        """Tell whether a value as it is known can fulfil the condition."""
        if self.operator == IS_NULL:
            return known.nulls != 0
        if known.nulls is not None and known.nulls == known.rows:
            return False
        if self.operator == IS_NOT_NULL:
            return True
        least, greatest = stored_range(known.least, known.greatest, known.data_type)
        try:
            return any(self._may_match_one(value, least, greatest) for value in self.values)
        except TypeError:
            # Facts of another kind than the column's exclude nothing.
            return True

    def _may_match_one(self, value: Any, least: Any, greatest: Any) -> bool:
        if self.is_float:
            return self._may_match_float(value, least, greatest)
        above = greatest is not None and value > greatest
        below = least is not None and value < least
        match self.operator:
            case "<":
                return not below and value != least
            case "<=":
                return not below
            case ">":
                return not above and value != greatest
            case ">=":
                return not above
        return not (above or below)

    def _may_match_float(self, value: float, least: Any, greatest: Any) -> bool:
        """Leave room for rounding, and for NaN: DuckDB sorts it last, statistics ignore it."""
        low = math.nextafter(value, -math.inf)
        high = math.nextafter(value, math.inf)
        above = greatest is not None and low > greatest
        below = least is not None and high < least
        match self.operator:
            case "<" | "<=":
                return not below
            case ">" | ">=":
                return True
        return not (above or below)


class Limits:
    """The tests of one table's columns, by column; `describe` is for `explain`.

    `partitions` are those in which rows can match, for files that have rows of one alone.
    """

    def __init__(
        self,
        tests: Sequence[tuple[ViewColumn, Test]],
        partitions: PartitionLimits = EVERY_PARTITION,
    ) -> None:
        self._tests = tests
        self.partitions = partitions
        self.system = {column.name for column, _ in tests if column.field is None}
        self.own = [column for column, _ in tests if column.field is not None]

    def may_match(
        self,
        known_of: Callable[[ViewColumn], Known | None],
    ) -> bool:
        """Tell whether rows of which so much is known can match."""
        for column, test in self._tests:
            known = known_of(column)
            if known is not None and not test.may_match(known):
                return False
        return True

    def describe(self) -> list[str]:
        """Write the conditions that can exclude something."""
        shown = []
        for column, test in self._tests:
            values = ", ".join(_shown(value, column.type) for value in test.values)
            shown.append(f"{column.name} {test.operator} {values}".rstrip())
        return shown + self.partitions.describe()


def conditions_of(
    use: TableUse, columns: Sequence[ViewColumn], folds: list[Node]
) -> tuple[Condition, ...]:
    """Find the conditions of WHERE that every row of `use` must fulfil to matter to its query."""
    select = use.select
    if select is None or select["where_clause"] is None or select["sample"] is not None:
        return ()
    if use.node["sample"] is not None or use.node["column_name_alias"]:
        return ()
    joins = _joins_of(select["from_table"])
    if any(join["ref_type"] not in _LOCAL_JOINS for join in joins):
        return ()
    names = {column.name.casefold(): column for column in columns}
    alone = select["from_table"] is use.node
    reader = _Reader(use.name, names, joins, folds, alone=alone)
    todo = [select["where_clause"]]
    found: list[Condition] = []
    while todo:
        node = todo.pop()
        if node["type"] == "CONJUNCTION_AND":
            todo += node["children"]
        else:
            found += reader.read(node)
    return tuple(found)


def limits_of(
    conditions: Sequence[Condition],
    params: Mapping[str, Any],
    folded: Sequence[Any],
    info: TopicInfo,
) -> Limits:
    """Give the conditions their values; those that cannot exclude anything are left out."""
    tests = []
    for condition in conditions:
        data_type = condition.column.type
        if condition.operator in {IS_NULL, IS_NOT_NULL}:
            tests.append((condition.column, Test(condition.operator, (), is_float=False)))
            continue
        values = [comparable(value, data_type) for value in condition.values(params, folded)]
        if values and all(value is not None for value in values):
            test = Test(condition.operator, tuple(values), pt.is_floating(data_type))
            tests.append((condition.column, test))
    return Limits(tests, partition_limits(info, conditions, params, folded))


class _Reader:
    """Reads conjuncts as conditions on the columns of one table."""

    def __init__(
        self,
        name: str,
        columns: Mapping[str, ViewColumn],
        joins: Sequence[Node],
        folds: list[Node],
        *,
        alone: bool,
    ) -> None:
        self._name = name
        self._columns = columns
        self._merged = {name.casefold() for join in joins for name in join["using_columns"]}
        self._visible = all(join["join_type"] in _VISIBLE_JOINS for join in joins)
        self._folds = folds
        self._alone = alone
        self._hidden = frozenset(columns) if alone else None

    def read(self, node: Node) -> list[Condition]:
        operator = _COMPARISONS.get(node["type"])
        if operator is not None:
            return self._comparison(node, operator)
        if node["type"] == "COMPARE_BETWEEN":
            column = self._column(node["input"])
            if column is None:
                return []
            low = self._condition(column, ">=", [node["lower"]])
            return low + self._condition(column, "<=", [node["upper"]])
        if node["type"] == "COMPARE_IN":
            column = self._column(node["children"][0])
            if column is not None and len(node["children"]) > 1:
                return self._condition(column, "in", node["children"][1:])
        if node["type"] in {"OPERATOR_IS_NULL", "OPERATOR_IS_NOT_NULL"}:
            return self._nulls(node)
        return []

    def _nulls(self, node: Node) -> list[Condition]:
        column = self._column(node["children"][0])
        if column is None:
            return []
        if node["type"] == "OPERATOR_IS_NOT_NULL":
            return [Condition(column, IS_NOT_NULL, ())]
        # An outer join makes nulls of rows that it does not find: none of them may be left out.
        return [Condition(column, IS_NULL, ())] if self._alone else []

    def _comparison(self, node: Node, operator: str) -> list[Condition]:
        column = self._column(node["left"])
        if column is not None:
            return self._condition(column, operator, [node["right"]])
        column = self._column(node["right"])
        if column is not None:
            return self._condition(column, _FLIPPED[operator], [node["left"]])
        return []

    def _condition(self, column: ViewColumn, operator: str, nodes: list[Node]) -> list[Condition]:
        constants: list[Constant] = []
        mark = len(self._folds)
        for node in nodes:
            constant = constant_of(node, self._folds, hidden=self._hidden)
            if constant is None:
                del self._folds[mark:]
                return []
            if (
                isinstance(constant, Literal)
                and isinstance(constant.value, str)
                and column.sql_type in _TEMPORAL_CASTS
            ):
                # DuckDB takes the text for a value of the column's type.
                self._folds.append(try_cast(node, column.sql_type))
                constant = Tried(len(self._folds) - 1)
            constants.append(constant)
        return [Condition(column, operator, tuple(constants))]

    def _column(self, node: Node) -> ViewColumn | None:
        if node["class"] != "COLUMN_REF":
            return None
        names = [name.casefold() for name in node["column_names"]]
        if len(names) == 2 and names[0] == self._name:
            return self._columns.get(names[1])
        if len(names) == 1 and self._visible and names[0] not in self._merged:
            # A name that another table has too would be ambiguous, and refused by DuckDB.
            return self._columns.get(names[0])
        return None


def _joins_of(table: Node) -> list[Node]:
    joins = []
    todo = [table]
    while todo:
        node = todo.pop()
        if node["type"] == "JOIN":
            joins.append(node)
            todo += [node["left"], node["right"]]
    return joins


def _shown(value: Any, data_type: pa.DataType) -> str:
    if pt.is_temporal(data_type) and not pt.is_time(data_type):
        return str(
            pa.scalar(value, pa.timestamp("ns", "UTC")).cast(pa.timestamp("us", "UTC"), False)
        )
    return repr(value)
