"""Partition specs as text: `day(ts)`, `bucket[16](id)`, `country`, and back.

The Iceberg specification decides which transform fits which column, so that every Iceberg writer
can execute a spec accepted here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.types as pt

from frazil.errors import InvalidRequest
from frazil.model import PartitionField
from frazil.schema.columns import column_id, column_of, is_text, normal_name, type_name

__all__ = ["parse_partition_spec", "partition_spec_text"]

PARAMETER_MAX: Final = 2**31 - 1
FIELDS_MAX: Final = 32
_CALL: Final = re.compile(
    r"\s*(\w+)\s*(?:\[\s*(\d{1,10})\s*\])?\s*\((.*)\)\s*\Z", re.ASCII | re.DOTALL
)
_WITH_PARAMETER: Final = frozenset({"bucket", "truncate"})
_TIME_RANK: Final = frozenset({"year", "month", "day", "hour"})


def _fits_bucket(data_type: pa.DataType) -> bool:
    return not (pt.is_nested(data_type) or pt.is_floating(data_type) or pt.is_boolean(data_type))


def _fits_truncate(data_type: pa.DataType) -> bool:
    kinds = (pt.is_integer, is_text, pt.is_binary, pt.is_large_binary, pt.is_decimal)
    return any(is_kind(data_type) for is_kind in kinds)


def _has_days(data_type: pa.DataType) -> bool:
    return bool(pt.is_date(data_type) or pt.is_timestamp(data_type))


_FITS: Final[dict[str, tuple[Callable[[pa.DataType], bool], str]]] = {
    "identity": (lambda data_type: not pt.is_nested(data_type), "any scalar"),
    "year": (_has_days, "date, timestamp"),
    "month": (_has_days, "date, timestamp"),
    "day": (_has_days, "date, timestamp"),
    "hour": (pt.is_timestamp, "timestamp"),
    "bucket": (_fits_bucket, "integer, decimal, date, time, timestamp, string, bytes, fixed"),
    "truncate": (_fits_truncate, "integer, decimal, string, bytes"),
}


def parse_partition_spec(spec: Sequence[str], schema: pa.Schema) -> tuple[PartitionField, ...]:
    """Return the fields of `spec` for a declared `schema`; a bare column means `identity`.

    Raises:
        InvalidRequest: for an unknown transform or column, a parameter missing or out of range,
            a transform that the column's type does not allow, or a duplicate field.
    """
    if isinstance(spec, str):
        raise InvalidRequest("partition spec must be a list of fields", got=spec)
    if len(spec) > FIELDS_MAX:
        raise InvalidRequest(
            "partition spec has too many fields", fields=len(spec), fields_max=FIELDS_MAX
        )
    fields: list[PartitionField] = []
    seen: dict[tuple[int, str], str] = {}
    for text in spec:
        field = _parse_one(text, schema)
        # Two time transforms of one column are redundant, which the Iceberg specification forbids.
        kind = field.transform.partition("[")[0]
        slot = (field.column_id, "time" if kind in _TIME_RANK else kind)
        if slot in seen:
            raise InvalidRequest(
                "partition spec has two fields of one kind for a column",
                field=text,
                other=seen[slot],
            )
        seen[slot] = text
        fields.append(field)
    return tuple(fields)


def partition_spec_text(fields: Sequence[PartitionField], schema: pa.Schema) -> list[str]:
    """Format `fields` with the columns' current names; the text parses to the same fields."""
    names = {column_id(field): field.name for field in schema}
    texts: list[str] = []
    for field in fields:
        name = names.get(field.column_id)
        if name is None:
            raise InvalidRequest("partition column does not exist", column_id=field.column_id)
        texts.append(f"{field.transform}({name})")
    return texts


def _parse_one(text: str, schema: pa.Schema) -> PartitionField:
    if not isinstance(text, str):
        raise InvalidRequest("partition field must be text", got=type(text).__name__)
    text = normal_name(text)
    if schema.get_field_index(text) >= 0:
        transform, parameter, name = "identity", None, text
    else:
        match = _CALL.match(text)
        if match is None:
            if "(" not in text:
                column_of(schema, text.strip())
            raise InvalidRequest(
                "partition field has the wrong shape, use column or transform(column)", field=text
            )
        transform, parameter, name = match[1].lower(), match[2], match[3]
        if schema.get_field_index(name) < 0:
            name = name.strip()
    if transform not in _FITS:
        raise InvalidRequest(
            "partition transform is not known", field=text, transforms=",".join(_FITS)
        )
    column = column_of(schema, name)
    fits, types = _FITS[transform]
    if not fits(column.type):
        raise InvalidRequest(
            "partition transform does not fit the column's type",
            field=text,
            type=type_name(column.type),
            fits=types,
        )
    return PartitionField(column_id(column), _with_parameter(transform, parameter, text=text))


def _with_parameter(transform: str, parameter: str | None, *, text: str) -> str:
    if (parameter is not None) is not (transform in _WITH_PARAMETER):
        raise InvalidRequest(
            "the partition transforms bucket and truncate have a parameter, and no other has",
            field=text,
            use="bucket[16](column)",
        )
    if parameter is None:
        return transform
    if not 1 <= int(parameter) <= PARAMETER_MAX:
        raise InvalidRequest(
            "partition parameter is out of range", field=text, parameter_max=PARAMETER_MAX
        )
    return f"{transform}[{int(parameter)}]"
