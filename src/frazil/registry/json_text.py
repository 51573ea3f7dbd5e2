"""JSON text of strangers, read within limits, and its one canonical form."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Container
from typing import Final, NoReturn

from frazil.errors import InvalidRequest
from frazil.registry.kinds import quoted

__all__ = ["JsonValue", "canonical", "fingerprint", "read_definition", "read_payload"]

JsonValue = dict[str, "JsonValue"] | list["JsonValue"] | str | int | float | bool | None
"""What `json` makes of a text."""

INTEGER_MIN: Final = -(1 << 63)
INTEGER_MAX: Final = (1 << 64) - 1
"""Of a whole number in a payload: 64 bits, with or without a sign."""

_UTF8_BOM: Final = b"\xef\xbb\xbf"


def read_definition(data: bytes, *, nesting_max: int) -> JsonValue:
    """Read a definition; a name that stands twice in an object is refused."""
    value = _decode(data)
    _check_nesting(value, nesting_max)
    return value


def read_payload(data: bytes, *, nesting_max: int, known: Container[str]) -> JsonValue:
    """Read a payload, if every reader of it sees the same.

    Of a name that stands twice some readers take the first value, some the last; a whole number
    beyond 64 bits, or any beyond the floating-point range, is cut, rounded or refused.

    What is wrong is told without anything of the payload: only `known` names are.
    """
    value = _decode(data, known)
    _check_number(value)
    _check_nesting(value, nesting_max, has_numbers=True)
    return value


def canonical(value: JsonValue) -> bytes:
    """Return compact JSON with sorted names."""
    try:
        text = json.dumps(
            value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
        )
        return text.encode()
    except ValueError as error:
        # A number beyond the floating-point range, or half of a surrogate pair.
        raise InvalidRequest("not JSON that every reader takes", reason=str(error)) from error


def fingerprint(data: bytes) -> str:
    """Return the fingerprint of a canonical form."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


class _Doubled(Exception):
    """A name stands twice in one object."""


def _decode(data: bytes, known: Container[str] | None = None) -> JsonValue:
    if data.startswith(_UTF8_BOM):
        raise InvalidRequest("not JSON: it starts with a byte order mark")
    try:
        value: JsonValue = _DECODER.decode(data.decode())
    except UnicodeDecodeError as error:
        raise InvalidRequest("not JSON: invalid UTF-8", at_byte=error.start) from error
    except _Doubled as error:
        name = error.args[0]
        told = f"the name '{quoted(name)}'" if known is None or name in known else "a name"
        raise InvalidRequest(f"{told} stands twice in one JSON object") from None
    except RecursionError as error:
        raise InvalidRequest("not JSON that can be read: nested too deep") from error
    except ValueError as error:
        raise InvalidRequest(f"not JSON: {quoted(error)}") from error
    return value


def _object_without_doubles(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _Doubled(Counter(name for name, _ in pairs).most_common(1)[0][0])
    return found


def _refuse_constant(text: str) -> NoReturn:
    raise InvalidRequest(f"not JSON: {text} is not a JSON number")


_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_object_without_doubles, parse_constant=_refuse_constant
)


def _check_nesting(value: JsonValue, nesting_max: int, *, has_numbers: bool = False) -> None:
    """Refuse what is nested too deep; `has_numbers` has all numbers inside looked at as well."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(nesting_max):
        inner: list[dict[str, JsonValue] | list[JsonValue]] = []
        for each in level:
            values = each.values() if isinstance(each, dict) else each
            for part in values:
                if isinstance(part, (dict, list)):
                    inner.append(part)
                elif (
                    has_numbers
                    and isinstance(part, (int, float))
                    and not INTEGER_MIN <= part <= INTEGER_MAX
                ):
                    _check_number(part)
        if not inner:
            return
        level = inner
    if level:
        raise InvalidRequest("the JSON is nested too deep", levels_max=nesting_max)


def _check_number(value: JsonValue) -> None:
    if isinstance(value, int):
        if not INTEGER_MIN <= value <= INTEGER_MAX:
            raise InvalidRequest("a whole number has more than 64 bits")
    elif isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequest("a number is beyond the floating-point range")
