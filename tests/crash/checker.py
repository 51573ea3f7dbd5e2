"""What must hold of a journal, checked against a list model of what was acked and read.

The model knows only what left the journal: acks and records read. It never looks at how the journal
works inside, but for `lsn_chain`, which walks the bytes of the segments on its own.
"""

from __future__ import annotations

from array import array

import attrs

from frazil.errors import CorruptionError
from frazil.log import LogSource
from frazil.log import format as fmt

READ_BYTES = 16 << 10


class Violation(AssertionError):
    """A promise was broken."""


def require(condition, message, **facts):
    """Raise a violation with the facts unless the condition holds."""
    if not condition:
        shown = " ".join(f"{key}={value!r}" for key, value in facts.items())
        raise Violation(f"{message} ({shown})")


class Rows:
    """The payloads of a batch: as much of a record batch as `Batch` needs, without Arrow."""

    __slots__ = ("rows",)

    def __init__(self, rows):
        self.rows = rows

    @property
    def num_rows(self):
        return len(self.rows)

    def slice(self, start, count=None):
        return Rows(self.rows[start:] if count is None else self.rows[start : start + count])


class PayloadDecoder:
    """Decodes payload-only frames; what a schema version is needed for must be known."""

    def __init__(self, state):
        self._state = state

    def decode(self, frame):
        head = frame.head
        if head.schema and head.schema not in self._state.schemas:
            raise Violation(f"schema of a record is gone (topic={head.topic} lsn={head.lsn})")
        start = frame.start
        base = start + 4 * (head.records + 1)
        ends = array("i", frame.buffer[start:base])
        buffer = frame.buffer
        rows = [buffer[base + ends[i] : base + ends[i + 1]] for i in range(head.records)]
        return Rows(rows)

    def decode_small(self, frames):
        return Rows([row for frame in frames for row in self.decode(frame).rows])


@attrs.define(eq=False)
class TopicModel:
    """What was seen of one topic from outside."""

    spec: object
    values: dict = attrs.Factory(dict)
    """offset → payload of everything that was ever acked or read"""
    numbers: dict = attrs.Factory(dict)
    """payload → numbers of the submissions that carried it and were not refused"""
    idempotent: set = attrs.Factory(set)
    """payloads that may never be there twice"""
    kept_end: int = 0
    """Everything known below it is durable."""
    exposed: int = 0
    """The end of all offsets that ever left the journal."""
    freed_end: int = 0
    """Records below it may be gone, because freeing them was asked for."""
    specs: list = attrs.Factory(list)
    """The definitions it may have: the last acked one and those in doubt behind it."""
    schemas: dict = attrs.Factory(dict)
    schemas_doubtful: set = attrs.Factory(set)
    holds: dict = attrs.Factory(dict)
    """name → offsets it may stand at, None for absent"""

    def __attrs_post_init__(self):
        self.specs.append(self.spec)

    def bind(self, offset, payload):
        """An offset was seen to hold a payload: it must be the only one for ever."""
        known = self.values.get(offset)
        if known is None:
            self.values[offset] = payload
        elif known != payload:
            raise Violation(
                f"offset is used twice (topic={self.spec.id} offset={offset} "
                f"first={known[:24]!r} now={payload[:24]!r})"
            )

    def acked(self, ack, payloads, *, fsynced):
        """A new append was acked."""
        topic = self.spec.id
        count = ack.offset_last - ack.offset + 1
        require(count == len(payloads), "ack has the wrong count", topic=topic, ack=ack)
        require(ack.offset >= self.exposed, "offset of an ack is old", topic=topic, ack=ack)
        for offset, payload in enumerate(payloads, ack.offset):
            self.bind(offset, payload)
        self.exposed = ack.offset_last + 1
        if fsynced:
            self.kept_end = max(self.kept_end, self.exposed)

    def repeated(self, ack, payloads, *, fsynced):
        """A repeat was acked: the records must be those of the first ack."""
        for offset, payload in enumerate(payloads, ack.offset):
            require(offset in self.values, "repeat is acked at a new offset", ack=ack)
            self.bind(offset, payload)
        if fsynced:
            self.kept_end = max(self.kept_end, ack.offset_last + 1)


def read_all(journal, topic_id, *, offset=None, damaged=False):
    """Read a topic to its visible end: (offset, payload, time) of each record, lost ranges."""
    source = LogSource(journal)
    state = journal.state.topics[topic_id]
    state.codec = PayloadDecoder(state)
    offset = state.start if offset is None else offset
    records, lost = [], []
    while offset < state.durable:
        try:
            piece = source.read(topic_id, offset=offset, bytes_max=READ_BYTES)
        except CorruptionError as error:
            require(damaged, "undamaged data cannot be read", topic=topic_id, error=str(error))
            following = error.details.get("offset_next", state.durable)
            require(following > offset, "damage does not say where to go on", error=str(error))
            lost.append((offset, following))
            offset = following
            continue
        gaps = [*piece.gaps, *(gap for batch in piece.batches for gap in batch.gaps)]
        require(not gaps, "offsets are skipped", topic=topic_id, gaps=gaps)
        for batch in piece.batches:
            at = batch.offset
            rows = batch.data.rows
            for count, time_us in batch.times:
                start = at - batch.offset
                for payload in rows[start : start + count]:
                    records.append((at, payload, time_us))
                    at += 1
        require(piece.offset_next > offset, "a read makes no progress", topic=topic_id, at=offset)
        offset = piece.offset_next
    return records, lost


