"""Write the golden directory of log format 1: every frame kind, both codecs, pinned to the byte.

`python scripts/make_golden.py DIRECTORY` writes it; tests/unit/test_golden.py compares. A change of
these bytes is a change of the format: it needs a new version, a new directory, and a reader for
the old one. What Arrow itself encodes is kept in `payloads.json` beside the directory, since
another version of Arrow may lay the same batch out differently.
"""

from __future__ import annotations

import argparse
import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from frazil.config import Settings
from frazil.log import (
    PLAIN,
    STATE_FIRST_FREE,
    STATE_HOLD,
    Control,
    CursorState,
    Dropped,
    Journal,
    Payload,
    Sender,
    Untracked,
    acked,
    attempted,
    encode_changes,
    placed,
)
from frazil.log import format as fmt
from frazil.model import Ack, TopicSpec
from frazil.schema import Message, RowEncoder, declare_schema, join_packed, pack_messages
from tests.support import SimulatedClock, SimulatedFileSystem
from tests.support.log_limits import set_log_limits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frazil.log import Change, Codec
    from frazil.log.codec import Entry, Waiter

DIRECTORY = "/golden/journal"
CURSORS_DIRECTORY = "/golden/cursors"
SEED = 1
PAYLOADS = Path(__file__).resolve().parent.parent / "tests/data/format-1/payloads.json"
PLAIN_TOPIC, ROWS_TOPIC, ARROW_TOPIC, LOOSE_TOPIC = 1, 2, 3, 4
COLUMNS = {"id": "long not null", "name": "string"}
ROWS: list[dict[str, object]] = [{"id": 1, "name": "one"}, {"id": 2, "name": None}]
ARROW_ROWS = [{"id": number, "name": f"n{number}"} for number in range(5)]


class PinnedCodec(Untracked):
    """Payloads given as they are: an Arrow batch is Arrow's to lay out, the frame is ours."""

    solo = True

    def __init__(self, kind: int, version: int) -> None:
        self.kind = kind
        self.version = version

    def encode(self, records: Sequence[Any]) -> Payload:
        """Take the one record as the payload."""
        data: bytes = records[0]
        return Payload(self.kind, 0, data, len(data))

    def upgraded(self, data: Any, *, many: bool) -> tuple[Codec, Any]:
        """Leave everything as it is."""
        del many
        return self, data


class Writer:
    """A journal written one group at a time, on a simulated disk and clock."""

    def __init__(self, file_system: SimulatedFileSystem, directory: str = DIRECTORY) -> None:
        settings = Settings()
        set_log_limits(prefill_bytes=512)
        self.journal = Journal.open(
            file_system,
            directory,
            clock=SimulatedClock(SEED, step_us=0),
            settings=settings.log,
            producers=settings.producers,
        )

    def commit(self, *entries: Entry) -> None:
        """Commit one group; every entry must be acked."""
        answers: list[object] = []

        def deliver(_waiters: list[Waiter], results: Sequence[object]) -> None:
            answers.extend(results)

        self.journal.commit(list(entries), deliver)
        assert len(answers) == len(entries)
        assert all(isinstance(answer, Ack) for answer in answers), answers

    def control(self, kind: int, topic: int, payload: bytes, **fields: int) -> None:
        """Commit one control frame."""
        self.commit((None, None, Control(kind, topic, payload, **fields), 0, 1, None, None))

    def topic(self, topic: int, name: str, **fields: Any) -> None:
        """Create a topic."""
        spec = TopicSpec(id=topic, name=name, created_us=7, **fields)
        self.control(fmt.KIND_TOPIC, topic, msgspec.msgpack.encode(spec))

    def append(
        self, topic: int, codec: Codec, data: Any, count: int = 1, sender: Sender | None = None
    ) -> None:
        """Append records to a topic."""
        self.commit((self.journal.state.topics[topic], codec, data, count, 9, None, sender))


def arrow_payloads() -> tuple[bytes, bytes]:
    """Return the pinned schema and batch in Arrow's own encoding; the first call pins them."""
    if not PAYLOADS.exists():
        schema = declare_schema(COLUMNS)
        batch = pa.RecordBatch.from_pylist(ARROW_ROWS, schema=schema)
        parts = {"schema": schema.serialize(), "batch": batch.serialize()}
        encoded = {k: base64.b64encode(v.to_pybytes()).decode() for k, v in parts.items()}
        PAYLOADS.write_text(json.dumps(encoded, indent=2) + "\n", encoding="utf-8")
    pinned = json.loads(PAYLOADS.read_text(encoding="utf-8"))
    return base64.b64decode(pinned["schema"]), base64.b64decode(pinned["batch"])


