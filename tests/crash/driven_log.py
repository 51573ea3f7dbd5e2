"""Drive a journal by hand, one call at a time, and read back everything that it holds."""

from __future__ import annotations

import contextlib

import msgspec
import pyarrow as pa

from frazil.config import Settings
from frazil.errors import CorruptionError
from frazil.log import PLAIN, STATE_HOLD, Control, Journal, LogSource, Sender
from frazil.log import format as fmt
from frazil.model import Ack, TopicSpec
from frazil.schema import LIMITS_DEFAULT
from frazil.topic import MessageTopicCodec, TableCodec
from frazil.topic.payloads import arrow_payload
from tests.support import SimulatedClock

DIRECTORY = "/data/journal"
OPTIONS = pa.ipc.IpcWriteOptions()
ROWS_ARROW_MIN = 8
SETTINGS = Settings()
KNOWN_MAX = 2048


def log_settings(**changes):
    """Settings with small numbers, so that little data reaches every limit."""
    return SETTINGS.log.model_copy(update={"segment_bytes_max": 1 << 20, **changes})


def codec_of(topic):
    """The codec of a topic as the engine would build it."""
    same = {"limits": LIMITS_DEFAULT, "rows_arrow_min": ROWS_ARROW_MIN, "options": OPTIONS}
    if topic.spec.kind == "message":
        return MessageTopicCodec(**same)
    if not topic.schemas:
        return None
    return TableCodec(topic.schemas, primary_key=topic.spec.primary_key, **same)


class KnownFrames:
    """Decodes the same frame once, for a sweep that opens and reads one directory over and over.

    What a codec makes of a frame depends on the frame's bytes and on its topic's columns alone;
    both are the key. Everything before the decoding is done each time.
    """

    def __init__(self):
        self._codecs = {}
        self._known = {}

    def codec_of(self, topic):
        """The codec of a topic; the same one for the same columns, which must not be changed."""
        columns = (topic.spec.kind, topic.spec.primary_key, *sorted(topic.schemas.items()))
        if columns not in self._codecs:
            codec = self._codecs[columns] = codec_of(topic)
            if codec is not None:
                decode, decode_small = codec.decode, codec.decode_small

                def decode_once(frame):
                    return self._once((columns, _bytes_of(frame)), decode, frame)

                def decode_small_once(frames):
                    return self._once((columns, *map(_bytes_of, frames)), decode_small, frames)

                codec.decode, codec.decode_small = decode_once, decode_small_once
        return self._codecs[columns]

    def records_of(self, batch):
        """The same as `records_of`, made once for a batch that was decoded once."""
        # The batch is kept with its records, so that no other one gets its id.
        key = (id(batch.data), batch.offset, batch.times)
        return self._once(key, lambda each: (each.data, records_of(each)), batch)[1]

    def _once(self, key, make, argument):
        key = (make.__name__, key)
        if key not in self._known:
            if len(self._known) >= KNOWN_MAX:
                self._known.clear()
            self._known[key] = make(argument)
        return self._known[key]


def _bytes_of(frame):
    """All of a frame that its decoding depends on."""
    head = frame.head
    payload = frame.buffer[frame.start : frame.start + head.size]
    return head.kind, head.flags, head.schema, head.records, head.time, payload


