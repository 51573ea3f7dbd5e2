"""Checks whether a new version of a schema may follow the latest: one rule for each language.

In the mode `backward` the new version is the reader, in `forward` the latest is; each rule
returns its reasons, none if the reader can read everything from the writer.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple, TypeVar

from frazil.registry.kinds import SHOWN_CHARACTERS_MAX, quoted

__all__ = [
    "AvroForm",
    "ProtobufForm",
    "avro_name",
    "avro_reasons",
    "json_reasons",
    "protobuf_reasons",
]

REASONS_MAX: Final = 100
_REASON_CHARACTERS_MAX: Final = 400
_SHOWN_MAX: Final = 5

_Form = TypeVar("_Form")


def _line(path: str, text: str) -> str:
    return f"at {quoted(path)}: {text}"[:_REASON_CHARACTERS_MAX]


def _lines(found: list[str]) -> tuple[str, ...]:
    """Return the reasons in order, without duplicates, and at most the limit."""
    lines = tuple(dict.fromkeys(found))
    more = len(lines) - REASONS_MAX
    return (*lines[:REASONS_MAX], f"and {more} more") if more > 0 else lines


def _below(path: str, step: str) -> str:
    """Return the path of a nested part; steps that messages do not show are omitted."""
    return path if len(path) > SHOWN_CHARACTERS_MAX else f"{path}{step[:SHOWN_CHARACTERS_MAX]}"


# ----------------------------------------------------------------------------------- JSON Schema


def json_reasons(latest: Any, new: Any, mode: str) -> tuple[str, ...]:
    """Compare two JSON Schemas by Danube's rule: required fields, and the `type` of properties.

    It descends into the `properties` of properties. No other keyword is compared.
    """
    reasons: list[str] = []
    work = deque([(latest, new, "$")])
    while work:
        before, now, path = work.popleft()
        if not (isinstance(before, dict) and isinstance(now, dict)):
            continue
        reader, writer = _reader_first(before, now, mode)
        if "type" in reader and "type" in writer and _json_types(writer) - _json_types(reader):
            ours, theirs = _joined(_json_types(reader)), _joined(_json_types(writer))
            text = f"the type is {ours} for the reader, {theirs} for the writer"
            reasons.append(_line(path, text))
        reasons += _required_reasons(before, now, mode, path)
        known = _properties(before)
        for name, schema in _properties(now).items():
            if name in known:
                work.append((known[name], schema, _below(path, f".{name}")))
    return _lines(reasons)


def _required_reasons(before: Any, now: Any, mode: str, path: str) -> Iterator[str]:
    required, fields = now.get("required", ()), _properties(before)
    for name in required:
        if name not in before.get("required", ()):
            was = "optional" if name in fields else "not there"
            yield _line(_below(path, f".{name}"), f"the field is required, it was {was}")
    for name in before.get("required", ()) if mode == "backward" else ():
        if name not in required and name not in _properties(now):
            yield _line(_below(path, f".{name}"), "the required field was removed")


def _reader_first(latest: _Form, new: _Form, mode: str) -> tuple[_Form, _Form]:
    return (new, latest) if mode == "backward" else (latest, new)


def _properties(schema: dict[str, Any]) -> dict[str, Any]:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def _json_types(schema: dict[str, Any]) -> set[str]:
    """Return the values of `type`; `number` includes whole numbers."""
    found = schema.get("type", [])
    types = {found} if isinstance(found, str) else set(found)
    return types | {"integer"} if "number" in types else types


def _joined(types: set[str]) -> str:
    return " or ".join(sorted(types - {"integer"} if "number" in types else types))


# ------------------------------------------------------------------------------------------ Avro

_PROMOTIONS: Final[dict[str, frozenset[str]]] = {
    "int": frozenset(("long", "float", "double")),
    "long": frozenset(("float", "double")),
    "float": frozenset(("double",)),
    "string": frozenset(("bytes",)),
    "bytes": frozenset(("string",)),
}
"""The writer's type, and the other types that a reader may use for it."""
_NAMED: Final = frozenset(("record", "error", "enum", "fixed"))


class AvroForm(NamedTuple):
    """A schema as fastavro parses it: later uses of a named type are its full name."""

    schema: Any
    named: dict[str, Any]

    def resolved(self, schema: Any) -> Any:
        """Return the type of a name; a type without parts becomes an object, too."""
        if isinstance(schema, str):
            return self.named.get(schema) or {"type": schema}
        return schema


