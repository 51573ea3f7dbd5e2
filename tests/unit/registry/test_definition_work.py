"""Reading a definition is bounded by the work and the room it takes, not by its size alone."""

from __future__ import annotations

import json
import tracemalloc

import pytest
from google.protobuf import descriptor_pb2

from frazil.errors import InvalidRequest
from frazil.registry import Registry, Work, limits
from frazil.registry.avro_defaults import Defaults
from frazil.registry.avro_nodes import Enum
from frazil.registry.definitions import parse_definition
from tests.unit.registry.counted_lines import lines_at_most

LONGEST = limits.TYPE_NAME_CHARACTERS_MAX


def avro(value):
    return parse_definition("avro", json.dumps(value).encode())


def json_schema(value):
    return parse_definition("json_schema", json.dumps(value).encode())


def proto(text):
    return parse_definition("protobuf", f'syntax = "proto3"; {text}'.encode())


def field(name, kind="int", **more):
    return {"name": name, "type": kind, **more}


def record(*fields, name="R", **more):
    return {"type": "record", "name": name, "fields": [*fields], **more}


# ------------------------------------------------------------------------------------- Avro

NAMED = {
    "a type": lambda name: record(name=name),
    "a type in a namespace": lambda name: record(name=name[1_000:], namespace=name[:999]),
    "an alias": lambda name: record(aliases=[name]),
    "an alias in a namespace": lambda name: record(namespace=name[:999], aliases=[name[1_000:]]),
    "a field": lambda name: record(field(name)),
    "an alias of a field": lambda name: record(field("f", aliases=[name])),
}


@pytest.mark.parametrize("what", NAMED)
def test_names_of_avro_have_a_longest(what):
    """Up to 1,024 characters with the namespace are read, one more is told."""
    assert avro(NAMED[what]("n" * LONGEST)).type == "avro"
    with pytest.raises(InvalidRequest, match="has more than 1024 characters"):
        avro(NAMED[what]("n" * (LONGEST + 1)))


TOGETHER = {
    "types": lambda count: record(
        *(field(f"f{n}", {"type": "fixed", "name": f"F{n}", "size": 1}) for n in range(count)),
        namespace="n" * 1_000,
    ),
    "aliases": lambda count: record(namespace="n" * 1_000, aliases=[f"a{n}" for n in range(count)]),
}


@pytest.mark.parametrize("what", TOGETHER)
def test_a_long_namespace_is_in_few_names(what):
    """All names together, each with its namespace, have a limit, whatever the text's size is."""
    assert avro(TOGETHER[what](5_000)).type == "avro"
    with pytest.raises(InvalidRequest, match="names of types and fields are too many or too long"):
        avro(TOGETHER[what](14_000))


def chosen(branches, values):
    """Return a list of values of which each fits the last branch of a union alone."""
    kinds = [record(field("a"), name=f"R{number}") for number in range(branches)]
    union = [*kinds, record(field("z"), name="Z")]
    default = [{"z": number} for number in range(values)]
    return record(field("f", {"type": "array", "items": union}, default=default), name="Outer")


def absent(fields, values):
    """Return a list of records of which no field is there, for all have defaults."""
    inner = record(*(field(f"f{number}", default=1) for number in range(fields)))
    default = [{"x": number} for number in range(values)]
    return record(field("f", {"type": "array", "items": inner}, default=default), name="Outer")


TEXT = "a" * 100_000


def sized(number):
    return {"type": "fixed", "name": f"F{number}", "size": len(TEXT)}


