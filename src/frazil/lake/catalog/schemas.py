"""Schemas, partition specs and sort orders as raw JSON: fresh ids, equality and checks. Pure."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from frazil.lake.catalog.refusals import bad_request

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = [
    "PARTITION_FIELD_ID_FIRST",
    "Json",
    "bound_fields",
    "check_schema",
    "column_ids",
    "id_highest",
    "same_schema",
    "spec_fields",
    "with_fresh_ids",
]

Json: TypeAlias = dict[str, Any]

PARTITION_FIELD_ID_FIRST: Final = 1000
DEPTH_MAX: Final = 64


def _nested(kind: object) -> Iterator[tuple[str, str, Any]]:
    """Yield the parts of a nested type: the key of its id, the key of its type, and its owner."""
    if not isinstance(kind, dict):
        return
    match kind.get("type"):
        case "struct":
            for field in kind.get("fields", ()):
                yield "id", "type", field
        case "list":
            yield "element-id", "element", kind
        case "map":
            yield "key-id", "key", kind
            yield "value-id", "value", kind


def _walk(kind: object, depth: int = 0) -> Iterator[tuple[int, object, Json]]:
    """Yield id, type and owner of every field below a type."""
    if depth > DEPTH_MAX:
        raise bad_request("schema is nested too deep", levels_max=DEPTH_MAX)
    for id_key, type_key, owner in _nested(kind):
        if not isinstance(owner, dict) or not isinstance(owner.get(id_key), int):
            raise bad_request("schema has a field without an id", key=id_key)
        yield owner[id_key], owner.get(type_key), owner
        yield from _walk(owner.get(type_key), depth + 1)


def column_ids(schema: Json) -> set[int]:
    """Return the ids of all fields, nested ones too."""
    return {number for number, _kind, _owner in _walk(schema)}


def id_highest(schema: Json) -> int:
    """Return the highest field id, 0 for a schema without fields."""
    return max(column_ids(schema), default=0)


def check_schema(schema: Json) -> None:
    """Refuse a schema that no engine could read."""
    if not isinstance(schema.get("fields"), list):
        raise bad_request("schema has no fields")
    seen: set[int] = set()
    for number, kind, owner in _walk(schema):
        if number in seen:
            raise bad_request("schema has a field id twice", id=number)
        seen.add(number)
        if not isinstance(kind, str) and (
            not isinstance(kind, dict) or kind.get("type") not in {"struct", "list", "map"}
        ):
            raise bad_request("field has no type", field=owner.get("name", ""))
    _check_names(schema)
    for number in schema.get("identifier-field-ids") or ():
        if number not in seen:
            raise bad_request("identifier field is not in the schema", id=number)


def _check_names(kind: object) -> None:
    names: set[str] = set()
    for _id_key, type_key, owner in _nested(kind):
        if "name" in owner or type_key == "type":
            name = owner.get("name")
            if not isinstance(name, str) or not name:
                raise bad_request("field has no name", id=owner.get("id"))
            if name in names:
                raise bad_request("schema has two fields of one name", field=name)
            names.add(name)
        _check_names(owner.get(type_key))


def with_fresh_ids(schema: Json) -> tuple[Json, dict[int, int]]:
    """Return the schema of a new table with ids from 1 on, and the new id of each old one.

    The fields of a struct are numbered before their nested fields, as in the reference.
    """
    numbers = itertools.count(1)
    renumbered: dict[int, int] = {}

    def take(number: int) -> int:
        renumbered[number] = next(numbers)
        return renumbered[number]

    def fresh(kind: Any) -> Any:
        if not isinstance(kind, dict):
            return kind
        match kind["type"]:
            case "struct":
                ids = [take(field["id"]) for field in kind["fields"]]
                fields = [
                    {**field, "id": number, "type": fresh(field["type"])}
                    for field, number in zip(kind["fields"], ids, strict=True)
                ]
                return {**kind, "fields": fields}
            case "list":
                number = take(kind["element-id"])
                return {**kind, "element-id": number, "element": fresh(kind["element"])}
            case _:
                key, value = take(kind["key-id"]), take(kind["value-id"])
                numbered = {**kind, "key-id": key, "value-id": value}
                return {**numbered, "key": fresh(kind["key"]), "value": fresh(kind["value"])}

    made: Json = fresh({**schema, "type": "struct"})
    identifiers = schema.get("identifier-field-ids")
    if identifiers:
        made["identifier-field-ids"] = sorted(renumbered[number] for number in identifiers)
    return made, renumbered


def _without_absent(value: Any) -> Any:
    """Return a value without the keys that mean the same when they are left out."""
    if isinstance(value, dict):
        return {
            key: _without_absent(item)
            for key, item in value.items()
            if item is not None and key != "schema-id"
        }
    if isinstance(value, list):
        return [_without_absent(item) for item in value]
    return value


def same_schema(one: Json, other: Json) -> bool:
    """Return whether two schemas have the same fields and identifiers; schema ids may differ."""

    def plain(schema: Json) -> Json:
        identifiers = sorted(schema.get("identifier-field-ids") or ())
        cleaned: Json = _without_absent({**schema, "type": "struct"})
        return {**cleaned, "identifier-field-ids": identifiers}

    return plain(one) == plain(other)


def bound_fields(fields: Sequence[Json], renumbered: Mapping[int, int], *, what: str) -> list[Json]:
    """Return the fields of a spec or an order with the new ids of their source columns.

    The source of a `void` field may have been dropped: it keeps its id.
    """
    bound = []
    for field in fields:
        sources = field.get("source-ids") or [field.get("source-id")]
        missing = [source for source in sources if source not in renumbered]
        if missing and field.get("transform") != "void":
            raise bad_request(f"{what} field has an unknown source column", source=missing[0])
        new = [renumbered.get(source, source) for source in sources]
        source_of = {"source-ids": new} if "source-ids" in field else {"source-id": new[0]}
        bound.append({**field, **source_of})
    return bound


def _same_source(one: Json, other: Json) -> bool:
    return all(one.get(key) == other.get(key) for key in ("source-id", "source-ids", "transform"))


def spec_fields(
    fields: Sequence[Json], *, earlier: Sequence[Json], last_id: int
) -> tuple[list[Json], int]:
    """Return partition fields that all have ids, and the highest assigned id.

    A field without an id gets that of the same source and transform in an `earlier` field, or the
    next one.
    """
    named: set[str] = set()
    made: list[Json] = []
    for field in fields:
        name = field.get("name")
        if not isinstance(name, str) or not name or name in named:
            raise bad_request("partition field needs a unique name", name=name)
        named.add(name)
        number = field.get("field-id")
        if number is None:
            same = [known for known in earlier if _same_source(known, field)]
            number = same[0]["field-id"] if same else last_id + 1
        last_id = max(last_id, number)
        made.append({**field, "field-id": number})
    if len({field["field-id"] for field in made}) != len(made):
        raise bad_request("partition spec has a field id twice")
    return made, last_id
