"""JSON Schema definitions: read, checked by their dialect, and payloads checked by them.

A definition stands alone: references stay inside it, nothing is ever fetched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from frazil.errors import InvalidRequest
from frazil.registry import json_text, limits
from frazil.registry.json_keywords import check_keywords
from frazil.registry.json_payload import PayloadCheck
from frazil.registry.json_places import told_place
from frazil.registry.json_references import Missing, References, subschemas
from frazil.registry.kinds import quoted
from frazil.registry.work import TOO_MUCH_WORK, TooMuchWork

if TYPE_CHECKING:
    from frazil.registry.json_text import JsonValue
    from frazil.registry.work import Work

__all__ = ["JsonSchema"]

_DRAFTS: Final = {
    "json-schema.org/draft-04/schema": 4,
    "json-schema.org/draft-06/schema": 6,
    "json-schema.org/draft-07/schema": 7,
    "json-schema.org/draft/2019-09/schema": 2019,
    "json-schema.org/draft/2020-12/schema": 2020,
}
_DRAFT_DEFAULT: Final = 2020
_LINKS: Final = frozenset(("$id", "id", "$ref", "$dynamicRef", "$recursiveRef"))
_READ_SHIFT: Final = 5
"""32 bytes are read in one unit of work."""


class JsonSchema:
    """A checked definition; what is wrong with it is an InvalidRequest."""

    def __init__(self, value: JsonValue) -> None:
        if not isinstance(value, (dict, bool)):
            raise InvalidRequest("invalid JSON Schema: it is an object, true or false")
        draft = _draft(value)
        check_keywords(value, is_draft4=draft == 4)
        _check_references(value)
        self.value: JsonValue = value
        self._check = PayloadCheck(value, draft)

    def refusal(self, payload: bytes, work: Work) -> str | None:
        """Return why the payload does not fit, nothing if it does."""
        try:
            work.charge(len(payload) >> _READ_SHIFT)
            value = json_text.read_payload(
                payload, nesting_max=limits.NESTING_MAX, known=self._check.names
            )
        except InvalidRequest as error:
            return str(error)
        except TooMuchWork:
            return TOO_MUCH_WORK
        return self._check.refusal(value, work)


def _draft(value: dict[str, JsonValue] | bool) -> int:  # noqa: FBT001
    named = value.get("$schema") if isinstance(value, dict) else None
    if named is None:
        return _DRAFT_DEFAULT
    found = None
    if isinstance(named, str):
        found = _DRAFTS.get(named.partition("://")[2].rstrip("#"))
    if found is None:
        raise InvalidRequest(
            f"invalid JSON Schema: '$schema' is '{quoted(named)}', known are draft-04, draft-06,"
            " draft-07, 2019-09 and 2020-12"
        )
    return found


def _check_references(value: JsonValue) -> None:
    """Follow each reference once; a part that is a document of its own is refused."""
    references = References(value)
    for schema, place in subschemas(value):
        if _LINKS.isdisjoint(schema):
            continue
        for key in ("$id", "id"):
            own = schema.get(key)
            if place is not None and isinstance(own, str) and not own.startswith("#"):
                raise InvalidRequest(
                    f"invalid JSON Schema at {quoted(told_place(place))}: '{key}' inside a"
                    " definition is not supported, write the part into '$defs'"
                )
        for key in ("$ref", "$dynamicRef", "$recursiveRef"):
            target = schema.get(key)
            if not isinstance(target, str):
                continue
            try:
                references.resolve(target)
            except Missing as error:
                raise InvalidRequest(
                    f"invalid JSON Schema at {quoted(told_place(place))}: '{key}' to"
                    f" '{quoted(target)}': there is nothing of that name"
                ) from error
