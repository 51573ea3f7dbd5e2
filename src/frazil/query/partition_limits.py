"""In which partitions rows can match: those of the constants that a partition's column equals.

Ranges are left to the least and greatest values of files, which say more than a partition does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from frazil.query.keys import MISS, UNFIT, column_value
from frazil.query.views import column_id
from frazil.tiers import Partitioner

if TYPE_CHECKING:
    from frazil.model import PartitionField
    from frazil.query.pruning import Condition
    from frazil.query.sources import SnapshotFile, TopicInfo, TopicSnapshot

__all__ = ["EVERY_PARTITION", "PartitionLimits", "partition_limits"]


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
