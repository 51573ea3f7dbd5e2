"""SQL as people type it: where a statement ends, what is a command of the shell. Pure."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

__all__ = ["Meta", "Split", "explained", "is_finished", "parse_meta", "split_statements"]

_DOLLAR: Final = re.compile(r"\$(?:[^\W\d]\w*)?\$")
_WORD: Final = re.compile(r"\w[\w$]*")
_ESCAPED: Final = re.compile(r"(?:[^'\\]|\\.|'')*'", re.DOTALL)
_EXPLAIN: Final = re.compile(r"explain(?:\s+analyze)?\b(?=\s)", re.IGNORECASE)


class Split(NamedTuple):
    """The statements of a text without their semicolons, and what is not ended yet."""

    statements: list[str]
    rest: str


class Meta(NamedTuple):
    r"""A command of the shell: `\d users` has the name `d` and one argument."""

    name: str
    argument: str


def split_statements(text: str) -> Split:
    """Split at semicolons that stand outside of quotes and comments; empty statements go."""
    statements: list[str] = []
    start = at = 0
    while at < len(text):
        if text[at] == ";":
            if _content_at(text[start:at]) is not None:
                statements.append(text[start:at].strip())
            at += 1
            start = at
        else:
            at = _behind(text, at)
    rest = text[start:]
    return Split(statements, rest.strip() if _content_at(rest) is not None else "")


def is_finished(text: str) -> bool:
    """Tell whether Enter runs what was typed: a command, nothing at all, or a whole statement."""
    return text.lstrip().startswith("\\") or not split_statements(text).rest


def parse_meta(line: str) -> Meta | None:
    """Return the command of the shell in a line, None if the line is SQL."""
    stripped = line.strip()
    if not stripped.startswith("\\"):
        return None
    name, _, argument = stripped[1:].partition(" ")
    return Meta(name, argument.strip().removesuffix(";").strip())


def explained(sql: str) -> str | None:
    """Return what stands behind EXPLAIN, None if the statement is another one."""
    at = _content_at(sql)
    if at is None:
        return None
    found = _EXPLAIN.match(sql, at)
    return None if found is None else sql[found.end() :].strip()


def _content_at(text: str) -> int | None:
    """Return where something other than spaces and comments begins."""
    at = 0
    while at < len(text):
        if text.startswith(("--", "/*"), at):
            behind = _behind(text, at)
            # A comment that is still open is not finished, so it counts as content.
            if text.startswith("/*", at) and _comment_end(text, at) is None:
                return at
            at = behind
        elif text[at].isspace():
            at += 1
        else:
            return at
    return None


def _behind(text: str, at: int) -> int:
    """Return the place behind the word, quoted text, comment or sign that begins at a place.

    What is still open reaches to the end of the text.
    """
    sign = text[at]
    end: int | None
    if sign in "'\"":
        end = _quote_end(text, at)
    elif text.startswith("--", at):
        end = text.find("\n", at)
        end = None if end < 0 else end + 1
    elif text.startswith("/*", at):
        end = _comment_end(text, at)
    elif sign == "$" and (tag := _DOLLAR.match(text, at)):
        found = text.find(tag[0], tag.end())
        end = None if found < 0 else found + len(tag[0])
    elif sign in "eE" and text.startswith("'", at + 1):
        escaped = _ESCAPED.match(text, at + 2)
        end = None if escaped is None else escaped.end()
    else:
        word = _WORD.match(text, at)
        end = at + 1 if word is None else word.end()
    return len(text) if end is None else end


def _quote_end(text: str, at: int) -> int | None:
    """Return the place behind a quoted text; a doubled quote stands for itself."""
    quote = text[at]
    at += 1
    while (found := text.find(quote, at)) >= 0:
        if not text.startswith(quote, found + 1):
            return found + 1
        at = found + 2
    return None


def _comment_end(text: str, at: int) -> int | None:
    """Return the place behind a block comment; comments nest."""
    depth = 0
    while at < len(text):
        if text.startswith("/*", at):
            depth += 1
            at += 2
        elif text.startswith("*/", at):
            depth -= 1
            at += 2
            if depth == 0:
                return at
        else:
            at += 1
    return None
