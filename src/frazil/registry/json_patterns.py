"""Patterns of JSON Schema, matched in time that grows with the text and no faster.

Python's own expressions may take for ever on a short text, with the whole process waiting; those of
Arrow (RE2) do not, and other threads run meanwhile. They have no look-around and no references back
to groups; a definition with such a pattern is refused.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from frazil.errors import InvalidRequest
from frazil.registry import limits
from frazil.registry.kinds import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["check_pattern", "match_units", "matches", "matching", "pattern_size"]

PATTERN_CHARACTERS_MAX: Final = 4_096
_CALL_UNITS: Final = 16
_COMPILED_SHIFT: Final = 2
"""Four parts of a pattern's program are compiled in one unit of work: anew for each match."""
_MATCHED_SHIFT: Final = 6
"""At worst each part is looked at for each character, 64 in one unit of work."""
_CLASS_SIZE: Final = 6
"""The parts of `.` and of other sets of nearly all characters, which are bytes inside."""
_PROPERTY_SIZE: Final = 1_600
"""The parts of `\\pL` and the like: hundreds of ranges."""
_TOKEN: Final = re.compile(
    r"\\Q.*?(?:\\E|\Z)|\\[pP](?:\{[^}]*\}|.)?|\\x\{[^}]*\}|\\."
    r"|\[\^?\]?|\{(\d+)(,?)(\d*)\}|.",
    re.DOTALL,
)
_CLASS_TOKEN: Final = re.compile(r"\[:\^?\w+:\]|\\[pP]|\\.|.", re.DOTALL)
_IGNORES_CASE: Final = re.compile(r"\(\?[a-zA-Z]*i")
_ESCAPE: Final = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|.)", re.DOTALL)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def check_pattern(pattern: str) -> None:
    """Refuse what cannot be matched; the message says why, the caller says where."""
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise InvalidRequest(
            f"'{quoted(pattern)}' has {len(pattern)} characters,"
            f" at most {PATTERN_CHARACTERS_MAX} are allowed"
        )
    if match_units(pattern_size(pattern), 0) > limits.WORK_UNITS_MAX:
        raise InvalidRequest(f"'{quoted(pattern)}' needs too much work, repeat less in it")
    try:
        _match(pattern, "")
    except pa.ArrowInvalid as error:
        reason = quoted(str(error).removeprefix("Invalid regular expression: "))
        raise InvalidRequest(
            f"'{quoted(pattern)}' is no regular expression"
            f" (look-around and references to groups are not supported): {reason}"
        ) from error


def matches(pattern: str, text: str) -> bool:
    """Tell whether a checked pattern is found anywhere in a text."""
    return _match(pattern, text)


def matching(pattern: str, texts: Sequence[str]) -> list[str]:
    """Return those of some texts that a checked pattern is found in; it is compiled once."""
    found = _found(pattern, texts)
    return [text for text, is_found in zip(texts, found, strict=True) if is_found]


def match_units(size: int, characters: int) -> int:
    """Return the most work that matching a pattern of a size with so many characters is."""
    return _CALL_UNITS + (size >> _COMPILED_SHIFT) + (size * characters >> _MATCHED_SHIFT)


def pattern_size(pattern: str) -> int:
    """Return how many parts a pattern has, with all repetitions written out; rather too many."""
    groups: list[int] = []
    total = last = at = 0
    while found := _TOKEN.match(pattern, at):
        mark, at = found[0], found.end()
        if mark == "(":
            groups.append(total)
            total = last = 0
        elif mark == ")" and groups:
            last = total + 2
            total = groups.pop() + last
        elif found[1]:
            # Of `x{2,}` the last one is repeated without end, and is one part more.
            times = int((found[3] or found[1])[:9]) + (1 if found[2] and not found[3] else 0)
            total += last * max(0, times - 1)
            last *= max(1, times)
        elif mark in {"*", "+", "?"}:
            total += 1
        else:
            if mark[0] == "[":
                last, at = _class_size(pattern, at)
            else:
                last = _token_size(mark)
            total += last
    size = sum(groups) + total
    return size * 2 if _IGNORES_CASE.search(pattern) else size


def _class_size(pattern: str, at: int) -> tuple[int, int]:
    """Return the size of a set whose members start at `at`, and where it ends."""
    size = _CLASS_SIZE
    while found := _CLASS_TOKEN.match(pattern, at):
        mark, at = found[0], found.end()
        if mark == "]":
            break
        size += _PROPERTY_SIZE if mark in {"\\p", "\\P"} else 1
    return size, at


def _token_size(mark: str) -> int:
    if mark[:2] in {"\\p", "\\P"}:
        return _PROPERTY_SIZE
    if mark in {".", "\\W", "\\D", "\\S", "\\C", "\\X"}:
        return _CLASS_SIZE
    if mark[:2] == "\\Q":
        return 4 * len(mark)
    return 1 if mark.isascii() and len(mark) < 3 else 4


def _match(pattern: str, text: str) -> bool:
    return _found(pattern, (text,))[0]


def _found(pattern: str, texts: Sequence[str]) -> list[bool]:
    # Half a surrogate pair, which JSON can write, is no character; no pattern names it.
    data = pa.array([_SURROGATE.sub("\ufffd", text) for text in texts], pa.string())
    found = pc.match_substring_regex(data, _ESCAPE.sub(_escape, _SURROGATE.sub("\ufffd", pattern)))
    return [bool(each) for each in found.to_pylist()]


def _escape(found: re.Match[str]) -> str:
    r"""Return `\u0041` as the engine writes it; other escapes are the same."""
    return found[0] if found[1] is None else rf"\x{{{found[1]}}}"
