"""Ranged reads: shared between readers, bounded in bytes, ahead of sequential readers."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from frazil.errors import Closed, Unavailable
from frazil.objects.reader import ByteRange, Fetcher
from tests.unit.objects.object_scene import Scene

WAIT_S = 60


class Gated:
    """A store of one object whose answers wait for a gate."""

    def __init__(self, data, *, is_open=True):
        self.data = data
        self.gate = threading.Event()
        self.asked = []
        self.arrived = threading.Semaphore(0)
        self.fails = 0
        if is_open:
            self.gate.set()

    def get(self, key, *, start, length):
        self.asked.append((start, length))
        self.arrived.release()
        assert self.gate.wait(WAIT_S)
        if self.fails:
            self.fails -= 1
            raise Unavailable("store is down")
        return self.data[start : start + length]


@pytest.fixture
def make():
    made = []

    def build(store, **options):
        made.append(Fetcher(store, **options))
        return made[-1]

    yield build
    for each in made:
        each.close()


def span(number, length=10):
    return ByteRange("key", number * length, length)


def test_what_was_asked_for_is_kept_within_its_bytes(make):
    """Bytes that are asked for again come without a request, as long as there is room."""
    store = Gated(bytes(range(200)))
    fetcher = make(store, ahead_bytes=25, threads=0)
    assert fetcher.get(span(0)) == fetcher.get(span(0)) == bytes(range(10))
    assert len(store.asked) == 1
    for number in range(6):
        fetcher.get(span(number))
    assert fetcher.cache_bytes == 50
    assert fetcher.get(span(0)) == bytes(range(10))
    assert len(store.asked) == 7


def test_readers_of_the_same_place_share_a_request(make):
    """While bytes are on their way, nobody asks for them a second time."""
    store = Gated(bytes(range(100)), is_open=False)
    fetcher = make(store, ahead_bytes=100, threads=1)
    found = []
    readers = [
        threading.Thread(target=lambda: found.append(fetcher.get(span(3)))) for _ in range(4)
    ]
    for reader in readers:
        reader.start()
    assert store.arrived.acquire(timeout=WAIT_S)
    fetcher.ahead([span(3)])
    store.gate.set()
    for reader in readers:
        reader.join(WAIT_S)
    assert found == [bytes(range(30, 40))] * 4
    assert store.asked == [(30, 10)]


def test_reading_ahead_stays_within_its_bytes(make):
    """No more is ahead than the budget, however many readers ask; what is used makes room."""
    store = Gated(bytes(400), is_open=False)
    fetcher = make(store, ahead_bytes=30, threads=2)
    fetcher.ahead([span(number) for number in range(10)])
    fetcher.ahead([span(number) for number in range(20, 30)])
    assert fetcher.ahead_bytes == 30
    store.gate.set()
    assert fetcher.get(span(0)) == bytes(10)
    fetcher.ahead([span(3)])
    assert fetcher.ahead_bytes == 30
    for number in range(1, 4):
        fetcher.get(span(number))
    assert sorted(store.asked) == [(number * 10, 10) for number in range(4)]


def test_what_nobody_came_for_makes_room(make):
    """What was fetched ahead for a reader that is gone is dropped when others need the room."""
    store = Gated(bytes(400))
    fetcher = make(store, ahead_bytes=20, threads=1)
    fetcher.ahead([span(0), span(1)])
    fetcher.ahead([span(10)])
    for number in range(20, 24):
        fetcher.get(span(number))
    assert (fetcher.ahead_bytes, fetcher.cache_bytes) == (0, 40)
    fetcher.ahead([span(10), span(11)])
    assert fetcher.ahead_bytes == 20


def test_a_failed_request_ahead_is_asked_again_by_its_reader(make):
    """Trouble ahead is no trouble of the reader, unless it is still there when it comes."""
    store = Gated(bytes(range(100)))
    store.fails = 1
    fetcher = make(store, ahead_bytes=100, threads=1)
    fetcher.ahead([span(2)])
    assert fetcher.get(span(2)) == bytes(range(20, 30))
    store.fails = 1
    with pytest.raises(Unavailable):
        fetcher.get(span(4))
    assert fetcher.get(span(4)) == bytes(range(40, 50))


def test_while_the_store_is_down_one_thread_tries_and_the_others_fail_at_once(make):
    """A try may take long: nobody else waits for it, and all go on when it succeeds."""
    store = Gated(bytes(range(100)))
    store.fails = 1
    fetcher = make(store, ahead_bytes=100, threads=0)
    with pytest.raises(Unavailable):
        fetcher.get(span(0))
    assert store.arrived.acquire(timeout=WAIT_S)
    store.gate.clear()
    found = []
    trying = threading.Thread(target=lambda: found.append(fetcher.get(span(1))))
    trying.start()
    assert store.arrived.acquire(timeout=WAIT_S)
    with pytest.raises(Unavailable, match="down"):
        fetcher.get(span(2))
    assert len(store.asked) == 2
    store.gate.set()
    trying.join(WAIT_S)
    assert found == [bytes(range(10, 20))]
    assert fetcher.get(span(2)) == bytes(range(20, 30))


def test_closing_does_not_wait_for_a_store_that_hangs(make):
    """Requests under way end by themselves; a reader of one that never began gets an error."""
    store = Gated(bytes(range(100)), is_open=False)
    fetcher = make(store, ahead_bytes=100, threads=1)
    fetcher.ahead([span(0), span(1)])
    assert store.arrived.acquire(timeout=WAIT_S)
    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(fetcher.get, span(1))
        while fetcher.ahead_bytes == 20:
            assert not reader.done()
        fetcher.close()
        with pytest.raises(Closed):
            reader.result(WAIT_S)
    store.gate.set()


def test_a_reader_of_objects_reads_ahead_across_them():
    """With threads, all records come in order, and never more is kept than twice the budget."""
    scene = Scene(ahead_bytes=64 << 10, threads=3)
    for _ in range(5):
        scene.add([4] * 1_000, index_bytes=2_000)
    try:
        assert scene.offsets(0, bytes_max=3_000) == list(range(20_000))
        assert scene.source.fetcher.cache_bytes <= 2 * (64 << 10)
        fetched = scene.source.fetcher.bytes_fetched
        held = sum(each.length for each in scene.catalog.topic(7).descriptors)
        assert fetched == held
    finally:
        scene.source.close()
