"""What is fuzzed: every decoder of bytes from disk or wire, in a few groups.

A target takes any bytes and returns; an error of ours is a fine answer, any other exception is a
bug. Where a checksum guards a decoder the target puts it right, so that junk gets behind it.
"""

from __future__ import annotations

import struct
import zlib
from contextlib import suppress

import pyarrow as pa

from frazil.config import environment_entries, file_entries, parse_assignments
from frazil.errors import FrazilError, NotFound
from frazil.log import (
    Frame,
    JournalState,
    OpenFiles,
    Scanner,
    Survey,
    batches_of,
    decode_checkpoint,
    decode_footer,
    decode_index,
    decode_sections,
    read_footer,
)
from frazil.log import format as fmt
from frazil.model import TopicSpec, full_topic_name
from frazil.objects import (
    Descriptor,
    Garbage,
    Intent,
    ObjectMeta,
    ObjectsState,
    decode_row,
    frames_of,
    read_tail,
)
from frazil.objects import format as object_format
from frazil.schema import (
    LIMITS_DEFAULT,
    JsonRowReader,
    RowEncoder,
    declare_schema,
    parse_csv_row,
    parse_json_row,
    unpack_messages,
)
from frazil.topic import MessageTopicCodec, TableCodec
from frazil.units import parse_bytes, parse_duration_s
from tests.support import SimulatedFileSystem

SALT = b"saltsalt"
SCHEMA = declare_schema(
    {
        "id": "long",
        "name": "string",
        "score": "double",
        "day": "date",
        "at": "timestamp",
        "price": "decimal(10,2)",
        "tags": "list<string>",
        "blob": "binary",
        "on": "boolean",
    }
)
READER = JsonRowReader(SCHEMA)
ENCODER = RowEncoder(SCHEMA)
OPTIONS = pa.ipc.IpcWriteOptions()
MESSAGES = MessageTopicCodec(limits=LIMITS_DEFAULT, rows_arrow_min=8, options=OPTIONS)
TABLE = TableCodec(
    {1: SCHEMA.serialize().to_pybytes()}, limits=LIMITS_DEFAULT, rows_arrow_min=8, options=OPTIONS
)


class BytesFile:
    """A file for reading that is just bytes."""

    def __init__(self, data):
        self._data = data

    def read_at(self, position, size):
        return self._data[position : position + size]

    def size(self):
        return len(self._data)


def _state():
    state = JournalState()
    for topic in (1, 2):
        spec = TopicSpec(id=topic, name=f"/default/t{topic}", kind="message", created_us=1)
        state.define_topic(spec)
    return state


def _frame(kind, payload, **fields):
    given = {"offset": 0, "lsn": 1, "synced": 0, "time_us": 1, **fields}
    parts = fmt.frame_buffers(kind, payload, len(payload), salt=SALT, generation=1, **given)
    return b"".join(parts[:3])


