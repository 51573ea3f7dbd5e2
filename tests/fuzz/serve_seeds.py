"""The seeds of the broker's targets: small valid inputs of a client."""

from __future__ import annotations

from hpack import Encoder

from frazil.serve.danube.proto.danube_pb2 import (
    AckRequest,
    ConsumerRequest,
    MsgID,
    NackRequest,
    ProducerRequest,
    SchemaReference,
    StreamMessage,
)
from frazil.serve.h2 import frames as f

REQUEST = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/t.T/Echo"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
)
BOTH = f.END_HEADERS | f.END_STREAM


def _fields(path, *extra):
    return [(name, path if name == ":path" else value) for name, value in REQUEST] + [*extra]


def _raw(kind, flags, sid_index, payload=b""):
    """Return a frame as the target cuts them out of junk."""
    return bytes((kind, flags, sid_index, len(payload))) + payload


def _h2():
    encoder = Encoder()
    greeting = f.PREFACE + f.settings({f.INITIAL_WINDOW_SIZE: 40})
    body = b"\0\0\0\0\x02hi"
    calls = b"".join(
        f.frame(f.HEADERS, f.END_HEADERS, sid, encoder.encode(_fields(path)))
        + f.frame(f.DATA, f.END_STREAM, sid, body)
        for sid, path in ((1, "/t.T/Echo"), (3, "/t.T/Echo"), (5, "/t.T/Feed"), (7, "/t.T/Hold"))
    )
    late = f.window_update(5, 900) + f.window_update(0, 900) + f.reset(7, 8) + f.ping(b"12345678")
    encoder = Encoder()
    block = encoder.encode(_fields("/t.T/Feed"))
    junk = [
        _raw(f.HEADERS, f.END_HEADERS, 1, block),
        _raw(f.DATA, f.END_STREAM, 1, body),
        _raw(f.HEADERS, 0, 2, encoder.encode(_fields("/t.T/Feed"))[:3]),
        _raw(f.CONTINUATION, f.END_HEADERS, 2, encoder.encode(_fields("/t.T/Feed"))[3:]),
        _raw(f.DATA, f.PADDED, 2, b"\x02" + body + b"\0\0"),
        _raw(f.HEADERS, BOTH, 2, b"\x00\x01x\x011"),
        _raw(f.SETTINGS, 0, 0, b"\0\4\0\0\0\x05\0\1\0\0\0\0"),
        _raw(f.WINDOW_UPDATE, 0, 1, b"\0\0\0\x10"),
        _raw(f.RST_STREAM, 0, 1, b"\0\0\0\x08"),
        _raw(f.PRIORITY, 0, 1, b"\0\0\0\0\x10"),
        _raw(f.PING, 0, 0, b"12345678"),
        _raw(f.GOAWAY, 0, 0, bytes(8)),
    ]
    return [greeting + calls + late, calls[:200] + late, b"".join(junk), b"".join(junk[:2])]


def _headers():
    encoder = Encoder()
    blocks = [encoder.encode(_fields("/t.T/Echo")) for _ in range(2)]
    encoder.header_table_size = 100
    blocks += [encoder.encode(_fields("/t.T/Echo", ("x", "1" * 20))), b"\x20\x3f\xe1\x1f", b"\xbe"]
    return [b"".join(bytes((len(block),)) + block for block in blocks), b"\x02\x82\xbe\x01\xbf"]


def _danube():
    record = MsgID(producer_id=7, topic_name="/default/t", broker_addr="http://h:1", topic_offset=9)
    sent = StreamMessage(
        request_id=300,
        msg_id=record,
        payload=b"payload",
        publish_time=1_700_000_000_000,
        producer_name="p",
        attributes={"a": "b"},
        schema_id=1,
        schema_version=2,
        routing_key="k",
    )
    requests = [
        sent,
        AckRequest(request_id=1, msg_id=record, subscription_name="s"),
        NackRequest(msg_id=record, subscription_name="s", delay_ms=5, reason="r"),
        ConsumerRequest(topic_name="/default/t", subscription="s", key_filters=["a*"]),
        ProducerRequest(
            producer_name="p", schema_ref=SchemaReference(subject="s", use_latest=True)
        ),
    ]
    return [request.SerializeToString() for request in requests] + [b"/default/t-part-3"]


def serve_seeds():
    """Return {target: [seed]}."""
    return {
        "h2": _h2(),
        "headers": _headers(),
        "grpc": [b"\0\0\0\0\x02hi", b"100m\nAAE=\nvalue\nBearer x\ngzip", b"100% \xc3\xa4"],
        "danube": _danube(),
        "clients": [
            b"GET /metrics HTTP/1.1\r\nHost: localhost:9040\r\nAuthorization: Bearer x",
            b"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.c2lnbmF0dXJl",
        ],
    }
