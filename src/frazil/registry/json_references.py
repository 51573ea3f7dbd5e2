"""References of a JSON Schema to its own parts: `#`, `#/pointer`, `#anchor`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

if TYPE_CHECKING:
    from frazil.registry.json_places import Place
    from frazil.registry.json_text import JsonValue

__all__ = ["Missing", "References", "subschemas"]

_DATA_KEYWORDS: Final = frozenset(("const", "default", "enum", "example", "examples"))
"""What stands below them is data, not a schema."""
_NAME_KEYWORDS: Final = frozenset(
    ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas", "dependencies")
)
"""What stands directly below them are names, not keywords."""
_INDEX: Final = re.compile(r"[0-9]{1,9}\Z")


class Missing(Exception):
    """A reference leads nowhere."""


class References:
    """One definition, and where its references lead."""

    def __init__(self, root: JsonValue) -> None:
        self.root = root
        self._anchors: dict[str, JsonValue] | None = None
        self._found: dict[str, JsonValue] = {}

    def resolve(self, target: str) -> JsonValue:
        """Return the part that a reference names, or raise Missing. Each is looked for once."""
        if target not in self._found:
            self._found[target] = self._find(target)
        return self._found[target]

    def _find(self, target: str) -> JsonValue:
        fragment = unquote(target.removeprefix("#"))
        if not fragment:
            return self.root
        if not fragment.startswith("/"):
            return self._anchored(fragment)
        value = self.root
        for step in fragment[1:].split("/"):
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict) and name in value:
                value = value[name]
            elif isinstance(value, list) and _INDEX.match(name) and int(name) < len(value):
                value = value[int(name)]
            else:
                raise Missing(target)
        return value

    def _anchored(self, name: str) -> JsonValue:
        if self._anchors is None:
            self._anchors = {}
            for schema, _ in subschemas(self.root):
                for key in ("$anchor", "$dynamicAnchor", "$id", "id"):
                    anchor = schema.get(key)
                    if isinstance(anchor, str) and (key.endswith("nchor") or anchor[:1] == "#"):
                        self._anchors.setdefault(anchor.removeprefix("#"), schema)
        if name not in self._anchors:
            raise Missing(name)
        return self._anchors[name]


def subschemas(root: JsonValue) -> list[tuple[dict[str, JsonValue], Place]]:
    """Return all objects that may be schemas, with their places."""
    found: list[tuple[dict[str, JsonValue], Place]] = []
    work: list[tuple[JsonValue, Place, bool]] = [(root, None, True)]
    while work:
        each, place, is_schema = work.pop()
        if isinstance(each, list):
            work.extend((item, (place, index), True) for index, item in enumerate(each))
        elif isinstance(each, dict):
            if is_schema:
                found.append((each, place))
            work.extend(
                (inner, (place, name), not (is_schema and name in _NAME_KEYWORDS))
                for name, inner in each.items()
                if not (is_schema and name in _DATA_KEYWORDS)
            )
    return found