DEFAULTS = {
    "each value with each branch": (chosen(100, 100), chosen(300, 600)),
    "fields that are not there": (absent(100, 100), absent(1_000, 1_000)),
    "bytes": (
        record(field("f", ["bytes"], default=TEXT)),
        record(field("f", [*map(sized, range(5_000))], default="\u0100" + TEXT[1:])),
    ),
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_are_checked_up_to_a_limit(name):
    """A value that is looked at again and again is paid for, and too much is told in words."""
    fine, wrong = DEFAULTS[name]
    assert avro(fine).type == "avro"
    with pytest.raises(InvalidRequest, match="the defaults need too much work to check, use fewer"):
        avro(wrong)


class Walked(tuple):
    """Symbols that count how often somebody looks at all of them."""

    __slots__ = ()
    times = 0

    def __iter__(self):
        Walked.times += 1
        return super().__iter__()


def test_the_symbols_of_an_enum_are_walked_once_for_all_defaults():
    """Neither the next value nor one that fits nothing looks at all symbols again."""
    node = Enum("E", frozenset(), Walked(("a", "b")))
    defaults = Defaults(Work.of_definition())
    told = [defaults.problem(node, value) for value in ("a", "b", "c")]
    assert told == ["", "", "it is no symbol of enum E"]
    assert Walked.times == 1


def test_a_default_is_found_in_an_enum_by_its_hash():
    """20,000 values of an enum of 20,000 symbols do not take the square of that."""
    symbols = [f"s{number}" for number in range(20_000)]
    kind = {"type": "enum", "name": "E", "symbols": symbols}
    value = record(field("e", kind), field("f", {"type": "array", "items": "E"}, default=symbols))
    with lines_at_most(100 * len(symbols)):
        assert avro(value).type == "avro"


# --------------------------------------------------------------------------------- Protobuf


def test_names_of_protobuf_have_a_longest():
    """Messages and enums, with what they are in, have full names of 1,024 characters."""
    long = "n" * (LONGEST - 1)
    assert proto(f"message {long} {{ }}").type == "protobuf"
    for text in (
        f"message {long}n {{ }}",
        f"message M {{ message {long} {{ }} }}",
        f"message M {{ }} enum {long}n {{ A = 0; }}",
        f"package {long}; message M {{ }}",
    ):
        with pytest.raises(InvalidRequest, match="a full name of the Protobuf definition is too"):
            proto(text)


def packaged(*parts):
    return f"package {'p' * 1_000}; message M {{ }} " + " ".join(parts)


def full(count):
    """Return twenty messages with so many fields in all."""
    fields = " ".join(f"int32 f{number} = {number + 1};" for number in range(count // 20))
    return [f"message F{number} {{ {fields} }}" for number in range(20)]


MANY = {
    "messages": lambda count: packaged(*(f"message M{n} {{ }}" for n in range(count))),
    "enums": lambda count: packaged(*(f"enum E{n} {{ V{n} = 0; }}" for n in range(count // 2))),
    "values": lambda count: packaged(
        "enum E {", *(f"V{number} = {number};" for number in range(count)), "}"
    ),
    "fields": lambda count: packaged(*full(count)),
    "types of fields": lambda count: " ".join([f"message {'L' * 1_000} {{ }}", *full(count)]),
}


@pytest.mark.parametrize("what", MANY)
def test_a_long_package_has_few_parts(what):
    """The library writes full names out for each part, so all of them together have a limit."""
    assert proto(MANY[what](2_000)).type == "protobuf"
    with pytest.raises(
        InvalidRequest, match=r"too many messages, fields and values, or their full"
    ):
        proto(MANY[what](22_000))


def test_a_proto_text_has_a_number_of_words():
    """Words and signs are counted while they are found, comments and spaces are none."""
    assert proto("message M { }" + " ;" * 1_000 + " /* x */" * 100_000).type == "protobuf"
    with pytest.raises(InvalidRequest, match="too many words and signs"):
        proto("message M { }" + ";" * limits.PROTOBUF_WORDS_MAX)


@pytest.mark.parametrize("number", ["9" * 100_000, "0x" + "9" * 100_000])
def test_a_number_in_a_proto_text_is_no_page(number):
    """A hundred thousand digits are no number of a field, and are told as text."""
    with pytest.raises(InvalidRequest, match=r"the number of a field expected, found '(0x)?999"):
        proto(f"message M {{ int32 a = {number}; }}")


def test_empty_messages_of_a_set_are_counted_before_they_are_looked_at():
    """Half a million messages of two bytes each are refused before one is an object of Python."""
    messages = [descriptor_pb2.DescriptorProto()] * 200_000
    file = descriptor_pb2.FileDescriptorProto(name="f\x01", message_type=messages)
    data = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    with lines_at_most(20_000), pytest.raises(InvalidRequest, match="too many messages"):
        parse_definition("protobuf", data)


@pytest.mark.parametrize("last", ["", "M0 again = 1;"])
def test_a_chain_of_messages_longer_than_the_stack_is_read(last):
    """3,000 messages in each other, be it in a circle, are read, and so are payloads."""
    links = [f"message M{n} {{ M{n + 1} next = 1; int32 value = 2; }}" for n in range(3_000)]
    chain = proto(" ".join([*links, f"message M3000 {{ {last} }}"]))
    assert chain.refusal(b"\x0a\x04\x0a\x02\x10\x01") is None
    assert "at next.value: the field is of type int32" in chain.refusal(b"\x0a\x03\x12\x01a")


# ------------------------------------------------------------------------------ JSON Schema


def test_what_is_a_schema_only_for_a_reference_is_checked_as_one():
    """A pattern or a keyword in data that a reference leads to is refused when it is wrong."""
    assert json_schema({"examples": [{"pattern": "("}]}).type == "json_schema"
    for wrong, told in (
        ({"pattern": "("}, "is no regular expression"),
        ({"type": 1}, "one or some"),
    ):
        with pytest.raises(InvalidRequest, match=told):
            json_schema({"examples": [wrong], "$ref": "#/examples/0"})


def test_patterns_that_are_too_many_are_refused_before_one_is_read():
    """The first pattern, which is wrong, is not what is told."""
    patterns = ["(", *(f"x{{1000}}{number}" for number in range(5_000))]
    with pytest.raises(InvalidRequest, match="the patterns need too much work"):
        json_schema({"allOf": [{"pattern": each} for each in patterns]})


LONG = "n" * 100_000
NESTED = {
    "json_schema": {"properties": {LONG: {"properties": {f"f{n}": {} for n in range(2_000)}}}},
    "avro": record(
        field("n" * 1_000, record(*(field(f"f{n}", default=1) for n in range(20_000)), name="I"))
    ),
}


@pytest.mark.parametrize("kind", NESTED)
def test_a_long_name_is_not_copied_into_all_places_below_it(kind):
    """The room that a definition takes does not grow with the product of its names."""
    data = json.dumps(NESTED[kind]).encode()
    tracemalloc.start()
    try:
        parse_definition(kind, data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 25 * len(data) + (1 << 20)


# ------------------------------------------------------------------------------------ kept


def test_few_large_definitions_are_kept(monkeypatch):
    """Parsed definitions are kept up to the size of their texts, the oldest goes first."""
    registry = Registry()
    text = json.dumps({"description": "x" * 400_000}).encode()
    for number in range(3):
        registry.commit(registry.register(f"s{number}", "json_schema", text, now=1))
        topic = registry.configure_topic(
            f"/n/t{number}", f"s{number}", "enforce", check_payload=True
        )
        registry.commit(topic)
    parsed = []

    def parse(*arguments):
        parsed.append(arguments)
        return parse_definition(*arguments)

    monkeypatch.setattr("frazil.registry.verdicts.parse_definition", parse)
    monkeypatch.setattr(limits, "DEFINITIONS_CACHED_BYTES_MAX", 900_000)
    for number, count in ((0, 1), (1, 2), (0, 2), (1, 2), (2, 3), (1, 3), (0, 4), (2, 4), (1, 5)):
        work = Work()
        assert registry.check_message(
            f"/n/t{number}", b"1", schema_id=number + 1, work=work
        ).is_accepted
        assert len(parsed) == count, number
    monkeypatch.setattr(limits, "DEFINITIONS_CACHED_BYTES_MAX", 1)
    assert registry.check_message("/n/t0", b"1", schema_id=1).is_accepted
