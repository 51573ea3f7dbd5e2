"""The messages of the hot paths: SendMessage, delivered messages, acks and nacks.

Protobuf's C core parses requests; no parser in Python is faster. Deliveries are encoded by hand, in
half the time of the C core, because most of a message is constant: `DeliveryEncoder` caches the
bytes of the topic, of the address and of each producer. The part without the subscription is built
once per record for all subscriptions; `DeliveryEncoder.run` adds the subscription.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, Protocol, Self, TypeVar

from google.protobuf.message import DecodeError

from frazil.schema import Message
from frazil.serve.danube.proto.danube_pb2 import AckRequest, NackRequest, StreamMessage
from frazil.serve.danube.statuses import Refused, status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from frazil.subscribe import Record

__all__ = [
    "DeliveryEncoder",
    "parse_ack",
    "parse_nack",
    "parse_request",
    "parse_send",
    "request_id_reply",
    "subscription_field",
]

TIME_UNIT_US: Final = 1000
KNOWN_MAX: Final = 1024
"""The limit of producers, and of high parts of numbers, that an encoder caches."""

_frame_head = Struct(">BI").pack

# Tags: the number of a field, shifted by three, and how its value is written (0 number, 2 bytes).
_MSG_ID, _PAYLOAD, _PUBLISH_TIME = b"\x12", b"\x1a", b"\x20"
_PRODUCER_NAME, _SUBSCRIPTION_NAME, _ATTRIBUTES = b"\x2a", b"\x32", b"\x3a"
_SCHEMA_ID, _SCHEMA_VERSION, _ROUTING_KEY = b"\x40", b"\x48", b"\x52"
_ID_PRODUCER, _ID_TOPIC, _ID_BROKER, _ID_OFFSET = b"\x08", b"\x12", b"\x1a", b"\x28"
_REQUEST_ID = b"\x08"

_LOW_BITS: Final = 14
_LOW_COUNT: Final = 1 << _LOW_BITS
_LOW_MASK: Final = _LOW_COUNT - 1
_SHORT: Final = (
    *(bytes((value,)) for value in range(128)),
    *(bytes((value & 127 | 128, value >> 7)) for value in range(128, _LOW_COUNT)),
)
"""Numbers of one or two bytes."""
_LOW: Final = tuple(bytes((value & 127 | 128, value >> 7 | 128)) for value in range(_LOW_COUNT))
"""The first two bytes of longer numbers, by their low bits."""


class _Parsed(Protocol):
    @classmethod
    def FromString(cls, data: bytes, /) -> Self: ...  # noqa: N802


_Request = TypeVar("_Request", bound=_Parsed)


def parse_request(kind: type[_Request], data: bytes) -> _Request:
    """Return the request of type `kind`.

    Raises:
        Refused: if the bytes are no such message, or a text in it is not UTF-8.
    """
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise Refused(status("malformed_request", kind=kind.__name__)) from error


def parse_send(data: bytes) -> tuple[int, int, Message]:
    """Return a SendMessage request as request id, producer id and the message to publish.

    A publish time of zero means that the wire has none: the time of arrival counts. The topic's
    limits of a message are not checked here.

    Raises:
        Refused: if the bytes are not such a message, or it has no `msg_id`.
    """
    try:
        sent = StreamMessage.FromString(data)
    except DecodeError as error:
        raise Refused(status("malformed_request", kind="StreamMessage")) from error
    has = sent.HasField
    if not has("msg_id"):
        raise Refused(status("message_id_missing"))
    producer_id = sent.msg_id.producer_id
    attributes = sent.attributes
    message = Message(
        sent.payload,
        sent.routing_key if has("routing_key") else None,
        {name: attributes[name] for name in attributes} if attributes else None,
        sent.publish_time * TIME_UNIT_US or None,
        sent.producer_name or None,
        producer_id,
        sent.schema_id if has("schema_id") else None,
        sent.schema_version if has("schema_version") else None,
    )
    return sent.request_id, producer_id, message


def parse_ack(data: bytes) -> tuple[int, str, str, int]:
    """Return an Ack request as request id, topic, subscription and offset.

    Raises:
        Refused: if the bytes are not such a message, or it has no `msg_id`.
    """
    request = parse_request(AckRequest, data)
    if not request.HasField("msg_id"):
        raise Refused(status("message_id_missing"))
    record = request.msg_id
    return request.request_id, record.topic_name, request.subscription_name, record.topic_offset


def parse_nack(data: bytes) -> tuple[int, str, str, int, int, str]:
    """Return a Nack request as an Ack's four parts, then the delay in milliseconds and the reason.

    Raises:
        Refused: if the bytes are not such a message, or it has no `msg_id`.
    """
    request = parse_request(NackRequest, data)
    if not request.HasField("msg_id"):
        raise Refused(status("message_id_missing"))
    record = request.msg_id
    return (
        request.request_id,
        record.topic_name,
        request.subscription_name,
        record.topic_offset,
        request.delay_ms,
        request.reason,
    )


def request_id_reply(request_id: int) -> bytes:
    """Return the reply to SendMessage, Ack and Nack, which has only a request id."""
    if request_id < _LOW_COUNT:
        return _REQUEST_ID + _SHORT[request_id] if request_id else b""
    return _REQUEST_ID + _LOW[request_id & _LOW_MASK] + _number(request_id >> _LOW_BITS)


class DeliveryEncoder:
    """Builds the messages that the consumers of one topic receive.

    `topic_name` must be the name under which clients found the topic: they send it back with
    their acks. `broker_addr` is the address that they connected to.
    """

    def __init__(self, *, topic_name: str, broker_addr: str) -> None:
        self._place = _text(_ID_TOPIC, topic_name) + _text(_ID_BROKER, broker_addr)
        self._producers: dict[tuple[int | None, str | None, int], tuple[bytes, bytes]] = {}
        self._highs: dict[int, bytes] = {}
        self._names: dict[str, bytes] = {}

    def body(self, offset: int, message: Message) -> bytes:
        """Return the message at `offset` as all subscriptions have it; `run` completes it.

        A topic without storage has the offset 0 for every record.
        """
        highs = self._highs
        if offset >= _LOW_COUNT:
            # Neighbours in the log, and in time, have all but their low bits in common.
            high = highs.get(offset >> _LOW_BITS) or self._learn_high(offset >> _LOW_BITS)
            number = _LOW[offset & _LOW_MASK] + high
        else:
            number = _SHORT[offset] if offset else b""
        producer = (message.producer_id, message.producer_name, len(number))
        opening, producer_name = self._producers.get(producer) or self._learn(producer)
        parts = [opening, number]
        payload = message.payload
        if payload:
            size = len(payload)
            parts += (_PAYLOAD, _SHORT[size] if size < _LOW_COUNT else _number(size), payload)
        time_ms = (message.publish_time or 0) // TIME_UNIT_US
        if time_ms >= _LOW_COUNT:
            high = highs.get(time_ms >> _LOW_BITS) or self._learn_high(time_ms >> _LOW_BITS)
            parts += (_PUBLISH_TIME, _LOW[time_ms & _LOW_MASK], high, producer_name)
        elif time_ms:
            parts += (_PUBLISH_TIME, _SHORT[time_ms], producer_name)
        else:
            parts.append(producer_name)
        if message.attributes:
            self._add_entries(parts, message.attributes)
        if message.schema_id is not None:
            parts += (_SCHEMA_ID, _number(message.schema_id))
        if message.schema_version is not None:
            parts += (_SCHEMA_VERSION, _number(message.schema_version))
        if message.key is not None:
            key = message.key.encode()
            parts += (_ROUTING_KEY, _number(len(key)), key)
        return b"".join(parts)

    def _add_entries(self, parts: list[bytes], attributes: Mapping[str, str]) -> None:
        names = self._names
        for name, value in attributes.items():
            head = names.get(name) or self._learn_name(name)
            data = value.encode()
            size = len(data)
            number = _SHORT[size] if size < _LOW_COUNT else _number(size)
            parts += (_ATTRIBUTES, _number(len(head) + len(number) + size), head, number, data)

    def run(self, records: Sequence[Record], subscription: bytes) -> bytes:
        """Return records as messages of a stream, each ending with the subscription's field.

        The bytes before that field are cached in the record for the next subscription. The length
        prefix counts the field: a field of another size needs a new encoding.
        """
        size = len(subscription)
        pieces = [record.body for record in records if record.body_kind == size]
        if len(pieces) < len(records):
            pieces = []
            for record in records:
                if record.body_kind != size:
                    body = self.body(record.offset, record.value)
                    record.body = _frame_head(0, size + len(body)) + body
                    record.body_kind = size
                pieces.append(record.body)
        # The field follows each of them.
        pieces.append(b"")
        return subscription.join(pieces)

    def _learn(self, producer: tuple[int | None, str | None, int]) -> tuple[bytes, bytes]:
        """Return the bytes before an offset of the given size, and the producer's name."""
        if len(self._producers) >= KNOWN_MAX:
            self._producers.clear()
        producer_id, producer_name, number_bytes = producer
        identity = _ID_PRODUCER + _number(producer_id) if producer_id else b""
        identity += self._place + (_ID_OFFSET if number_bytes else b"")
        opening = _MSG_ID + _number(len(identity) + number_bytes) + identity
        learnt = self._producers[producer] = (opening, _text(_PRODUCER_NAME, producer_name or ""))
        return learnt

    def _learn_name(self, name: str) -> bytes:
        """Return the bytes of an attribute before the size of its value."""
        if len(self._names) >= KNOWN_MAX:
            self._names.clear()
        data = name.encode()
        head = self._names[name] = b"\x0a%b%b\x12" % (_number(len(data)), data)
        return head

    def _learn_high(self, value: int) -> bytes:
        if len(self._highs) >= KNOWN_MAX:
            self._highs.clear()
        high = self._highs[value] = _number(value)
        return high


def subscription_field(subscription: str) -> bytes:
    """Return the field that `DeliveryEncoder.run` adds for the consumers of this subscription."""
    return _text(_SUBSCRIPTION_NAME, subscription)


def _number(value: int) -> bytes:
    """Return `value` in groups of seven bits, lowest first; all but the last have the top bit."""
    if value < _LOW_COUNT:
        assert value >= 0
        return _SHORT[value]
    groups = bytearray()
    while value > 127:
        groups.append(value & 127 | 128)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def _text(tag: bytes, text: str) -> bytes:
    """Return a field of text; an empty one is not written."""
    data = text.encode()
    return tag + _number(len(data)) + data if data else b""
