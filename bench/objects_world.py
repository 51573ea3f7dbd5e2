"""What the measures of the objects tier share: a journal full of frames, an S3 server, uploads."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from bench import workload
from frazil.clock import SystemClock
from frazil.config import Settings, load_settings
from frazil.metadata import MemoryStore
from frazil.objects import ObjectCatalog, TopicFrames, Uploader, open_store
from tests.servers.seaweed import SeaweedServer

if TYPE_CHECKING:
    import frazil
    from bench.harness import Bench
    from frazil.objects import Descriptor

LOG_ALONE = {"memory.enabled": False}
"""The log keeps everything: what is uploaded comes from its segments."""
LEASE = "broker"


def fill(engine: frazil.Engine, names: Sequence[str], total_bytes: int) -> None:
    """Publish batches of rows of 100 bytes to all topics in turn, `total_bytes` in all."""
    batches = [workload.arrow_batch(number) for number in range(16)]
    topics = [engine.create_topic(name, workload.BATCH_COLUMNS) for name in names]
    written = number = 0
    while written < total_bytes:
        batch = batches[number % len(batches)]
        topics[number % len(topics)].append_arrow(batch)
        written += batch.nbytes
        number += 1


@attrs.frozen
class Store:
    """An open store and the settings it was opened with."""

    settings: Settings
    objects: Any
    """The `ObjectStore`."""

    def uploader(self, engine: frazil.Engine, broker: bytes) -> tuple[Uploader, ObjectCatalog]:
        """Return an uploader of a broker that nobody has heard of, with nothing uploaded."""
        clock = SystemClock()
        metadata = MemoryStore(clock=clock)
        lease = metadata.acquire(LEASE, broker.hex(), 3600.0)
        catalog = ObjectCatalog(metadata, clock=clock, epoch=lambda: lease.epoch)
        catalog.load()
        uploader = Uploader(
            self.objects,
            catalog,
            TopicFrames(engine.objects.runtimes),
            broker=broker,
            clock=clock,
        )
        return uploader, catalog


@contextlib.contextmanager
def s3(bench: Bench) -> Iterator[Store]:
    """Start SeaweedFS and open its bucket through Frazil's own settings."""
    with SeaweedServer(bench.fresh("seaweed")) as server:
        settings = load_settings(overrides=server.settings(), environment={})
        store = open_store(settings.objects)
        try:
            yield Store(settings, store)
        finally:
            store.close()


def upload_all(uploader: Uploader, catalog: ObjectCatalog, topics: Sequence[int]) -> int:
    """Upload all of the topics, each in a thread of its own; return the bytes of their objects."""

    def one(topic: int) -> None:
        while uploader.cycle(topic):
            pass

    in_parallel([lambda topic=topic: one(topic) for topic in topics])
    troubles = uploader.troubles
    assert not troubles, next(iter(troubles.values())).error
    return sum(found.size for topic in topics for found in catalog.topic(topic).descriptors)


def in_parallel(jobs: Sequence[Callable[[], None]]) -> None:
    """Run jobs in threads and wait for all; the first error is raised."""
    errors: list[BaseException] = []

    def guarded(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:  # noqa: BLE001 - the thread's top: it is raised below
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(job,)) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def topic_ids(engine: frazil.Engine, names: Sequence[str]) -> list[int]:
    """Return the topics' ids."""
    return [engine.topic_runtime(name).state.id for name in names]


def fetch_to_file(store: Any, descriptor: Descriptor, path: str, piece_bytes: int) -> None:
    """Write the bytes of an object into a file."""
    with open(path, "wb") as file:
        for at in range(0, descriptor.size, piece_bytes):
            length = min(piece_bytes, descriptor.size - at)
            file.write(store.get(descriptor.key, start=at, length=length))


def new_broker() -> bytes:
    """Return an id under which nothing was uploaded yet."""
    return os.urandom(16)
