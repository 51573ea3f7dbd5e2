"""Requests at their limits, for every message of the protocol, from its descriptor.

A request is made of a good one in which one field is replaced, on the wire: values at the ends of
their range and beyond, texts that are none, wrong wire types, fields twice, nothing at all.
"""

from __future__ import annotations

import struct

from tests.fuzz.mutate import mutated
from tests.support.rpcs import RPCS

TOPIC, PARTS, SUBSCRIPTION, SUBJECT = "/default/fuzz", "/default/parts", "sub", "subject"
GOOD = {
    "topic_name": TOPIC,
    "topic": TOPIC,
    "base_name": PARTS,
    "subscription": SUBSCRIPTION,
    "subscription_name": SUBSCRIPTION,
    "producer_name": "producer",
    "consumer_name": "consumer",
    "subject": SUBJECT,
    "schema_subject": SUBJECT,
    "schema_type": "json_schema",
    "schema_definition": b'{"type":"object"}',
    "new_schema_definition": b'{"type":"object"}',
    "compatibility_mode": "backward",
    "validation_policy": "warn",
    "dispatch_strategy": 1,
    "subscription_type": 1,
    "payload": b"payload",
    "partitions": 2,
    "schema_id": 1,
    "version": 1,
    "use_latest": True,
    "max_unacked_messages": 10,
    "ack_timeout_ms": 1000,
    "max_redelivery_count": 5,
    "base_redelivery_delay_ms": 100,
    "max_redelivery_delay_ms": 1000,
    "dead_letter_topic": "/default/dead",
}
"""What a field has in a good request, by its name; numbers that are not here are 0."""

NUMBERS = (
    0,
    1,
    127,
    128,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
)
TEXTS = (
    b"",
    b"x" * 256,
    b"x" * 70_000,
    b"/default/" + b"x" * 300,
    b"/default/no-such",
    b"/nowhere/t",
    b"/default/fuzz-part-1",
    b"../../etc/passwd",
    b"a\0b\r\nc",
    "äöü日本\u202e".encode(),
    b"{} %s %n ${x}",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\xc0\x80",
)
BLOBS = (b"", b"\0", b"{" * 5_000, b'{"type":', b"\xff" * 1000, bytes(900_000))
_VARINT, _FIXED64, _LENGTH, _GROUP, _GROUP_END, _FIXED32 = range(6)


def varint(value):
    """Return a number of any size, lowest seven bits first."""
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def tag(number, wire):
    return varint(number << 3 | wire)


def delimited(number, data):
    """Return a field of text, bytes or a message."""
    return tag(number, _LENGTH) + varint(len(data)) + data


def good(message_class, **known):
    """Return a request that a broker with the usual topic could take; `known` has its ids."""
    name = "default" if message_class.DESCRIPTOR.name == "NamespaceRequest" else TOPIC
    return _filled(message_class(), {**GOOD, "name": name, **known})


def _filled(message, values):
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None:
            if field.message_type.GetOptions().map_entry:
                getattr(message, field.name)["a"] = "b"
            elif not _is_repeated(field):
                inner = getattr(message, field.name)
                _filled(inner, values)
                inner.SetInParent()
        elif field.name in values and not _is_repeated(field):
            setattr(message, field.name, values[field.name])
    return message


def _is_repeated(field):
    return field.is_repeated


def limits_of(message_class, **known):
    """Yield every request with one field at one of its limits."""
    whole = good(message_class, **known)
    yield whole.SerializeToString()
    yield b""
    yield from _varied(whole)
    yield from _malformed(whole)


def _varied(message):
    """Yield the bytes of a message with each of its fields, and of those in them, replaced."""
    for field in message.DESCRIPTOR.fields:
        rest = type(message)()
        rest.CopyFrom(message)
        rest.ClearField(field.name)
        base = rest.SerializeToString()
        yield base
        for raw in _values(field):
            yield base + raw
        for wire in (_VARINT, _FIXED64, _LENGTH, _GROUP, _FIXED32):
            yield base + tag(field.number, wire) + b"\x01\0\0\0\0\0\0\0"
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if field.message_type is not None and not _is_repeated(field) and not is_map:
            for inner in _varied(getattr(message, field.name)):
                yield base + delimited(field.number, inner)


def _values(field):
    """Yield a field with values at its limits, its tag included."""
    number = field.number
    if field.message_type is not None:
        entries = (b"", b"\xff\xff", delimited(1, b"k") + delimited(2, b"\xff"))
        yield from (delimited(number, entry) for entry in entries)
        pairs = (delimited(1, b"k%d" % n) + delimited(2, b"v" * 20) for n in range(3000))
        yield b"".join(delimited(number, pair) for pair in pairs)
    elif field.type in {field.TYPE_STRING, field.TYPE_BYTES}:
        is_text = field.type == field.TYPE_STRING
        for text in (*TEXTS, *(() if is_text else BLOBS)):
            yield delimited(number, text)
        yield delimited(number, b"a") + delimited(number, b"b")
        if _is_repeated(field):
            yield delimited(number, b"*?*" * 60) * 500
    else:
        for value in NUMBERS:
            yield tag(number, _VARINT) + varint(value)
        yield tag(number, _VARINT) + b"\xff" * 11


def _malformed(message):
    """Yield bytes that are no message, or one with more than its fields."""
    data = message.SerializeToString()
    for cut in range(1, len(data), max(1, len(data) // 12)):
        yield data[:cut]
    yield data + data
    yield data + delimited(1000, b"unknown") + delimited((1 << 29) - 1, b"unknown")
    yield data + delimited(1000, bytes(200_000))
    yield data + tag(0, _LENGTH) + b"\x01x"
    yield data + b"\x0f"
    yield data + tag(1001, _GROUP) * 300 + tag(1001, _GROUP_END) * 300
    yield data + struct.pack("<Q", 1 << 63) * 20
    yield b"\xff" * 100
    yield b"GET / HTTP/1.1\r\n\r\n"


def junk_of(random, message_class, count, **known):
    """Yield good requests after random changes."""
    seeds = [good(message_class, **known).SerializeToString(), message_class().SerializeToString()]
    for _ in range(count):
        yield mutated(random, seeds)


def under_new_names(requests):
    """Return requests that make something, each for a name that is not there yet."""
    return [
        data.replace(TOPIC.encode(), b"/default/%04d" % number).replace(
            PARTS.encode(), b"/default/p%04d" % number
        )
        for number, data in enumerate(requests)
    ]


LAST = ("UnloadTopic", "Unsubscribe", "DeleteTopic", "DeleteSchemaVersion", "DeleteNamespace")
"""Calls that take away what others are about."""


def rpcs_in_order():
    """Return every call of the protocol, those that take something away at the end."""
    names = {name: place for place, name in enumerate(LAST, 1)}
    return sorted(RPCS.values(), key=lambda rpc: (names.get(rpc.name, 0), rpc.path))
