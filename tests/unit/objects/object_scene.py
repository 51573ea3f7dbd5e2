"""A topic of payload records in registered objects, for tests of readers."""

from __future__ import annotations

import hashlib

import pyarrow as pa

from frazil.log import SpecialRange
from frazil.log import format as fmt
from frazil.metadata import MemoryStore
from frazil.model import TopicSpec
from frazil.objects import format as objects_format
from frazil.objects.catalog import LEASE_NAME, ObjectCatalog
from frazil.objects.descriptor import descriptor_of
from frazil.objects.format import Footer, IndexEntry, KeyParts, object_key
from frazil.objects.reader import ObjectsSource
from frazil.schema import LIMITS_DEFAULT
from frazil.topic import MessageTopicCodec
from tests.support.simulated_clock import SimulatedClock
from tests.support.simulated_store import SimulatedStore

BROKER = bytes(range(16))
TOPIC = 7
UID = "0123abcd"
SPEC = TopicSpec(id=TOPIC, name="/default/events", kind="message", created_us=1, uid=UID)
START_US = 1_000_000
STEP_US = 1_000

CODEC = MessageTopicCodec(
    limits=LIMITS_DEFAULT, rows_arrow_min=64, options=pa.ipc.IpcWriteOptions()
)


def time_of(offset):
    """Return when the record of an offset was appended."""
    return START_US + offset * STEP_US


def payload_of(offset, size):
    """Return the payload of an offset; no two offsets have the same."""
    return f"{offset}:".encode().ljust(size, b"%d" % (offset % 10))


def frame_of(offset, count, *, payload_bytes=40, topic=TOPIC):
    """Return the bytes of a frame of `count` payload records."""
    data = fmt.plain_payload([payload_of(offset + n, payload_bytes) for n in range(count)])
    head, payload, padding, _size = fmt.frame_buffers(
        fmt.KIND_ROWS,
        data,
        len(data),
        offset=offset,
        salt=b"saltsalt",
        generation=1,
        lsn=offset + 1,
        synced=0,
        time_us=time_of(offset),
        topic=topic,
        count=count,
        flags=fmt.FLAG_PLAIN,
    )
    return head + bytes(payload) + padding


def object_of(
    first, counts, *, index_bytes=256, payload_bytes=40, gaps=(), epoch=1, begins=None, end=None
):
    """Return an object of frames with `counts` records each, as key, bytes and footer.

    `gaps` are `(first, end, kind)`: the frame that would begin there begins after the gap.
    """
    body = bytearray(objects_format.MAGIC)
    start = position = len(body)
    entries, times, records = [], [], 0
    offset = first if begins is None else begins
    skips = {gap_first: gap_end for gap_first, gap_end, _kind in gaps}
    for count in counts:
        offset = skips.get(offset, offset)
        if not entries or len(body) - position >= index_bytes:
            position = len(body)
            entries.append(IndexEntry(offset, position, time_of(offset)))
        body += frame_of(offset, count, payload_bytes=payload_bytes)
        times.append(time_of(offset))
        offset += count
        records += count
    end = skips.get(offset, offset) if end is None else end
    footer = Footer(
        broker=BROKER,
        epoch=epoch,
        created_us=1,
        content_sha256=hashlib.sha256(body).digest(),
        lsn_last=offset,
        topic=TOPIC,
        uid=UID,
        spec=SPEC,
        schemas={},
        producers={},
        first=first,
        end=end,
        records=records,
        frames=len(counts),
        time_first_us=times[0] if times else 0,
        time_last_us=max(times, default=0),
        length=len(body) - start,
        ranges=tuple(SpecialRange(a, b, kind, "why") for a, b, kind in gaps),
        index=objects_format.pack_index(entries),
    )
    encoded = objects_format.encode_footer(footer)
    trailer = objects_format.encode_trailer(encoded, position=len(body))
    return key_of(first, end, epoch=epoch), bytes(body) + encoded + trailer, footer


def key_of(first, end, *, epoch=1, broker=BROKER):
    """Return the key of an object of the topic."""
    return object_key(KeyParts(broker, TOPIC, UID, first, epoch, f"{end:08x}"))


class Scene:
    """A catalog, a store and a reader of one topic."""

    def __init__(self, *, seed=0, ahead_bytes=1 << 20, threads=0, store=None):
        self.clock = SimulatedClock(seed)
        self.metadata = MemoryStore(clock=self.clock)
        lease = self.metadata.acquire(LEASE_NAME, "test", 86_400)
        self.catalog = ObjectCatalog(self.metadata, clock=self.clock, epoch=lambda: lease.epoch)
        self.store = SimulatedStore(self.clock, seed=seed) if store is None else store
        self._ahead_bytes, self._threads = ahead_bytes, threads
        self.source = self.reader()

    def reader(self):
        """Return a source that knows nothing yet."""
        return ObjectsSource(
            self.catalog,
            self.store,
            lambda _topic: CODEC,
            ahead_bytes=self._ahead_bytes,
            threads=self._threads,
        )

    def add(self, counts, *, first=None, **options):
        """Write an object behind the others and register it; returns its descriptor."""
        uploaded = self.catalog.topic(TOPIC).uploaded
        first = uploaded if first is None else first
        key, data, footer = object_of(first, counts, **options)
        self.store.put(key, data)
        descriptor = descriptor_of(footer, key=key, size=len(data), etag="etag")
        self.catalog.register(TOPIC, descriptor)
        return descriptor

    def flip(self, descriptor, position):
        """Damage one byte of an object in the store."""
        data = bytearray(self.store.objects[descriptor.key].data)
        data[position] ^= 0x40
        self.store.plant(descriptor.key, bytes(data))

    def offsets(self, start, *, bytes_max=1 << 20, end=None):
        """Read from an offset to the end and return the offsets; payloads are checked."""
        end = self.source.range(TOPIC).end if end is None else end
        seen = []
        offset = start
        while offset < end:
            piece = self.source.read(TOPIC, offset=offset, bytes_max=bytes_max)
            assert piece.offset_next > offset
            for batch in piece.batches:
                seen += checked_offsets(batch)
            offset = piece.offset_next
        return seen


def checked_offsets(batch):
    """Return the offsets of a batch whose payloads are those of the offsets."""
    offsets = list(range(batch.offset, batch.offset_next))
    payloads = batch.data.column("payload").to_pylist()
    assert [int(payload.split(b":")[0]) for payload in payloads] == offsets
    return offsets
