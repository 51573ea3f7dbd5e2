"""What is around the payloads of SendMessage requests, remembered so that it is read once.

A producer says the same about itself in every message, and messages of one millisecond have all
but their payload in common. A request in the order that all encoders write is taken apart at its
lengths; its `msg_id` and what follows the payload are looked up by their bytes. Whatever is not in
that order, or not known, goes to the parser.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from frazil.schema import Message, check_message
from frazil.serve.danube.messages import ATTRIBUTES_MAX, parse_send, request_id_reply
from frazil.serve.danube.proto.danube_pb2 import MsgID, StreamMessage
from frazil.serve.danube.statuses import Refused

if TYPE_CHECKING:
    from frazil.schema import IngestLimits

__all__ = ["Envelope", "Envelopes"]

REMEMBERED_MAX: Final = 1024
"""So many producers' ids, and so many ends of messages, are remembered; then it begins anew."""
END_BYTES_MAX: Final = 512
"""A longer end of a message, with many attributes say, is hardly that of another one, too."""
_PAYLOAD: Final = 0x1A
_SHORT_MAX: Final = 0x7F
_PROBES: Final = tuple(
    (
        number,
        StreamMessage(
            request_id=number, msg_id=MsgID(producer_id=number), payload=bytes((number,))
        ).SerializeToString(),
    )
    for number in (1, 2)
)
"""First parts of two requests that differ in each field."""

_request_id = re.compile(rb"\x08[\x80-\xff]{0,8}[\x00-\x7f](?=\x12[\x00-\x7f])", re.DOTALL).match
"""A number below 2**63 in front of a short `msg_id`."""


class Envelope:
    """What a message has beside its payload and its producer's id, and the size of it if checked."""

    __slots__ = (
        *("attributes", "key", "limits", "producer_name"),
        *("schema_id", "schema_version", "size", "time_us"),
    )

    def __init__(self, message: Message) -> None:
        self.key = message.key
        self.attributes = message.attributes
        self.time_us = message.publish_time
        self.producer_name = message.producer_name
        self.schema_id = message.schema_id
        self.schema_version = message.schema_version
        self.limits: IngestLimits | None = None
        self.size = 0

    def check(self, message: Message, limits: IngestLimits, now_us: int) -> int:
        """Return the size of a message with this envelope, checked as `check_message` does.

        What was in order under the same limits still is: time only goes on.
        """
        payload_size = len(message.payload)
        if self.limits is limits:
            size = self.size + payload_size
            if size <= limits.message_bytes_max:
                return size
        size = check_message(message, limits, now_us)
        self.limits = limits
        self.size = size - payload_size
        return size


class Envelopes:
    """Reads SendMessage requests as `parse_send` does, with what it remembers of earlier ones."""

    def __init__(self, attributes_max: int = ATTRIBUTES_MAX) -> None:
        self._attributes_max = attributes_max
        self._ids: dict[bytes, int] = {}
        self._ends: dict[bytes, Envelope] = {}
        self._end_before = b""

    def read(self, data: bytes) -> tuple[bytes, int, Message, Envelope | None]:
        """Return the reply to a request, its producer's id, its message, and whose envelope it has.

        Raises:
            Refused: as `parse_send`.
        """
        found = _request_id(data)
        if found is None:
            return self._parsed(data)
        at = found.end()
        start = at + 2 + data[at + 1]
        field = data[at:start]
        # Tag, then the length in one to three bytes; shorter requests are the parser's to refuse.
        head = data[start : start + 4]
        if len(head) != 4 or head[0] != _PAYLOAD:
            return self._parsed(data)
        size = head[1]
        start += 2
        if size > _SHORT_MAX:
            size = size & _SHORT_MAX | head[2] << 7
            start += 1
            if head[2] > _SHORT_MAX:
                size = size & 0x3FFF | head[3] << 14
                start += 1
                if head[3] > _SHORT_MAX:
                    return self._parsed(data)
        stop = start + size
        end = data[stop:]
        identity, envelope = self._ids.get(field), self._ends.get(end)
        if identity is None or envelope is None or stop > len(data):
            self._learn(field, end)
            return self._parsed(data)
        attributes = envelope.attributes
        message = Message(
            data[start:stop],
            envelope.key,
            None if attributes is None else dict(attributes),
            envelope.time_us,
            envelope.producer_name,
            identity,
            envelope.schema_id,
            envelope.schema_version,
        )
        return data[:at], identity, message, envelope

    def _parsed(self, data: bytes) -> tuple[bytes, int, Message, None]:
        request_id, identity, message = parse_send(data, self._attributes_max)
        return request_id_reply(request_id), identity, message, None

    def _learn(self, field: bytes, end: bytes) -> None:
        """Remember these bytes, if they are not the first of their kind: most come once or often."""
        if end != self._end_before and end not in self._ends:
            self._end_before = end
            return
        if len(end) > END_BYTES_MAX:
            return
        try:
            identity = parse_send(field)[1]
            for number, probe in _PROBES:
                sent_id, sent_by, message = parse_send(probe + end, self._attributes_max)
                if (sent_id, sent_by, message.payload) != (number, number, bytes((number,))):
                    # It has fields of the first part again, which go over those.
                    return
        except Refused:
            return
        if len(self._ids) >= REMEMBERED_MAX:
            self._ids.clear()
        if len(self._ends) >= REMEMBERED_MAX:
            self._ends.clear()
        self._ids[field] = identity
        self._ends[end] = Envelope(message)