def check_read(model, records):
    """What was read is what was seen before at these offsets; remember what is new."""
    seen = model.values
    for offset, payload, _time in records:
        if seen.get(offset) != payload:
            model.bind(offset, payload)
    if records:
        model.exposed = max(model.exposed, records[-1][0] + 1)


def check_records(model, records):
    """Nothing is invented, doubled or out of order, and time does not go back."""
    topic = model.spec.id
    number_last = 0
    time_last = 0
    offset_last = -1
    once = set()
    for offset, payload, time_us in records:
        require(offset > offset_last, "offsets do not grow", topic=topic, offset=offset)
        require(time_us >= time_last, "time goes back", topic=topic, offset=offset)
        numbers = model.numbers.get(payload)
        require(
            numbers,
            "record was never sent, or was refused",
            topic=topic,
            offset=offset,
            value=payload[:24],
        )
        for number in numbers:
            if number > number_last:
                break
        else:
            raise Violation(
                f"record is out of order or doubled (topic={topic} offset={offset} "
                f"value={payload[:24]!r})"
            )
        if payload in model.idempotent:
            require(payload not in once, "record is doubled", topic=topic, value=payload[:24])
            once.add(payload)
        number_last, time_last, offset_last = number, time_us, offset


def check_topic(model, journal, *, damaged=False):
    """Check a recovered topic against its model, then take what was found into the model."""
    topic = model.spec.id
    state = journal.state.topics.get(topic)
    require(state is not None, "topic is lost", topic=topic)
    head = state.next
    require(head == state.durable, "not all is durable", topic=topic, head=head)
    require(state.start <= head, "start lies behind the head", topic=topic, start=state.start)
    require(head >= model.kept_end, "head falls below a known end", topic=topic, head=head)
    records, lost = read_all(journal, topic, damaged=damaged)
    found = {offset: payload for offset, payload, _time in records}
    holes = {offset for first, end in lost for offset in range(first, end)}
    for offset in range(state.start, head):
        require(offset in found or offset in holes, "undeclared gap", topic=topic, offset=offset)
    for offset, payload in list(model.values.items()):
        if offset >= model.kept_end and offset >= head:
            # It was acked and not synced: the offset may be given again.
            del model.values[offset]
        elif offset >= model.freed_end and found.get(offset) != payload:
            require(
                damaged and offset in holes,
                "fsynced record is lost",
                topic=topic,
                offset=offset,
                value=payload[:24],
            )
    check_read(model, records)
    check_records(model, records)
    model.exposed = model.kept_end = head
    _check_facts(model, state)


def _check_facts(model, state):
    topic = model.spec.id
    require(state.spec in model.specs, "definition is another one", topic=topic, spec=state.spec)
    model.spec = state.spec
    model.specs = [state.spec]
    for version, data in model.schemas.items():
        require(state.schemas.get(version) == data, "schema is lost", topic=topic, version=version)
    for version, data in state.schemas.items():
        known = model.schemas.get(version) == data or (version, data) in model.schemas_doubtful
        require(known, "schema was invented", topic=topic, version=version)
        model.schemas[version] = data
    model.schemas_doubtful.clear()
    for name in set(model.holds) | set(state.holds):
        offset = state.holds.get(name)
        allowed = model.holds.get(name, [None])
        require(offset in allowed, "hold is another one", topic=topic, name=name, offset=offset)
        model.holds[name] = [offset]


def check_report(report):
    """Without damage recovery has nothing to complain of."""
    require(not report.lost, "loss is reported without damage", lost=report.lost)
    require(not report.quarantined, "undamaged data is quarantined", files=report.quarantined)
    require(not report.warnings, "damage is reported without any", warnings=report.warnings)


def lsn_chain(file_system, journal):
    """Walk the bytes of all segments: batch sequences are dense, also from file to file."""
    lsn = None
    for segment in journal.segments:
        data = file_system.read_bytes(segment.path)
        require(lsn in (None, segment.base_lsn), "sequence breaks at a segment", segment=segment.id)
        lsn = segment.base_lsn
        position = fmt.SEGMENT_HEADER_BYTES
        while position < segment.body_end:
            require(position + fmt.FRAME_HEAD_BYTES <= len(data), "file is cut", at=position)
            head = fmt.read_head(data, position)
            expected = lsn if head.kind in (fmt.KIND_CHECKPOINT, fmt.KIND_MARKER) else lsn + 1
            require(head.lsn == expected, "sequence is not dense", segment=segment.id, at=position)
            require(head.salt == segment.salt, "foreign frame", segment=segment.id, at=position)
            lsn = head.lsn
            position += fmt.FRAME_PREFIX_BYTES + head.length
    require(lsn == journal.state.lsn, "last sequence differs", lsn=lsn, state=journal.state.lsn)
