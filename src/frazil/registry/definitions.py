"""Definitions of Avro, JSON Schema and Protobuf, parsed and applied by their libraries.

Only the worker process imports this module: a hostile definition or payload can make a library
slow, large or crash, and limits apply to that process.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import re
from collections.abc import Callable
from typing import Any, Final, NoReturn, TypeAlias

import fastavro
import fastavro.schema
import grpc_tools
import jsonschema_rs
from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory
from google.protobuf.unknown_fields import UnknownFieldSet
from grpc_tools import protoc

from frazil.registry import compatibility
from frazil.registry.kinds import INTEGER_MAX, INTEGER_MIN, quoted

__all__ = ["Definition", "Invalid", "compare", "read_definition"]

BACKTRACKS_MAX: Final = 100_000
"""The timeout of a regular expression in a JSON Schema, on one text."""
MESSAGE_CHARACTERS_MAX: Final = 300
_INTEGER_CHARACTERS_MAX: Final = 21
_MISSING_MAX: Final = 8
"""The limit of required Protobuf fields named in one reason."""


class Invalid(Exception):
    """Why a definition or a payload's JSON is invalid; the payload itself is never quoted."""


def read_definition(kind: str, data: bytes) -> Definition:
    """Parse a definition of one of the three languages.

    Raises:
        Invalid: if it is invalid.
    """
    readers: dict[str, Callable[[bytes], Definition]] = {
        "avro": AvroDefinition,
        "json_schema": JsonDefinition,
        "protobuf": ProtobufDefinition,
    }
    return readers[kind](data)


def compare(latest: Definition, new: Definition, mode: str) -> tuple[str, ...]:
    """Return why `new` may not follow `latest` in a mode; both are of one type."""
    rule: Any = {
        JsonDefinition: compatibility.json_reasons,
        AvroDefinition: compatibility.avro_reasons,
        ProtobufDefinition: compatibility.protobuf_reasons,
    }[type(new)]
    modes = ("backward", "forward") if mode == "full" else (mode,)
    return tuple(f"{each}: {why}" for each in modes for why in rule(latest.form, new.form, each))


def _shown(text: object) -> str:
    """Return the message of a library as one line."""
    return quoted(" ".join(str(text).split()), most=MESSAGE_CHARACTERS_MAX)