class DrivenLog:
    """A journal and its owner: each call commits one group and returns its answers."""

    def __init__(
        self,
        file_system,
        *,
        clock=None,
        settings=None,
        watermarks=None,
        known_topics=None,
        known_frames=None,
        known_cursors=None,
    ):
        self.clock = clock or SimulatedClock()
        self.settings = settings or log_settings()
        self.journal = Journal.open(
            file_system,
            DIRECTORY,
            clock=self.clock,
            settings=self.settings,
            producers=SETTINGS.producers,
            watermarks=watermarks,
            known_topics=known_topics,
            known_cursors=known_cursors,
        )
        # As the engine does in the background: a segment that cannot be sealed waits.
        with contextlib.suppress(OSError):
            while self.journal.seal_one():
                pass
        self.source = LogSource(self.journal)
        self._known = known_frames
        for topic in self.journal.state.topics.values():
            topic.codec = codec_of(topic) if known_frames is None else known_frames.codec_of(topic)

    def topic(self, topic):
        return self.journal.state.topics[topic]

    def commit(self, *entries):
        """Commit entries whose waiter is None as one group; return the answers in their order."""
        answers = {}

        def deliver(waiters, results):
            for waiter, result in zip(waiters, results, strict=True):
                assert waiter not in answers, "answered twice"
                answers[waiter] = result

        numbered = [(*e[:5], number, *e[6:]) for number, e in enumerate(entries)]
        self.journal.commit(numbered, deliver)
        assert len(answers) == len(entries), "a waiter was forgotten"
        return [answers[number] for number in range(len(entries))]

    def control(self, kind, topic, payload, **fields):
        return self.commit(
            (None, None, Control(kind, topic, payload, **fields), 0, 100, None, None)
        )[0]

    def create(self, topic, name, kind="message", *, sync="commit", schema=None):
        """Create a topic; a table gets its first schema."""
        spec = TopicSpec(id=topic, name=name, kind=kind, created_us=1, sync=sync)
        answer = self.control(fmt.KIND_TOPIC, topic, msgspec.msgpack.encode(spec))
        if isinstance(answer, Ack) and schema is not None:
            answer = self.schema(topic, 1, schema)
        if isinstance(answer, Ack):
            self.topic(topic).codec = codec_of(self.topic(topic))
        return answer

    def schema(self, topic, version, schema):
        data = schema.serialize().to_pybytes()
        answer = self.control(fmt.KIND_SCHEMA, topic, data, schema=version)
        state = self.topic(topic)
        if isinstance(answer, Ack) and state.codec is not None:
            state.codec.use(state.schemas)
        return answer

    def hold(self, topic, name, offset):
        payload = msgspec.msgpack.encode((STATE_HOLD, name, offset))
        return self.control(fmt.KIND_STATE, topic, payload)

    def plain(self, topic, *payloads, producer=None, sequence=0, sync=False):
        """Append payload-only messages as one entry."""
        sender = Sender(producer, 0, sequence, sync) if producer or sync else None
        size = sum(map(len, payloads))
        state = self.topic(topic)
        return self.commit((state, PLAIN, payloads, len(payloads), size, None, sender))[0]

    def messages(self, topic, *messages):
        state = self.topic(topic)
        codec = state.codec.messages
        return self.commit((state, codec, messages, len(messages), 100, None, None))[0]

    def rows(self, topic, *rows):
        """Append rows of a table topic as one entry."""
        state = self.topic(topic)
        codec = state.codec.rows
        packed = [codec.encoder.encode(row) for row in rows]
        return self.commit((state, codec, packed, len(packed), 100, None, None))[0]

    def arrow(self, topic, batch):
        state = self.topic(topic)
        payload = arrow_payload(batch, OPTIONS)
        entry = (
            state,
            state.codec.columns.arrow,
            payload,
            batch.num_rows,
            payload.size,
            None,
            None,
        )
        return self.commit(entry)[0]

    def free(self, first):
        """Free the segments below `first` in the two steps of the product."""
        control = self.journal.free(first)
        answer = self.control(control.kind, control.topic, control.payload)
        if isinstance(answer, Ack):
            self.journal.unlink(self.journal.detach_freed())
        return answer

    def read(self, topic, *, bytes_max=1 << 20):
        """Read a topic from its start to its end."""
        decoded = records_of if self._known is None else self._known.records_of
        return read_topic(self.source, topic, bytes_max=bytes_max, records_of=decoded)

    def close(self):
        self.journal.close()


class Content(msgspec.Struct):
    """What reading one topic gave."""

    records: dict
    lost: list
    gaps: list
    start: int
    end: int

    def covered(self, offset):
        """Tell whether a refusal to read named this offset."""
        return any(first <= offset < end for first, end in self.lost)


def records_of(batch):
    """The records of a batch by their offsets."""
    records = dict(enumerate(_rows(batch.data), batch.offset))
    times = [us for count, us in batch.times for _ in range(count)]
    for row, us in zip(records.values(), times, strict=True):
        row["_time"] = us
    return records


def read_topic(source, topic, *, bytes_max=1 << 20, records_of=records_of):
    """Read a topic to its end; damage is noted with its range, and reading goes on behind it."""
    held = source.range(topic)
    content = Content({}, [], [], held.first, held.end)
    offset = held.first
    while offset < held.end:
        try:
            piece = source.read(topic, offset=offset, bytes_max=bytes_max)
        except CorruptionError as error:
            following = error.details.get("offset_next")
            assert following is not None, f"the error names no range: {error}"
            assert following > offset, f"the error leads nowhere: {error}"
            assert error.details["offset_first"] <= offset
            content.lost.append((offset, following))
            offset = following
            continue
        assert piece.offset_next > offset, "reading does not go on"
        for batch in piece.batches:
            content.gaps += [(gap.first, gap.end) for gap in batch.gaps]
            offset = max([offset, *(gap.end for gap in batch.gaps)])
            assert batch.offset == offset, "a silent hole between two batches"
            content.records.update(records_of(batch))
            offset = batch.offset_next
        content.gaps += [(gap.first, gap.end) for gap in piece.gaps]
        offset = piece.offset_next
    return content


def _rows(data):
    """A batch as dicts; timestamps as numbers, since Python's own are slow to make."""
    columns = [
        column.cast(pa.int64()).to_pylist()
        if pa.types.is_timestamp(column.type)
        else column.to_pylist()
        for column in data.columns
    ]
    names = data.schema.names
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def read_everything(log, *, bytes_max=1 << 20):
    return {topic: log.read(topic, bytes_max=bytes_max) for topic in log.journal.state.topics}
