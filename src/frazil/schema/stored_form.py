"""Validated values in the form that Arrow returns after decoding.

A key look-up before a row's frame is decoded must return the same row: floats of a narrow column
are rounded, decimals have all digits of their column's scale, instants have Arrow's own UTC.
"""

from __future__ import annotations

import ctypes
from decimal import Context, Decimal
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.types as pt

if TYPE_CHECKING:
    from collections.abc import Callable

    Form = Callable[[Any], Any]

__all__ = ["stored_forms"]

_EXACT: Final = Context(prec=100)


def stored_forms(schema: pa.Schema) -> tuple[tuple[int, Form], ...]:
    """Return the positions of columns whose stored form may differ from the input, and the form."""
    forms = [(place, _form(data_type)) for place, data_type in enumerate(schema.types)]
    return tuple([(place, form) for place, form in forms if form is not None])


def _form(data_type: pa.DataType) -> Form | None:
    if pt.is_float32(data_type):
        return _narrow
    if pt.is_decimal(data_type):
        return _scaled(data_type.scale)
    if pt.is_timestamp(data_type):
        return _zoned(data_type)
    return _once if pt.is_time(data_type) else None


def _narrow(value: float) -> float:
    return ctypes.c_float(value).value


def _scaled(scale: int) -> Form:
    grain = Decimal((0, (1,), -scale))

    def form(value: Decimal) -> Decimal:
        # Arrow's zero has no sign.
        return value.quantize(grain, context=_EXACT) if value else 0 * grain

    return form


def _zoned(data_type: pa.DataType) -> Form:
    # Validated instants are in UTC, so only the zone object differs.
    zone = pa.scalar(0, data_type).as_py().tzinfo

    def form(value: Any) -> Any:
        if type(value) is int:
            # A stored row has nanoseconds as an integer: Python's own type is coarser.
            return value
        if value.tzinfo is zone and not value.fold:
            return value
        return value.replace(tzinfo=zone, fold=0)

    return form


def _once(value: Any) -> Any:
    """Return a time of day without `fold`: Arrow stores an ambiguous time once."""
    return value.replace(fold=0) if value.fold else value
