"""The text of a statement without its literals: texts that differ in values alone share a plan.

Only look-ups by key use this. To parse a text asks DuckDB, which takes longer than the look-up
and, beside busy threads, waits for its turn; to take literals out of a simple text does not.
"""

from __future__ import annotations

import re
from typing import Any, Final

__all__ = ["template_of"]

CHARACTERS_MAX: Final = 2_000

_SIMPLE: Final = re.compile(
    r"""(?> [\w\s(),.=*;]+ | "[^"\0]*" | '(?: [^'\0] | '' )*' )*+""", re.VERBOSE
)
"""Words, numbers, strings and a little punctuation: neither comments nor signs nor parameters."""

_LITERAL: Final = re.compile(r""" "[^"]*" | '(?: [^'] | '' )*' | \b[0-9]{1,18}\b """, re.VERBOSE)


def template_of(sql: str) -> tuple[str, list[Any]] | None:
    """Return the text with `$1`, `$2`… in place of its literals, and their values.

    None if there are none, or if the text is not simple. Whether a template means the same as the
    text is for its parser to find out: what has a literal in a place where no parameter can stand
    is no valid statement as a template.
    """
    if len(sql) > CHARACTERS_MAX or _SIMPLE.fullmatch(sql) is None:
        return None
    values: list[Any] = []

    def replaced(match: re.Match[str]) -> str:
        text = match[0]
        if text[0] == '"':
            return text
        values.append(text[1:-1].replace("''", "'") if text[0] == "'" else int(text))
        return f"${len(values)}"

    template = _LITERAL.sub(replaced, sql)
    return (template, values) if values else None
