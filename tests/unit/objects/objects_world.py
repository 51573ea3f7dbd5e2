"""A journal on a simulated disk, a store and metadata in memory, and uploads between them."""

from __future__ import annotations

import types

import msgspec

from frazil.log import format as fmt
from frazil.metadata import MemoryStore
from frazil.objects import format as objects
from frazil.objects.catalog import LEASE_NAME, ObjectCatalog
from frazil.objects.frames import TopicFrames
from frazil.objects.writer import Uploader
from tests.crash.driven_log import DrivenLog
from tests.support import SimulatedClock, SimulatedFileSystem
from tests.support.simulated_store import SimulatedStore

BROKER = bytes(range(16))


class Runtimes:
    """The topics of a journal, as far as uploads need them."""

    def __init__(self, log):
        self._log = log

    def get(self, topic_id):
        state = self._log.journal.state.topics.get(topic_id)
        if state is None:
            return None
        log = types.SimpleNamespace(source=self._log.source)
        return types.SimpleNamespace(state=state, name=state.spec.name, tiers=None, log=log)


class ObjectsWorld:
    """Everything that an upload needs, without faults."""

    def __init__(self, *, object_bytes_max=1 << 30, index_bytes=1 << 20):
        self.object_bytes_max = object_bytes_max
        self.index_bytes = index_bytes
        self.clock = SimulatedClock(1)
        self.disk = SimulatedFileSystem()
        self.log = DrivenLog(self.disk)
        self.frames = TopicFrames(Runtimes(self.log))
        self.store = SimulatedStore(self.clock)
        self.metadata = MemoryStore(clock=self.clock)
        self.start()

    def start(self):
        """Start a new process over the same metadata and store."""
        epoch = self.metadata.acquire(LEASE_NAME, "me", 3600.0).epoch
        self.catalog = ObjectCatalog(self.metadata, clock=self.clock, epoch=lambda: epoch)
        self.catalog.load()
        self.uploader = Uploader(
            self.store,
            self.catalog,
            self.frames,
            broker=BROKER,
            clock=self.clock,
            object_bytes_max=self.object_bytes_max,
        )
        self.uploader.index_bytes = self.index_bytes

    def gap(self, topic, first, end):
        """Declare offsets without records at the end of a topic."""
        payload = msgspec.msgpack.encode((end, "gap", "declared"))
        self.log.control(fmt.KIND_GAP, topic, payload, offset=first)

    def records(self, topic):
        """Return the records that registered objects hold of a topic, by offset."""
        found = {}
        for descriptor in self.catalog.topic(topic).descriptors:
            data = self.store.objects[descriptor.key].data
            found.update(records_of(data, descriptor, topic))
        return found


def footer_of(data):
    """Return the checked footer of an object's bytes."""
    trailer = objects.decode_trailer(data[-objects.TRAILER_BYTES :], size=len(data))
    return objects.read_footer(data[trailer.position : -objects.TRAILER_BYTES], trailer)


def records_of(data, descriptor, topic):
    """Yield offset and payload of the plain records that a descriptor promises."""
    view = memoryview(data)
    position = objects.HEADER_BYTES
    while position < objects.HEADER_BYTES + descriptor.length:
        head = fmt.read_head(view, position)
        assert not fmt.frame_fault(view, position, head)
        assert head.topic == topic
        payload = bytes(fmt.payload_of(view, position, head))
        ends = memoryview(payload[: 4 * head.records + 4]).cast("i")
        body = payload[4 * head.records + 4 :]
        for number in range(head.records):
            if descriptor.first <= head.offset + number < descriptor.end:
                yield head.offset + number, body[ends[number] : ends[number + 1]]
        position += fmt.FRAME_PREFIX_BYTES + head.length