def avro_name(schema: Any) -> str:
    """Return the name of a type inside a union: its full name, or its kind."""
    if isinstance(schema, str):
        return schema
    return str(schema["name"] if schema["type"] in _NAMED else schema["type"])


def avro_reasons(latest: AvroForm, new: AvroForm, mode: str) -> tuple[str, ...]:
    """Compare two Avro schemas by the specification's schema resolution.

    Each pair of types is compared once, from a work list instead of by recursion: records may
    refer to each other in a cycle.
    """
    return _Resolution(*_reader_first(latest, new, mode)).run()


class _Resolution:
    def __init__(self, reader: AvroForm, writer: AvroForm) -> None:
        self._reader = reader
        self._writer = writer
        self._reasons: list[str] = []
        self._seen: set[tuple[str, str]] = set()
        self._work: deque[tuple[Any, Any, str]] = deque()

    def run(self) -> tuple[str, ...]:
        self._later(self._reader.schema, self._writer.schema, "$")
        while self._work:
            self._compare(*self._work.popleft())
        return _lines(self._reasons)

    def _add(self, path: str, text: str) -> None:
        self._reasons.append(_line(path, text))

    def _later(self, reader: Any, writer: Any, path: str) -> None:
        reader, writer = self._reader.resolved(reader), self._writer.resolved(writer)
        if "name" in reader and "name" in writer:
            key = (reader["name"], writer["name"])
            if key in self._seen:
                return
            self._seen.add(key)
        self._work.append((reader, writer, path))

    def _compare(self, reader: Any, writer: Any, path: str) -> None:
        if isinstance(writer, list):
            for branch in writer:
                self._later(reader, branch, path)
            return
        if isinstance(reader, list):
            self._choose(reader, writer, path)
            return
        problem = _mismatch(reader, writer)
        if problem:
            self._add(path, problem)
        elif reader["type"] == "array":
            self._later(reader["items"], writer["items"], _below(path, "[*]"))
        elif reader["type"] == "map":
            self._later(reader["values"], writer["values"], _below(path, "{*}"))
        elif reader["type"] in {"record", "error"}:
            self._compare_fields(reader, writer, path)
        elif reader["type"] == "enum" and "default" not in reader:
            known = set(reader["symbols"])
            missing = [symbol for symbol in writer["symbols"] if symbol not in known]
            if missing:
                shown = ", ".join(map(quoted, missing[:_SHOWN_MAX]))
                text = f"the reader's {_label(reader)} lacks symbols and a default: {shown}"
                self._add(path, text)

    def _choose(self, union: list[Any], writer: Any, path: str) -> None:
        """Compare with the union's matching branch: the same type first, then any."""
        while any(isinstance(branch, list) for branch in union):
            # fastavro accepts a union inside a union.
            union = [each for branch in union for each in _branches(branch)]
        names = {avro_name(branch): self._reader.resolved(branch) for branch in union}
        fitting = names.get(avro_name(writer))
        if fitting is None or _mismatch(fitting, writer):
            fitting = next((each for each in names.values() if not _mismatch(each, writer)), None)
        if fitting is None:
            shown = ", ".join(_label(each) for each in list(names.values())[:_SHOWN_MAX])
            self._add(path, f"no branch of the reader's union of {shown} reads {_label(writer)}")
        else:
            self._later(fitting, writer, path)

    def _compare_fields(self, reader: Any, writer: Any, path: str) -> None:
        written = {field["name"]: field for field in writer["fields"]}
        for field in reader["fields"]:
            names = (field["name"], *field.get("aliases", ()))
            source = next((written[name] for name in names if name in written), None)
            place = _below(path, f".{field['name']}")
            if source is not None:
                self._later(field["type"], source["type"], place)
            elif "default" not in field:
                self._add(place, "the writer has no such field and it has no default")


def _branches(schema: Any) -> list[Any]:
    return schema if isinstance(schema, list) else [schema]


def _label(schema: Any) -> str:
    kind = schema["type"]
    return quoted(f"{kind} {schema['name']}" if kind in _NAMED else kind)


