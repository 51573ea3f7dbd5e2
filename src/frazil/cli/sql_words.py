"""What the SQL shell offers to complete: topics, columns, keywords, its own commands. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from frazil.model import NAMESPACE_DEFAULT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["KEYWORDS", "META_COMMANDS", "Word", "quoted", "table_name", "words_for"]

_NAMES: Final = """
ALL AND AS ASC BETWEEN BY CASE CAST COUNT CROSS DESC DESCRIBE DISTINCT ELSE END EXCEPT EXISTS
EXPLAIN FALSE FILTER FROM FULL GROUP HAVING ILIKE IN INNER INTERSECT INTERVAL IS JOIN LEFT LIKE
LIMIT NOT NULL OFFSET ON OR ORDER OUTER OVER PARTITION QUALIFY RECURSIVE RIGHT SELECT SHOW TABLES
THEN TRUE UNION UNNEST USING VALUES WHEN WHERE WINDOW WITH
"""
KEYWORDS: Final = tuple(_NAMES.split())
META_COMMANDS: Final = ("\\d", "\\f", "\\h", "\\q", "\\timing")

_PLAIN_NAME: Final = re.compile(r"[^\W\d]\w*\Z")
_TYPED: Final = re.compile(r'(?:[\w$.]|"[^"]*")*\Z')
_TYPED_QUOTED: Final = re.compile(r'(?:[\w$.]|"[^"]*")*"[^"]*\Z')
_TABLE_NEXT: Final = re.compile(
    r"\b(?:from|join|describe)\s+"
    r"(?:(?:(?!\b(?:where|group|order|having|on|limit|select)\b)[^;()])*,\s*)?\Z",
    re.IGNORECASE,
)
_SOURCE: Final = re.compile(
    r'(?:\b(?:from|join)\b|,)\s*((?:[\w$.]|"[^"]*")+)(?:\s+(?:as\s+)?([^\W\d]\w*))?', re.IGNORECASE
)


class Word(NamedTuple):
    """One offer: what replaces the typed part, and what it is."""

    text: str
    kind: str


def quoted(name: str) -> str:
    """Return a name as SQL takes it: quoted only where it must be."""
    if _PLAIN_NAME.match(name) and name.upper() not in KEYWORDS:
        return name
    return '"' + name.replace('"', '""') + '"'


def table_name(topic: str) -> str:
    """Return how SQL names a topic: `events`, or `shop.orders` in another namespace."""
    _, namespace, name = topic.split("/")
    if namespace == NAMESPACE_DEFAULT:
        return quoted(name)
    return f"{quoted(namespace)}.{quoted(name)}"


def words_for(
    before: str, tables: Mapping[str, Sequence[str]], *, after: str = ""
) -> tuple[str, list[Word]]:
    """Return the part that is being typed before the cursor, and what may replace it.

    `after` is the text behind the cursor. `tables` has the columns of each topic by the topic's name in SQL. Behind FROM and JOIN tables
    are offered; elsewhere the columns of the statement's tables come first, then keywords, tables
    and the columns of all others.
    """
    stripped = before.lstrip()
    if stripped.startswith("\\"):
        return _meta_words(stripped, tables)
    match = (_TYPED_QUOTED if before.count('"') % 2 else _TYPED).search(before)
    assert match is not None
    typed = match[0]
    head = before[: match.start()]
    if _TABLE_NEXT.search(head):
        return typed, _fitting(typed, [Word(name, "topic") for name in tables])
    sources = _sources(f"{before} {after}", tables)
    owner, dot, _column = typed.rpartition(".")
    if dot and (columns := sources.get(owner.lower(), tables.get(owner))) is not None:
        offers = [Word(f"{owner}.{quoted(column)}", "column") for column in columns]
        return typed, _fitting(typed, offers)
    named = [column for columns in sources.values() for column in columns]
    others = [column for columns in tables.values() for column in columns]
    offers = [
        *(Word(quoted(column), "column") for column in named),
        *(Word(keyword, "keyword") for keyword in KEYWORDS),
        *(Word(name, "topic") for name in tables),
        *(Word(quoted(column), "column") for column in ([] if named else others)),
    ]
    return typed, _fitting(typed, offers) if typed else []


def _meta_words(text: str, tables: Mapping[str, Sequence[str]]) -> tuple[str, list[Word]]:
    command, space, argument = text.partition(" ")
    if not space:
        return command, _fitting(command, [Word(each, "command") for each in META_COMMANDS])
    offers: Iterable[str] = ()
    if command == "\\d":
        offers = tables
    elif command == "\\f":
        offers = ("table", "csv", "json", "ndjson", "arrow")
    return argument, _fitting(argument, [Word(each, "value") for each in offers])


def _sources(text: str, tables: Mapping[str, Sequence[str]]) -> dict[str, Sequence[str]]:
    """Return the columns of the tables in a statement, by name and alias in lower case."""
    found: dict[str, Sequence[str]] = {}
    lowered = {name.lower(): columns for name, columns in tables.items()}
    for name, alias in _SOURCE.findall(text):
        columns = lowered.get(name.lower())
        if columns is not None:
            is_alias = alias and alias.upper() not in KEYWORDS
            found[(alias if is_alias else name).lower()] = columns
    return found


def _fitting(typed: str, offers: Iterable[Word]) -> list[Word]:
    """Return the offers that begin as typed, each once; a keyword keeps the typist's case."""
    wanted = typed.lower().replace('"', "")
    found: dict[str, Word] = {}
    for offer in offers:
        text = offer.text
        if offer.kind == "keyword" and typed.islower():
            text = text.lower()
        if text.lower().replace('"', "").startswith(wanted) and text != typed:
            found.setdefault(text, Word(text, offer.kind))
    return list(found.values())
