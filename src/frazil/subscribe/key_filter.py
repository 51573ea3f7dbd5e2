"""Patterns of keys: `*` stands for any characters, `?` for one; all others for themselves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

__all__ = ["key_filter"]


def key_filter(patterns: Iterable[str]) -> Callable[[str], bool]:
    """Return whether a key matches one of the patterns; without patterns every key does."""
    texts = [_as_regular_expression(pattern) for pattern in patterns]
    if not texts:
        return _accept_all
    matches = re.compile("|".join(texts), re.DOTALL).fullmatch
    return lambda key: matches(key) is not None


def _as_regular_expression(pattern: str) -> str:
    head, *rest = pattern.split("*")
    if not rest:
        return _literal(head)
    # Each part is taken where it is found first and never again elsewhere (an atomic group), so
    # that no pattern makes the match of a long key take for ever.
    middle = "".join(f"(?>.*?{_literal(part)})" for part in rest[:-1] if part)
    return f"{_literal(head)}{middle}.*{_literal(rest[-1])}"


def _literal(part: str) -> str:
    return "".join("." if sign == "?" else re.escape(sign) for sign in part)


def _accept_all(_key: str) -> bool:
    return True