def _fingerprint(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


# ------------------------------------------------------------------------------------- JSON text


def _refuse_constant(text: str) -> NoReturn:
    raise Invalid(f"{text} is not a JSON number")


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Invalid("a name occurs twice in one JSON object")
    return found


def _integer(text: str) -> int:
    # A number with more characters has more than 64 bits.
    value = int(text[:_INTEGER_CHARACTERS_MAX])
    if not INTEGER_MIN <= value <= INTEGER_MAX:
        raise Invalid("a whole number has more than 64 bits")
    return value


def _number(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise Invalid("a number is beyond the floating-point range")
    return value


_JSON: Final = json.JSONDecoder(
    object_pairs_hook=_unique_names,
    parse_constant=_refuse_constant,
    parse_int=_integer,
    parse_float=_number,
)
"""Readers disagree on such JSON: a duplicate name keeps the first or the last value; a number
beyond 64 bits is truncated, rounded or refused."""


def _read_json(data: bytes) -> Any:
    if data.startswith(b"\xef\xbb\xbf"):
        raise Invalid("not JSON: it starts with a byte order mark")
    try:
        return _JSON.decode(data.decode())
    except UnicodeDecodeError as error:
        raise Invalid(f"not JSON: invalid UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise Invalid(f"not JSON: {error.msg} at character {error.pos}") from error
    except RecursionError as error:
        raise Invalid("not JSON that can be read: nested too deep") from error


def _read_json_definition(data: bytes) -> tuple[Any, str, str]:
    """Return the value, its compact text with sorted names, and the fingerprint of that text."""
    value = _read_json(data)
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    try:
        return value, text, _fingerprint(text.encode())
    except UnicodeEncodeError as error:
        raise Invalid("not JSON that every reader takes: half of a character") from error


# ----------------------------------------------------------------------------------- JSON Schema

_JSON_STRING: Final = re.compile(r'"([^"\\]+)"')
_NAMING: Final = {
    "additionalProperties": "a property that the schema does not allow",
    "unevaluatedProperties": "a property that the schema does not allow",
    "unevaluatedItems": "an item that the schema does not allow",
    "additionalItems": "an item that the schema does not allow",
    "propertyNames": "a property's name that the schema does not allow",
}
"""Keywords whose library message contains parts of the payload."""


class JsonDefinition:
    """A JSON Schema of draft-04 to 2020-12. References to other documents are never fetched."""

    def __init__(self, data: bytes) -> None:
        self.form, text, self.fingerprint = _read_json_definition(data)
        self._names = frozenset(_JSON_STRING.findall(text))
        try:
            self._validator = jsonschema_rs.validator_for(
                self.form,
                mask="the value",
                offline=True,
                pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=BACKTRACKS_MAX),
            )
        except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
            path = self._place(getattr(error, "instance_path", ()))
            problem = _shown(getattr(error, "message", error))
            raise Invalid(f"invalid JSON Schema at {quoted(path)}: {problem}") from error
        except ValueError as error:
            raise Invalid(f"invalid JSON Schema: {_shown(error)}") from error

    def refusal(self, payload: bytes) -> str | None:
        try:
            value = _read_json(payload)
        except Invalid as error:
            return str(error)
        try:
            if self._validator.is_valid(value):
                return None
            found = next(iter(self._validator.iter_errors(value)))
        except ValueError:
            return "not JSON that every reader takes: nested too deep, or half of a character"
        return f"at {quoted(self._place(found.instance_path))}: {_json_problem(found)}"

    def _place(self, path: Any) -> str:
        """Return the path in a value; names that are not in the definition are omitted."""
        steps = (
            f"[{step}]" if isinstance(step, int) else f".{step}" if step in self._names else ".{*}"
            for step in path
        )
        return "$" + "".join(steps)


def _json_problem(found: Any) -> str:
    for keyword in found.schema_path[-2:]:
        if keyword in _NAMING:
            return _NAMING[keyword]
    # A schema that is `false` has no keyword to name.
    text = found.message.replace("False schema does not allow the value", "nothing is allowed here")
    return _shown(text)


# ------------------------------------------------------------------------------------------ Avro

_AVRO_MARKS: Final = ("__fastavro_parsed", "__named_schemas")
"""The library would treat a definition with these names as already parsed."""


_AVRO_ERRORS: Final = (ValueError, LookupError, TypeError, AttributeError)
_AVRO_PROBLEMS: Final[dict[type[Exception], str]] = {
    EOFError: "the payload ends in the middle of it",
    UnicodeDecodeError: "a string is not valid UTF-8",
    IndexError: "a branch, symbol or number that it does not have",
    RecursionError: "nested too deep",
}


class AvroDefinition:
    """An Avro schema; a payload is one value in the binary encoding."""

    def __init__(self, data: bytes) -> None:
        value, text, self.fingerprint = _read_json_definition(data)
        if any(mark in text for mark in _AVRO_MARKS):
            raise Invalid("invalid Avro schema: a name belongs to the library")
        named: dict[str, Any] = {}
        try:
            # With separate names for each call; by default all calls would share them.
            self._schema = fastavro.parse_schema(value, named_schemas=named)
        except (*_AVRO_ERRORS, RecursionError, fastavro.schema.SchemaParseException) as error:
            # For a missing part the error is a KeyError of its name, and its class is the reason.
            problem = _shown(f"{type(error).__name__}: {error}")
            raise Invalid(f"invalid Avro schema: {problem}") from error
        for name, each in named.items():
            fields = [field["name"] for field in each.get("fields", ())]
            if len(set(fields)) != len(fields):
                raise Invalid(f"invalid Avro schema: {quoted(name)} has a field twice")
        self.form = compatibility.AvroForm(self._schema, named)

    def refusal(self, payload: bytes) -> str | None:
        source = io.BytesIO(payload)
        try:
            fastavro.schemaless_reader(source, self._schema, None)
        except (EOFError, RecursionError, ArithmeticError, *_AVRO_ERRORS) as error:
            problem = _AVRO_PROBLEMS.get(type(error), "its bytes are no such value")
            return f"not a value of the Avro schema: {problem}"
        left = len(payload) - source.tell()
        return f"not a value of the Avro schema: {left} bytes are left after it" if left else None


# -------------------------------------------------------------------------------------- Protobuf

_TEXT_CONTROLS: Final = frozenset("\t\n\r\f\v")
_WIRE_TYPES: Final = {
    **dict.fromkeys((1, 6, 16), 1),  # double, fixed64, sfixed64
    **dict.fromkeys((9, 11, 12), 2),  # string, message, bytes
    10: 3,  # group
    **dict.fromkeys((2, 7, 15), 5),  # float, fixed32, sfixed32
}
"""The wire type of a field's type; all others are varints, 0."""
_LENGTH_DELIMITED: Final = 2


class ProtobufDefinition:
    """A `.proto` text or a FileDescriptorSet; a payload is the last file's first message."""

    def __init__(self, data: bytes) -> None:
        files = _read_files(data)
        self.fingerprint = _fingerprint(files.SerializeToString(deterministic=True))
        pool = descriptor_pool.DescriptorPool()
        try:
            for file in files.file:
                for each in file.message_type:
                    _as_messages(each)
                added = pool.AddSerializedFile(file.SerializeToString())
        except (TypeError, ValueError) as error:
            text = str(error).partition("descriptor pool: ")[2] or str(error)
            raise Invalid(f"invalid Protobuf definition: {_shown(text)}") from error
        if not files.file or not files.file[-1].message_type:
            raise Invalid("the Protobuf definition has no message")
        root = added.message_types_by_name[files.file[-1].message_type[0].name]
        self.form = compatibility.ProtobufForm.of(
            root, (pool.FindFileByName(f.name) for f in files.file)
        )
        self._class = message_factory.GetMessageClass(root)

    def refusal(self, payload: bytes) -> str | None:
        name = self._class.DESCRIPTOR.full_name
        try:
            found = self._class.FromString(payload)
        except message.DecodeError:
            return f"not a message {name}: its bytes are no such message"
        wrong = _wrong_field(found, "")
        if wrong is not None:
            return f"not a message {name}: {_shown(wrong)}"
        if not found.IsInitialized():
            missing = ", ".join(found.FindInitializationErrors()[:_MISSING_MAX])
            return f"not a message {name}: required fields are missing: {_shown(missing)}"
        return None


def _read_files(data: bytes) -> Any:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = None
    if text is not None and all(each.isprintable() or each in _TEXT_CONTROLS for each in text):
        data = _compile(data)
    try:
        return descriptor_pb2.FileDescriptorSet.FromString(data)
    except message.DecodeError as error:
        raise Invalid(
            "the Protobuf definition is neither .proto text nor a serialized FileDescriptorSet"
        ) from error


def _compile(text: bytes) -> bytes:
    """Return the serialized FileDescriptorSet from protoc for a text."""
    source, output, errors = (os.memfd_create(name) for name in ("source", "output", "errors"))
    stderr = os.dup(2)
    included = os.path.join(os.path.dirname(grpc_tools.__file__), "_proto")
    try:
        os.write(source, text)
        os.dup2(errors, 2)
        code = protoc.main(
            (
                "protoc",
                # The name of the file and of the folder of google/protobuf/*.proto: no other
                # file can be imported.
                f"-Ischema.proto=/proc/self/fd/{source}",
                f"-I{included}",
                "--include_imports",
                f"--descriptor_set_out=/proc/self/fd/{output}",
                "schema.proto",
            )
        )
        if code:
            shown = os.pread(errors, 4096, 0).decode(errors="replace")
            lines = shown.replace(f"/proc/self/fd/{source}:", "line ").splitlines()
            shown = "; ".join(line for line in lines if line.startswith("line ")) or shown
            raise Invalid(f"invalid Protobuf definition: {_shown(shown)}")
        return os.pread(output, os.fstat(output).st_size, 0)
    finally:
        os.dup2(stderr, 2)
        for descriptor in (source, output, errors, stderr):
            os.close(descriptor)


def _as_messages(message_type: Any) -> None:
    """Turn maps into lists of their entries, so that wrong bytes in an entry are detected."""
    for nested in message_type.nested_type:
        nested.options.ClearField("map_entry")
        _as_messages(nested)


def _wrong_field(found: Any, place: str) -> str | None:
    """Return the first field with bytes of another type; the library skips such fields."""
    fields = found.DESCRIPTOR.fields_by_number
    for unknown in UnknownFieldSet(found):
        field = fields.get(unknown.field_number)
        if field is None:
            continue
        own = _WIRE_TYPES.get(field.type, 0)
        # Both forms of a list are valid; the remaining values are unknown to a closed enum.
        is_packed = field.is_repeated and unknown.wire_type == _LENGTH_DELIMITED
        if unknown.wire_type != own and not (is_packed and own not in {2, 3}):
            return f"at {place}{field.name}: its bytes are not of the field's type"
    for field, value in found.ListFields():
        if field.message_type is not None:
            for each in value if field.is_repeated else (value,):
                wrong = _wrong_field(each, f"{place}{field.name}.")
                if wrong is not None:
                    return wrong
    return None


Definition: TypeAlias = JsonDefinition | AvroDefinition | ProtobufDefinition
"""A parsed definition.

`fingerprint` is equal for definitions that differ only in spaces and the order of names, `form` is
the input of `compatibility`, and `refusal` returns why a payload does not fit, without quoting it,
None if it fits.
"""
