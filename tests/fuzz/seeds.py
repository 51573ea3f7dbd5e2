"""Write the committed seeds of the fuzz targets: small valid inputs to start from.

`python -m tests.fuzz.seeds` writes them below tests/fuzz/corpus, a file for each target with one
input a line in hexadecimal. Lines that are there already stay: inputs that once failed are among
them.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa

from frazil.log import (
    STATE_FREED,
    STATE_HOLD,
    STATE_PRODUCER,
    FrameIndex,
    encode_checkpoint,
    footer_of,
)
from frazil.log import format as fmt
from frazil.model import TopicSpec
from frazil.schema import Message, join_packed, pack_messages
from tests.fuzz.run import CORPUS, corpus
from tests.fuzz.serve_seeds import serve_seeds
from tests.fuzz.targets import ENCODER, SCHEMA, _frame, _state

pack = msgspec.msgpack.encode
OBJECTS = Path(__file__).resolve().parents[1] / "data" / "objects-1"


def _control(kind, payload, topic=1):
    return bytes([kind - 1, len(payload), topic]) + payload


def seeds():
    """Return {target: [seed]}."""
    index = FrameIndex()
    index.append(0, 128, 96, 5, 2)
    _blobs, footer = footer_of(
        {1: index},
        segment=1,
        generation=1,
        body_end=128,
        frames=1,
        lsn_last=1,
        time_us=2,
        sha256=bytes(32),
    )
    spec = TopicSpec(id=3, name="/default/new", kind="table", created_us=1)
    row = {"id": 1, "name": "a", "score": 0.5, "tags": ["x"], "on": True}
    controls = [
        _control(fmt.KIND_TOPIC, pack(spec), 3),
        _control(fmt.KIND_GAP, pack((9, "gap", "why"))),
        _control(fmt.KIND_MARKER, pack([(1, 50)]), 0),
        _control(fmt.KIND_STATE, pack((STATE_HOLD, "lake", 3))),
        _control(fmt.KIND_STATE, pack((STATE_PRODUCER, "p", (1, 0)))),
        _control(fmt.KIND_STATE, pack((STATE_FREED, "", 2)), 0),
        _control(fmt.KIND_CURSOR, pack([(3, "r", b"\x01")])),
        _control(
            fmt.KIND_CURSOR, pack([(3, "r", pack((2, [3, 1], [0, 2], []))), (1, "r", [2, 4])])
        ),
        _control(fmt.KIND_CURSOR, pack([(2, "r", [5, 2]), (4, "r")])),
    ]
    batch = pa.RecordBatch.from_pylist([row], schema=SCHEMA)
    frames = [
        _frame(fmt.KIND_CHECKPOINT, encode_checkpoint(_state(), lsn=0), lsn=0),
        _frame(fmt.KIND_ROWS, fmt.plain_payload([b"a"]), topic=1, count=1, flags=fmt.FLAG_PLAIN),
        _frame(fmt.KIND_MARKER, b"", lsn=1, synced=1),
    ]
    packed = join_packed([ENCODER.encode(row)[1]])
    return {
        "frames": [b"".join(frames), b"\x01\x04\x01\x01\x01\x00\x00\x00abcd" * 3],
        "state": [encode_checkpoint(_state(), lsn=7), footer, b"".join(controls), *controls],
        "payloads": [
            b"\x01" + pack_messages([Message(payload=b"x", key="k", attributes={"a": "b"})]),
            b"\x01" + packed,
            b"\x02" + fmt.plain_payload([b"one", b"two"]),
            b"\x01" + batch.serialize().to_pybytes(),
            pack_messages([Message(payload=b"x")]),
            packed,
        ],
        "texts": [
            b'{"id": 1, "name": "a", "score": 1.5e3, "day": "2024-02-29", "tags": ["x", null]}',
            b'{"at": "2024-01-01T00:00:00Z", "price": "12.34", "blob": "AAE=", "on": false}',
            b'1,a,0.5,2024-02-29,2024-01-01T00:00:00Z,1.20,["x"],AAE=,true',
            b"log:\n  segment_bytes_max: 128MB\n  sync: commit\n",
            b"5m 30s",
            b"1.5GiB",
            b"/default/a-b",
            b"LOG__SYNC=none",
            b"list<struct<a: long, b: decimal(10,2)>> not null",
        ],
        "directory": [
            b"\x80" + b"".join(frames)[1:],
            b"\x05\x00\x00\x00\x00\x00\x00\x00\x01\x08\x01\x01\x01\x00\x00\x00\0\0\0\0\1\0\0\0" * 2,
        ],
        "objects": [path.read_bytes() for path in sorted(OBJECTS.iterdir())],
    }


def main():
    CORPUS.mkdir(exist_ok=True)
    for target, inputs in {**seeds(), **serve_seeds()}.items():
        lines = dict.fromkeys(data.hex() for data in (*corpus(target), *inputs))
        (CORPUS / f"{target}.hex").write_text("\n".join(lines) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