def write_golden(file_system: SimulatedFileSystem) -> None:
    """Write the directory: a sealed segment, then one that was closed cleanly."""
    schema, batch = arrow_payloads()
    encoder = RowEncoder(declare_schema(COLUMNS))
    rows = join_packed([encoder.pack(encoder.values(row)) for row in ROWS])
    mail = pack_messages([Message(payload=b"mail", key="k", attributes={"a": "b"})])
    writer = Writer(file_system)
    writer.topic(PLAIN_TOPIC, "/default/plain", kind="message")
    writer.topic(ROWS_TOPIC, "/default/rows", kind="table", primary_key=(1,))
    writer.topic(ARROW_TOPIC, "/default/arrow", kind="table")
    writer.topic(LOOSE_TOPIC, "/default/loose", kind="message", sync="periodic")
    for topic in (ROWS_TOPIC, ARROW_TOPIC):
        writer.control(fmt.KIND_SCHEMA, topic, schema, schema=1)
    writer.append(PLAIN_TOPIC, PLAIN, (b"one", b"", b"three"), 3)
    writer.append(PLAIN_TOPIC, PLAIN, (b"idempotent",), 1, Sender("p1", 0, 0))
    writer.append(ROWS_TOPIC, PinnedCodec(fmt.KIND_ROWS, 1), (rows,), len(ROWS))
    writer.append(ARROW_TOPIC, PinnedCodec(fmt.KIND_ARROW, 1), (batch,), len(ARROW_ROWS))
    writer.append(LOOSE_TOPIC, PinnedCodec(fmt.KIND_ROWS, 0), (mail,), 1)
    writer.append(LOOSE_TOPIC, PLAIN, (b"loose",), 1)
    writer.control(fmt.KIND_STATE, PLAIN_TOPIC, msgspec.msgpack.encode((STATE_HOLD, "lake", 2)))
    writer.control(fmt.KIND_STATE, 0, msgspec.msgpack.encode((STATE_FIRST_FREE, "policy", b"kept")))
    writer.control(fmt.KIND_CURSOR, PLAIN_TOPIC, encode_changes([placed("reader", CursorState(2))]))
    gap = msgspec.msgpack.encode((9, "gap", "declared by hand"))
    writer.control(fmt.KIND_GAP, PLAIN_TOPIC, gap, offset=4)
    writer.journal.rotate()
    writer.journal.seal_one()
    writer.append(PLAIN_TOPIC, PLAIN, (b"behind the gap",), 1, Sender("p1", 0, 1))
    writer.journal.close()


def write_golden_cursors(file_system: SimulatedFileSystem) -> None:
    """Write a second directory: every change of a cursor, in frames and in a checkpoint."""
    writer = Writer(file_system, CURSORS_DIRECTORY)
    writer.topic(PLAIN_TOPIC, "/default/plain", kind="message")
    writer.append(PLAIN_TOPIC, PLAIN, tuple(b"%d" % number for number in range(20)), 20)
    groups: list[list[Change]] = [
        [placed("plain", CursorState(3)), placed("gone", CursorState(0))],
        [placed("holes", CursorState(2, [(5, 7), (9, 10)], [(3, 2), (8, 300)]))],
        [acked("plain", (3, 4)), attempted("plain", (4, 2))],
    ]
    for changes in groups:
        writer.control(fmt.KIND_CURSOR, PLAIN_TOPIC, encode_changes(changes))
    writer.journal.rotate()
    writer.journal.seal_one()
    last: list[Change] = [
        acked("holes", (2, 5), (12, 20)),
        attempted("holes", (8, 301)),
        Dropped("gone"),
    ]
    writer.control(fmt.KIND_CURSOR, PLAIN_TOPIC, encode_changes(last))
    writer.journal.close()


def main() -> int:
    """Write the golden directories to the path given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    arguments = parser.parse_args()
    file_system = SimulatedFileSystem()
    write_golden(file_system)
    write_golden_cursors(file_system)
    file_system.dump(arguments.directory, "/golden")
    sizes = {path: len(file_system.read_bytes(path)) for path in file_system.paths()}
    print(json.dumps(sizes, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
