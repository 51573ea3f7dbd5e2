"""JSON text of strangers, read within limits, and its one canonical form."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import Final, NoReturn

from frazil.errors import InvalidRequest
from frazil.ingest.registry.kinds import quoted

__all__ = ["JsonValue", "canonical", "fingerprint", "read_definition", "read_payload"]

JsonValue = dict[str, "JsonValue"] | list["JsonValue"] | str | int | float | bool | None
"""What `json` makes of a text."""

_UTF8_BOM: Final = b"\xef\xbb\xbf"


def read_definition(data: bytes, *, nesting_max: int) -> JsonValue:
    """Read a definition; a name that stands twice in an object is refused."""
    value = _decode(data, _object_without_doubles)
    _check_nesting(value, nesting_max)
    return value


def read_payload(data: bytes, *, nesting_max: int) -> JsonValue:
    """Read a payload; of a name that stands twice in an object the last value counts."""
    value = _decode(data, None)
    _check_nesting(value, nesting_max)
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


def _decode(data: bytes, hook: object) -> JsonValue:
    if data.startswith(_UTF8_BOM):
        raise InvalidRequest("not JSON: it starts with a byte order mark")
    try:
        value: JsonValue = json.loads(
            data.decode(),
            object_pairs_hook=hook,  # type: ignore[arg-type]
            parse_constant=_refuse_constant,
        )
    except UnicodeDecodeError as error:
        raise InvalidRequest("not JSON: invalid UTF-8", at_byte=error.start) from error
    except RecursionError as error:
        raise InvalidRequest("not JSON that can be read: nested too deep") from error
    except ValueError as error:
        raise InvalidRequest(f"not JSON: {quoted(error)}") from error
    return value


def _object_without_doubles(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    found = dict(pairs)
    if len(found) != len(pairs):
        double = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise InvalidRequest(f"the name '{quoted(double)}' stands twice in one JSON object")
    return found


def _refuse_constant(text: str) -> NoReturn:
    raise InvalidRequest(f"not JSON: {text} is not a JSON number")


def _check_nesting(value: JsonValue, nesting_max: int) -> None:
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(nesting_max):
        inner: list[dict[str, JsonValue] | list[JsonValue]] = []
        for each in level:
            values = each.values() if isinstance(each, dict) else each
            inner.extend(value for value in values if isinstance(value, (dict, list)))
        if not inner:
            return
        level = inner
    if level:
        raise InvalidRequest("the JSON is nested too deep", levels_max=nesting_max)
