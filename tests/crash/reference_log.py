"""The reference directory of the corruption sweep, and what must be readable after some damage."""

from __future__ import annotations

from random import Random

import msgspec
import pyarrow as pa

from frazil.log import STATE_FIRST_FREE
from frazil.log import format as fmt
from frazil.schema import AddColumn, Message, declare_schema, evolve
from tests.crash.driven_log import (
    DIRECTORY,
    DrivenLog,
    KnownFrames,
    log_settings,
    read_everything,
)
from tests.support import SimulatedClock, SimulatedFileSystem

PLAIN, MAIL, TABLE, LOOSE, IDLE = 1, 2, 3, 4, 5
KNOWN_DUTIES_MAX = 256
SCHEMA = declare_schema({"id": "long", "name": "string", "score": "double"})
SCHEMA_NEXT = evolve(SCHEMA, [AddColumn("city", "string")])


class FrameFacts(msgspec.Struct, frozen=True):
    """One frame of the undamaged directory, found by walking it from head to head."""

    path: str
    position: int
    end: int
    kind: int
    topic: int
    offset: int
    records: int
    lsn: int
    synced: int


class Duties(msgspec.Struct, frozen=True):
    """What must be so after some damage.

    `records` is {(topic, offset): "whole" | "reported" | "free"}: it must be readable; it must be
    readable or be named by a CorruptionError; it may be gone. `last_offsets` has for each topic the
    last offset that is not free, or -1.
    """

    records: dict
    last_offsets: dict


class Reference(msgspec.Struct):
    """A directory, its frames and its content."""

    files: dict
    frames: list
    body_ends: dict
    content: dict
    known_frames: KnownFrames
    known_duties: dict

    def file_system(self, changed=None):
        """A fresh file system with the directory, some files exchanged."""
        file_system = SimulatedFileSystem()
        for path, data in {**self.files, **(changed or {})}.items():
            file_system.write_bytes(path, data)
        return file_system

    @property
    def segments(self):
        return sorted(path for path in self.files if path.endswith(".seg"))


def _filler(random, count, size):
    return [random.randbytes(random.randrange(1, size)) for _ in range(count)]


def _part(log, random, number):
    """Some of everything; each part goes into a segment of its own."""
    log.plain(PLAIN, *_filler(random, 9, 300))
    log.plain(PLAIN, b"from a producer %d" % number, producer="p1", sequence=number)
    for _ in range(5):
        log.plain(PLAIN, *_filler(random, 1, 100))
    log.messages(
        MAIL,
        Message(payload=b"mail", key=f"k{number}", attributes={"part": str(number)}),
        Message(payload=random.randbytes(700), publish_time=17, schema_id=3),
    )
    log.messages(MAIL, *[Message(payload=d, key="many") for d in _filler(random, 20, 200)])
    name = random.randbytes(60).hex()
    log.rows(TABLE, {"id": number, "name": name, "score": 0.5}, {"id": None})
    schema = log.topic(TABLE).codec.schema
    log.arrow(
        TABLE,
        pa.RecordBatch.from_pylist(
            [{"id": i, "name": random.randbytes(20).hex(), "score": i / 3} for i in range(60)],
            schema=schema,
        ),
    )
    log.plain(LOOSE, *_filler(random, 6, 400))
    log.plain(LOOSE, *_filler(random, 2, 50), sync=True)


def _finish(file_system, *, clean, log):
    if clean:
        log.close()
    else:
        # Killed after a group that no marker follows: its records are acked, but not proven.
        log.journal.tick()
        log.clock.advance(1.0)
        log.journal.tick()
        log.plain(PLAIN, b"the last group", b"of a killed process")
        log.rows(TABLE, {"id": 99, "name": "last"})