def _frames_of(data):
    """Cut junk into frames whose checksums hold: kind, length, lsn step, then the payload."""
    frames, at, lsn = [], 0, 0
    while at + 8 <= len(data) and len(frames) < 50:
        kind, size, step, topic, count, offset = struct.unpack_from("<BBBBHH", data, at)
        at += 8
        lsn += step % 3
        payload = data[at : at + size]
        at += size
        # Runs that do not fit their count are legal bytes: the length must tell.
        frames.append(
            _frame(
                kind % fmt.KIND_LAST + 1,
                payload,
                lsn=lsn,
                synced=max(0, lsn - step // 3),
                topic=topic % 4,
                count=count % 5 + 1,
                offset=offset,
                flags=step & 1,
            )
        )
    return b"".join(frames)


def _scan(body):
    file = BytesFile(bytes(fmt.SEGMENT_HEADER_BYTES) + body)
    scan = Scanner(
        file, salt=SALT, generation=1, start=fmt.SEGMENT_HEADER_BYTES, end=file.size(), lsn=0
    ).run()
    assert fmt.SEGMENT_HEADER_BYTES <= scan.end <= file.size()
    scan.proven()
    disk = SimulatedFileSystem()
    survey = Survey(disk, "/data", files=OpenFiles(disk, count_max=1))
    survey.state = _state()
    with suppress(FrazilError):
        survey._replay_scan(scan)


def frames(data):
    """Segment headers, frame heads, and the scan of a segment."""
    header = data[:124].ljust(124, b"\0")
    for candidate in (data, header + zlib.crc32(header).to_bytes(4, "little")):
        with suppress(FrazilError):
            fmt.decode_segment_header(candidate)
    _scan(data)
    _scan(_frames_of(data))
    _scan(data[:40] + _frames_of(data[40:]) + data[-9:])


def state(data):
    """Footers, indexes, checkpoints and control frames: what the state is built from."""
    _tables(data)
    _controls(data)


def _tables(data):
    """Footers, indexes and checkpoints."""
    with suppress(FrazilError):
        decode_sections(data)
    with suppress(FrazilError):
        decode_checkpoint(data)
    read_footer(BytesFile(data))
    trailer = fmt.encode_trailer(data, index_position=fmt.SEGMENT_HEADER_BYTES)
    read_footer(BytesFile(bytes(fmt.SEGMENT_HEADER_BYTES) + data + trailer))
    with suppress(FrazilError):
        footer = decode_footer(data)
        for entry in footer.topics:
            blob = data[:64]
            if entry.frames < 1 << 20:
                with suppress(FrazilError):
                    decode_index(blob, entry)


def _controls(data):
    """The payloads of control frames, applied to a state."""
    held = _state()
    at = 0
    while at + 3 <= len(data):
        kind, size, topic = data[at], data[at + 1], data[at + 2]
        at += 3
        payload = data[at : at + size]
        at += size
        encoded = _frame(kind % fmt.KIND_LAST + 1, payload, topic=topic % 4, schema=kind >> 4)
        with suppress(FrazilError):
            held.apply(fmt.read_head(encoded, 0), payload)


def payloads(data):
    """The payloads of data frames: packed messages and rows, plain ends, Arrow batches."""
    with suppress(FrazilError):
        unpack_messages(data)
    with suppress(FrazilError):
        ENCODER.unpack_rows(data)
    count = data[0] % 8 if data else 0
    body = data[1:]
    for codec, schema in ((MESSAGES, 0), (TABLE, 1)):
        for kind in (fmt.KIND_ROWS, fmt.KIND_ARROW):
            for flags in (0, fmt.FLAG_PLAIN):
                encoded = _frame(kind, body, topic=1, count=count, schema=schema, flags=flags)
                frame = Frame(fmt.read_head(encoded, 0), encoded, fmt.FRAME_HEAD_BYTES)
                for found in ([frame], [frame, frame]):
                    with suppress(FrazilError):
                        batches_of(found, codec, offset=0, topic=1)


def texts(data):
    """What people write: rows as JSON and CSV, settings, units, names."""
    _rows(data)
    _settings(data)


def _rows(data):
    """JSON rows and CSV rows."""
    for parse in (parse_json_row, READER.read):
        with suppress(FrazilError):
            row = parse(data)
            ENCODER.encode(row)
    cells = data.decode("utf-8", "replace").split(",")[: len(SCHEMA)]
    for names in (SCHEMA.names[: len(cells)], cells):
        with suppress(FrazilError):
            ENCODER.encode(parse_csv_row(names, cells, SCHEMA))


def _settings(data):
    """Settings files, the environment, human units, names."""
    text = data.decode("utf-8", "replace")
    with suppress(FrazilError):
        file_entries(data, file="fuzz.yaml")
    readers = (
        parse_bytes,
        parse_duration_s,
        full_topic_name,
        lambda value: environment_entries({f"FRAZIL_{value}": value}),
        lambda value: parse_assignments(value.splitlines()),
        lambda value: declare_schema({"column": value}),
    )
    for read in readers:
        with suppress(FrazilError):
            read(text)


def directory(data):
    """A whole data directory with one segment of junk behind a valid header."""
    from tests.crash.driven_log import DIRECTORY, DrivenLog

    header = fmt.encode_segment_header(
        fmt.SegmentHeader(bytes(16), 1, SALT, 1, 0, 0, 0, created_us=1)
    )
    disk = SimulatedFileSystem()
    middle = _frames_of(data) if data[:1] < b"\x80" else data
    disk.write_bytes(f"{DIRECTORY}/{1:016x}.seg", header + middle)
    with suppress(FrazilError):
        log = DrivenLog(disk)
        for topic in list(log.journal.state.topics.values())[:5]:
            offset = topic.start
            with suppress(FrazilError):
                for _ in range(20):
                    offset = log.source.read(topic.id, offset=offset, bytes_max=99).offset_next
        log.close()
        DrivenLog(disk).close()


class BytesStore:
    """An object store that has one object."""

    def __init__(self, data):
        self._data = data

    def get(self, key, *, start, length):
        if start + length > len(self._data):
            raise NotFound("object ends before", key=key)
        return self._data[start : start + length]


def objects(data):
    """Objects: trailer, footer, index, keys, frames, rows of the metadata."""
    body = bytes(object_format.HEADER_BYTES)
    whole = body + data + object_format.encode_trailer(data, position=len(body))
    for candidate in (data, whole):
        with suppress(FrazilError):
            read_tail(BytesStore(candidate), ObjectMeta("key", len(candidate), "", 0))
    with suppress(FrazilError):
        object_format.unpack_index(data)
    object_format.parse_key(data.decode("utf-8", "replace"))
    _object_frames(data)
    for kind in (Descriptor, ObjectsState, Intent, Garbage):
        with suppress(FrazilError):
            row = decode_row(kind, "/objects/1/2", data)
            if kind is Descriptor:
                row.entries()


def _object_frames(data):
    """The frames of a registered object, as a restore reads them."""
    for frames in (data, _frames_of(data)):
        found = Descriptor(
            key="key",
            first=0,
            end=1,
            size=len(frames),
            length=len(frames),
            records=1,
            time_first_us=0,
            time_last_us=0,
            epoch=1,
            etag="",
            created_us=0,
        )
        store = BytesStore(bytes(object_format.HEADER_BYTES) + frames)
        with suppress(FrazilError):
            for frame in frames_of(store, found, 1):
                assert frame.head.topic == 1


TARGETS = {
    target.__name__: target for target in (frames, state, payloads, texts, directory, objects)
}