def _mismatch(reader: Any, writer: Any) -> str:
    """Return why two non-union types do not match, empty if they do; parts are not compared."""
    ours, theirs = reader["type"], writer["type"]
    if ours != theirs and ours not in _PROMOTIONS.get(theirs, ()):
        return f"the reader's {_label(reader)} does not read {_label(writer)}"
    if ours in _NAMED and not _same_name(reader, writer):
        return (
            f"the reader's {_label(reader)} does not read {_label(writer)}:"
            " neither its name nor an alias"
        )
    if ours == "fixed" and reader["size"] != writer["size"]:
        return f"the reader's size {reader['size']} is not the writer's {writer['size']}"
    if reader.get("logicalType") == writer.get("logicalType") == "decimal":
        our, their = (
            f"decimal({each['precision']},{each.get('scale', 0)})" for each in (reader, writer)
        )
        return "" if our == their else f"the reader's {our} is not the writer's {their}"
    return ""


def _same_name(reader: Any, writer: Any) -> bool:
    """Tell whether two names are equal without the namespace, or the writer's is an alias."""
    space = reader["name"].rpartition(".")[0]
    aliases = {
        alias if "." in alias or not space else f"{space}.{alias}"
        for alias in reader.get("aliases", ())
    }
    short, written = (each["name"].rpartition(".")[2] for each in (reader, writer))
    return short == written or writer["name"] in aliases


# -------------------------------------------------------------------------------------- Protobuf

_KINDS: Final = (
    *("", "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string"),
    *("group", "message", "bytes", "uint32", "enum", "sfixed32", "sfixed64", "sint32", "sint64"),
)
"""Field types by their number in descriptors."""
_FAMILIES: Final = {
    **dict.fromkeys(("int32", "int64", "uint32", "uint64", "bool", "enum"), "varint"),
    **dict.fromkeys(("sint32", "sint64"), "zigzag varint"),
    **dict.fromkeys(("fixed32", "sfixed32"), "fixed32"),
    **dict.fromkeys(("fixed64", "sfixed64"), "fixed64"),
}
"""Types that are compatible with each other; every other type only with itself."""


class ProtobufForm(NamedTuple):
    """The message type of payloads, and all messages by their full names, as descriptors."""

    root: Any
    messages: dict[str, Any]

    @classmethod
    def of(cls, root: Any, files: Iterable[Any]) -> ProtobufForm:
        """Collect the messages of files, nested ones included."""
        found: dict[str, Any] = {}
        work = [each for file in files for each in file.message_types_by_name.values()]
        while work:
            each = work.pop(0)
            found[each.full_name] = each
            work[:0] = each.nested_types
        return cls(root, found)


def protobuf_reasons(latest: ProtobufForm, new: ProtobufForm, mode: str) -> tuple[str, ...]:
    """Compare two Protobuf definitions by numbers, types and labels; names do not count.

    The roots are compared, and each message in both definitions: a payload may contain any.
    """
    reader, writer = _reader_first(latest, new, mode)
    reasons: list[str] = []
    work = deque([(reader.root, writer.root)])
    shared = (name for name in writer.messages if name in reader.messages)
    work.extend((reader.messages[name], writer.messages[name]) for name in shared)
    seen: set[tuple[str, str]] = set()
    while work:
        ours, theirs = work.popleft()
        key = (ours.full_name, theirs.full_name)
        if key in seen:
            continue
        seen.add(key)
        for number, field in ours.fields_by_number.items():
            source = theirs.fields_by_number.get(number)
            place = f"{ours.full_name}.{field.name}"
            problem = "" if source is None else _field_problem(field, source)
            if problem:
                reasons.append(_line(place, f"number {number} {problem}"))
            elif source is not None and _kind(field) == _kind(source) == "message":
                work.append((field.message_type, source.message_type))
            if field.is_required and not (source is not None and source.is_required):
                reasons.append(_line(place, f"number {number} is required, the writer may omit it"))
    return _lines(reasons)


def _kind(field: Any) -> str:
    return _KINDS[field.type]


def _shown(field: Any) -> str:
    named = field.message_type or field.enum_type
    return f"{_kind(field)} {quoted(named.full_name)}" if named else _kind(field)


def _field_problem(reader: Any, writer: Any) -> str:
    """Return why a field cannot read the writer's of the same number, empty if it can."""
    ours, theirs = _kind(reader), _kind(writer)
    is_same = ours == theirs or (ours in _FAMILIES and _FAMILIES[ours] == _FAMILIES.get(theirs))
    if not is_same and not (ours == "bytes" and theirs in {"string", "message"}):
        return f"is {_shown(reader)}, the writer's '{quoted(writer.name)}' of {_shown(writer)}"
    if writer.is_packed and not reader.is_repeated:
        return "is one value, the writer packs many"
    return ""