def build_reference(*, clean, seed=5):
    """Build the directory: sealed segments, an unsealed one, and the last one open or closed."""
    random = Random(seed)
    file_system = SimulatedFileSystem()
    log = DrivenLog(file_system, clock=SimulatedClock(seed), settings=log_settings())
    log.create(PLAIN, "/default/plain")
    log.create(MAIL, "/default/mail")
    log.create(TABLE, "/default/table", "table", schema=SCHEMA)
    log.create(LOOSE, "/default/loose", sync="periodic")
    log.create(IDLE, "/default/idle")
    log.plain(IDLE, b"only one")
    log.hold(PLAIN, "lake", 3)
    for number in range(5):
        _part(log, random, number)
        if number == 1:
            log.schema(TABLE, 2, SCHEMA_NEXT)
            # What others remember of a topic lies behind the log's end: a gap is declared.
            known = {LOOSE: log.topic(LOOSE).next + 50}
            file_system = file_system.kill_clone()
            log = DrivenLog(file_system, clock=log.clock, settings=log_settings(), watermarks=known)
        if number < 4:
            log.journal.rotate()
        if number == 2:
            log.journal.seal_one()
    _value(log, b"kept")
    _finish(file_system, clean=clean, log=log)
    return _describe(file_system.kill_clone())


def _value(log, value):
    log.control(fmt.KIND_STATE, 0, msgspec.msgpack.encode((STATE_FIRST_FREE, "policy", value)))
    log.control(fmt.KIND_CURSOR, MAIL, msgspec.msgpack.encode([(3, "reader", b"\x07")]))


def _describe(file_system):
    files = {path: file_system.read_bytes(path) for path in file_system.paths()}
    probe = SimulatedFileSystem()
    for path, data in files.items():
        probe.write_bytes(path, data)
    known_frames = KnownFrames()
    log = DrivenLog(probe, clock=SimulatedClock(77), known_frames=known_frames)
    assert not log.journal.report.lost
    content = read_everything(log)
    frames, ends = walk_frames(files)
    return Reference(files, frames, ends, content, known_frames, {})


def walk_frames(files):
    """Find the frames of all segments by their lengths; return them and where each body ends."""
    frames, ends = [], {}
    for path in sorted(path for path in files if path.endswith(".seg")):
        data = files[path]
        salt = fmt.decode_segment_header(data[: fmt.SEGMENT_HEADER_BYTES]).salt
        at = fmt.SEGMENT_HEADER_BYTES
        while at + fmt.FRAME_HEAD_BYTES <= len(data):
            head = fmt.read_head(data, at)
            if head.salt != salt:
                break
            end = at + fmt.FRAME_PREFIX_BYTES + head.length
            facts = (head.kind, head.topic, head.offset, head.records, head.lsn, head.synced)
            frames.append(FrameFacts(path, at, end, *facts))
            at = end
        ends[path] = at
    return frames, ends


def duties(reference, path, spans):
    """Say for each record's offset what damage to `spans` of `path` allows.

    It depends on the frames that are hit alone, so it is worked out once for all damage to them.
    """
    hit = tuple(
        number
        for number, frame in enumerate(reference.frames)
        if frame.path == path and _hit(spans, frame.position, frame.end)
    )
    known = reference.known_duties
    if hit not in known:
        if len(known) >= KNOWN_DUTIES_MAX:
            known.clear()
        known[hit] = _duties(reference, {reference.frames[number] for number in hit})
    return known[hit]


def _duties(reference, damaged):
    last = reference.segments[-1]
    intact = {frame: frame not in damaged for frame in reference.frames}
    in_last = [frame for frame in reference.frames if frame.path == last]
    proven = max((f.synced for f in in_last if intact[f]), default=0)
    # All records of older segments were synced before the last one was created.
    first = min(frame.lsn for frame in in_last)
    first_bad = min((f.position for f in in_last if not intact[f]), default=1 << 60)
    result = {}
    for frame in reference.frames:
        if frame.kind > fmt.KIND_ROWS:
            continue
        synced = frame.path != last or frame.lsn <= max(proven, first)
        if intact[frame] and (synced or frame.position < first_bad):
            duty = "whole"
        else:
            duty = "reported" if synced else "free"
        for offset in range(frame.offset, frame.offset + frame.records):
            result[frame.topic, offset] = duty
    ends = {frame.topic: -1 for frame in reference.frames}
    for (topic, offset), duty in result.items():
        if duty != "free":
            ends[topic] = max(ends[topic], offset)
    return Duties(result, ends)


def _hit(spans, position, end):
    return any(first < end and position < stop for first, stop in spans)


__all__ = ["DIRECTORY", "Reference", "build_reference", "duties"]
