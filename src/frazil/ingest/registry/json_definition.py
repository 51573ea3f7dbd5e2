"""JSON Schema definitions: read, checked by their dialect, and payloads checked by them.

A definition stands alone: references stay inside it, nothing is ever fetched.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from frazil.errors import InvalidRequest
from frazil.ingest.registry import json_text, limits
from frazil.ingest.registry.json_keywords import check_keywords
from frazil.ingest.registry.json_references import Missing, References, subschemas
from frazil.ingest.registry.kinds import quoted

if TYPE_CHECKING:
    from frazil.ingest.registry.json_text import JsonValue

__all__ = ["JsonSchema", "check_json_schema"]

_DIALECTS: Final = {
    "json-schema.org/draft-04/schema": "Draft4Validator",
    "json-schema.org/draft-06/schema": "Draft6Validator",
    "json-schema.org/draft-07/schema": "Draft7Validator",
    "json-schema.org/draft/2019-09/schema": "Draft201909Validator",
    "json-schema.org/draft/2020-12/schema": "Draft202012Validator",
}
_DIALECT_DEFAULT: Final = "Draft202012Validator"


class JsonSchema:
    """A checked definition; `refusal` is the check of a payload."""

    def __init__(self, value: JsonValue) -> None:
        self.value = value
        self._validator = check_json_schema(value)

    def refusal(self, payload: bytes) -> str | None:
        """Return why the payload does not fit, nothing if it does."""
        from jsonschema.exceptions import ValidationError  # noqa: TC002
        from referencing.exceptions import Unresolvable

        try:
            value = json_text.read_payload(payload, nesting_max=limits.PAYLOAD_NESTING_MAX)
        except InvalidRequest as error:
            return str(error)
        try:
            found: ValidationError | None = next(self._validator.iter_errors(value), None)
        except RecursionError:
            return "the payload cannot be checked: the schema refers to itself without end"
        except (Unresolvable, re.error, ArithmeticError, ValueError) as error:
            # Overflow: a number that `multipleOf` cannot divide.
            return f"the payload cannot be checked: {quoted(error)}"
        if found is None:
            return None
        return f"at {quoted(found.json_path)}: {quoted(found.message)}"


def check_json_schema(value: JsonValue) -> Any:
    """Check a definition and return its validator."""
    import jsonschema
    from referencing import Registry

    if not isinstance(value, (dict, bool)):
        raise InvalidRequest("invalid JSON Schema: it is an object, true or false")
    name = _dialect(value)
    dialect = getattr(jsonschema, name)
    check_keywords(value, is_draft4=name == "Draft4Validator")
    _check_references(value)
    # An empty registry of its own: the library's default one would fetch what a reference names.
    return dialect(value, registry=Registry())


def _dialect(value: dict[str, JsonValue] | bool) -> str:  # noqa: FBT001
    named = value.get("$schema") if isinstance(value, dict) else None
    if named is None:
        return _DIALECT_DEFAULT
    known = None
    if isinstance(named, str):
        bare = named.partition("://")[2].rstrip("#")
        known = _DIALECTS.get(bare)
    if known is None:
        raise InvalidRequest(
            f"invalid JSON Schema: '$schema' is '{quoted(named)}', known are draft-04,"
            " draft-06, draft-07, 2019-09 and 2020-12"
        )
    return known


def _check_references(value: JsonValue) -> None:
    """Follow each reference once, unless a part has an identity of its own."""
    schemas = subschemas(value)
    if any("$id" in schema or "id" in schema for schema, path in schemas if path != "$"):
        return
    references = References(value)
    for schema, path in schemas:
        target = schema.get("$ref")
        if not isinstance(target, str):
            continue
        try:
            references.resolve(target)
        except Missing as error:
            raise InvalidRequest(
                f"invalid JSON Schema at {quoted(path)}: '$ref' to '{quoted(target)}':"
                " there is nothing of that name"
            ) from error
