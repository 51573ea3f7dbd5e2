"""Sizes and durations as people write them: `128MB`, `64MiB`, `20ms`, `1h30m`.

Decimal size units are powers of 1000 (`MB` is 10^6 bytes), binary ones powers of 1024 (`MiB` is
2^20). Arithmetic is exact: the output of `format_bytes` and `format_duration` parses unchanged.
"""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction
from typing import Final, TypeGuard

from frazil.errors import InvalidRequest

__all__ = ["format_bytes", "format_duration", "is_whole", "parse_bytes", "parse_duration_s"]

TEXT_CHARACTERS_MAX: Final = 64
NUMBER_MAX: Final = 1e30

_BYTES: Final[dict[str, int]] = {
    "PiB": 1 << 50,
    "TiB": 1 << 40,
    "GiB": 1 << 30,
    "MiB": 1 << 20,
    "KiB": 1 << 10,
    "PB": 10**15,
    "TB": 10**12,
    "GB": 10**9,
    "MB": 10**6,
    "kB": 10**3,
    "B": 1,
}
_BYTES_BY_NAME: Final = {name.lower(): size for name, size in _BYTES.items()}

_SECONDS: Final[dict[str, Fraction]] = {
    "w": Fraction(7 * 86400),
    "d": Fraction(86400),
    "h": Fraction(3600),
    "m": Fraction(60),
    "min": Fraction(60),
    "s": Fraction(1),
    "ms": Fraction(1, 10**3),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),
    "ns": Fraction(1, 10**9),
}
_WHOLE: Final = (("d", 86400 * 10**9), ("h", 3600 * 10**9), ("m", 60 * 10**9))
_SMALL: Final = (("s", 10**9), ("ms", 10**6), ("us", 10**3), ("ns", 1))

_NUMBER: Final = r"[0-9](?:_?[0-9])*(?:\.[0-9]+)?"
_PLAIN: Final = re.compile(rf"{_NUMBER}\Z")
_SIZE: Final = re.compile(rf"({_NUMBER})\s*([A-Za-z]*)\Z")
_DURATION: Final = re.compile(rf"(?:{_NUMBER}\s*[a-zµ]+\s*)+\Z")
_DURATION_STEP: Final = re.compile(rf"({_NUMBER})\s*([a-zµ]+)")

SIZE_PATTERN: Final = r"^\s*[0-9][0-9_]*(\.[0-9]+)?\s*([kKmMgGtTpP][iI]?)?[bB]?\s*$"
DURATION_PATTERN: Final = (
    r"^\s*([0-9][0-9_]*(\.[0-9]+)?|([0-9][0-9_]*(\.[0-9]+)?\s*(w|d|h|min|m|s|ms|us|µs|ns)\s*)+)\s*$"
)


def parse_bytes(value: object) -> int:
    """Return a size in bytes from a number or a text such as `128MB`, `64MiB` or `4096`.

    Raises:
        InvalidRequest: if it is no size, is negative, or is not a whole number of bytes.
    """
    if isinstance(value, str):
        size = _bytes_of_text(value)
    else:
        size = _fraction_of_number(value, what="size")
    if size.denominator != 1:
        raise InvalidRequest("size is not a whole number of bytes", value=value)
    return int(size)


def parse_duration_s(value: object) -> float:
    """Return seconds from a number or a text such as `20ms`, `5m`, `48h` or `1h30m`.

    Raises:
        InvalidRequest: if it is no duration or is negative.
    """
    if isinstance(value, str):
        return float(_seconds_of_text(value))
    return float(_fraction_of_number(value, what="duration"))


def format_bytes(count: int) -> str:
    """Write a size in the largest unit that divides it: `128MiB`, `10MB`, `1234B`."""
    if count == 0:
        return "0B"
    for name, size in sorted(_BYTES.items(), key=lambda item: -item[1]):
        if count % size == 0 and size > 1:
            return f"{count // size}{name}"
    return f"{count}B"


def format_duration(seconds: float) -> str:
    """Write a duration in seconds: `20ms`, `1m30s`, `2d`."""
    nanoseconds = Fraction(repr(float(seconds))) * 10**9
    if nanoseconds.denominator != 1:
        return f"{Decimal(repr(float(seconds))):f}s"
    rest = int(nanoseconds)
    if rest == 0:
        return "0s"
    words = []
    for name, size in _WHOLE:
        count, rest = divmod(rest, size)
        if count:
            words.append(f"{count}{name}")
    if rest:
        name, size = next(item for item in _SMALL if rest % item[1] == 0)
        words.append(f"{rest // size}{name}")
    return "".join(words)


def _bytes_of_text(text: str) -> Fraction:
    found = _SIZE.match(_checked(text, what="size"))
    if found is None:
        raise InvalidRequest("not a size, write a number and a unit such as 128MB", value=text)
    number, unit = found.groups()
    if unit and unit.lower() not in _BYTES_BY_NAME:
        hint = f"{unit.upper()}B or {unit.upper()}iB" if len(unit) == 1 else "kB, MB, GB, KiB, MiB"
        raise InvalidRequest(f"unknown unit of size, use {hint}", value=text)
    return Fraction(number) * _BYTES_BY_NAME[unit.lower() or "b"]


def _seconds_of_text(text: str) -> Fraction:
    checked = _checked(text, what="duration")
    if _PLAIN.match(checked):
        return Fraction(checked)
    if _DURATION.match(checked) is None:
        raise InvalidRequest("not a duration, write a number and a unit such as 5m", value=text)
    total = Fraction(0)
    for number, unit in _DURATION_STEP.findall(checked):
        if unit not in _SECONDS:
            raise InvalidRequest("unknown unit of time, use ns, us, ms, s, m, h, d, w", value=text)
        total += Fraction(number) * _SECONDS[unit]
    return total


def _checked(text: str, *, what: str) -> str:
    # The limit keeps the exact arithmetic below small for every text.
    if len(text) > TEXT_CHARACTERS_MAX:
        raise InvalidRequest(f"{what} is too long a text", characters_max=TEXT_CHARACTERS_MAX)
    return text.strip()


def _fraction_of_number(value: object, *, what: str) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"{what} must be a number or a text", got=type(value).__name__)
    # The value is not printed: an integer may be too long.
    if not 0 <= value <= NUMBER_MAX:
        raise InvalidRequest(f"{what} must be a number of at least 0 and at most 1e30")
    return Fraction(value)


def is_whole(value: object) -> TypeGuard[int]:
    """Tell whether a caller's value is a whole number; True and False are not."""
    return isinstance(value, int) and not isinstance(value, bool)
