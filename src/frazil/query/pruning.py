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

import pyarrow as pa
import pyarrow.types as pt

from frazil.query.constants import (
    Constant,
    Literal,
    Moment,
    Tried,
    comparable,
    constant_of,
    is_missing,
    stored_range,
    try_cast,
    value_of,
)
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
    "Condition",
    "Known",
    "Limits",
    "Miss",
    "PartitionLimits",
    "Unfit",
    "column_value",
    "conditions_of",
    "key_conditions",
    "keys_of",
    "limits_of",
    "partition_limits",
]

KEYS_MAX: Final = 10_000
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


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
