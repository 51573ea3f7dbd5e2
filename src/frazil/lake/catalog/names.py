"""Names of namespaces and tables, as requests give them. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from frazil.lake.catalog.refusals import bad_request

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SEPARATOR", "joined", "levels", "path_part", "table_name"]

SEPARATOR: Final = "\x1f"
"""What stands between the levels of a namespace in a path; in a row it is a dot."""
NAME_CHARACTERS_MAX: Final = 255
_UNFIT = re.compile(r"[^A-Za-z0-9_-]")


def _check(name: str, what: str) -> str:
    if not name or len(name) > NAME_CHARACTERS_MAX:
        raise bad_request(
            f"{what} must have 1 to {NAME_CHARACTERS_MAX} characters", name=name, has=len(name)
        )
    if not name.isprintable() or "/" in name or "\\" in name or name in {".", ".."}:
        raise bad_request(f"{what} has a character that names cannot have", name=name)
    return name


def joined(parts: Sequence[str]) -> str:
    """Return a namespace as a row has it.

    Raises:
        Refusal: it is empty, too long, or has a level that cannot be told from two.
    """
    for part in parts:
        _check(part, "level of a namespace")
        if "." in part:
            raise bad_request("level of a namespace cannot have a dot", name=part)
    return _check(".".join(parts), "namespace")


def levels(namespace: str) -> list[str]:
    """Return the levels of a namespace in a row."""
    return namespace.split(".")


def table_name(name: str) -> str:
    """Return a table's name if it is one.

    Raises:
        Refusal: it is not.
    """
    return _check(name, "name of a table")


def path_part(name: str) -> str:
    """Return a name as part of a path on every disk."""
    return _UNFIT.sub("_", name)[:100]
