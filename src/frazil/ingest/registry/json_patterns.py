"""Patterns of JSON Schema, matched in time that grows with the text and no faster.

Python's own expressions may take for ever on a short text, with the whole process waiting; those of
Arrow (RE2) do not, and other threads run meanwhile. They have no look-around and no references back
to groups; a definition with such a pattern is refused.
"""

from __future__ import annotations

import re
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from frazil.errors import InvalidRequest
from frazil.ingest.registry.kinds import quoted

__all__ = ["check_pattern", "matches"]

PATTERN_CHARACTERS_MAX: Final = 4_096
_ESCAPE: Final = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|.)", re.DOTALL)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def check_pattern(pattern: str) -> None:
    """Refuse what cannot be matched; the message says why, the caller says where."""
    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise InvalidRequest(
            f"'{quoted(pattern)}' has {len(pattern)} characters,"
            f" at most {PATTERN_CHARACTERS_MAX} are allowed"
        )
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


def _match(pattern: str, text: str) -> bool:
    # Half a surrogate pair, which JSON can write, is no character; no pattern names it.
    data = pa.array([_SURROGATE.sub("\ufffd", text)], pa.string())
    found = pc.match_substring_regex(data, _ESCAPE.sub(_escape, _SURROGATE.sub("\ufffd", pattern)))
    return bool(found[0].as_py())


def _escape(found: re.Match[str]) -> str:
    r"""Return `\u0041` as the engine writes it; other escapes are the same."""
    return found[0] if found[1] is None else rf"\x{{{found[1]}}}"
