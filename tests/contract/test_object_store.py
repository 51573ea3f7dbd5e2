"""Every object store obeys the docstrings of `ObjectStore`, of every kind."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import time

import pytest

from frazil.errors import Conflict, FrazilError, InvalidRequest, NotFound
from frazil.objects import LIST_KEYS_MAX, PIECE_BYTES_MAX
from tests.contract.object_stores import KINDS, NO_MACHINE, SERVERS, server_of, store_of

pytestmark = pytest.mark.integration

_names = itertools.count()


@pytest.fixture(scope="module", params=KINDS)
def place(request, tmp_path_factory):
    """The kind of a store and its server, started once for all tests of the kind."""
    kind = request.param
    directory = tmp_path_factory.mktemp(kind)
    if kind not in SERVERS:
        yield kind, None, directory
        return
    with server_of(kind, directory / "server") as server:
        yield kind, server, directory


@pytest.fixture(autouse=True)
def no_machine(monkeypatch):
    """Let no client ask this machine for credentials."""
    for name, value in NO_MACHINE.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def store(place):
    """An empty store."""
    opened = store_of(*place, f"root-{next(_names)}")
    with contextlib.closing(opened):
        yield opened


def body(size, salt=0):
    """Bytes of which no two ranges look alike."""
    block = bytes((n * n + salt + n // 251) % 256 for n in range(65_536))
    return (block * (size // len(block) + 1))[:size]


def keys_of(metas):
    return [meta.key for meta in metas]


def test_a_put_is_read_back_whole_and_in_ranges(store):
    """What was put is there: all of it, its first byte, its last byte, a part amid."""
    data = body(100_000)
    meta = store.put("b0/topics/x.frz", data)
    assert (meta.key, meta.size) == ("b0/topics/x.frz", len(data))
    assert store.get(meta.key, start=0, length=len(data)) == data
    assert store.get(meta.key, start=0, length=1) == data[:1]
    assert store.get(meta.key, start=len(data) - 1, length=1) == data[-1:]
    assert store.get(meta.key, start=50_001, length=999) == data[50_001:51_000]
    assert store.get(meta.key, start=7, length=0) == b""


@pytest.mark.parametrize("make", [bytes, bytearray, memoryview], ids=lambda make: make.__name__)
def test_any_buffer_can_be_put(store, make):
    """Bytes, bytearrays and views are the same to a store."""
    data = body(1_000)
    store.put("k", make(data))
    assert store.get("k", start=0, length=1_000) == data


def test_nothing_is_replaced_by_a_put(store):
    """A second put of a key is a Conflict, and the first object stays."""
    store.put("k", b"first")
    with pytest.raises(Conflict) as caught:
        store.put("k", b"other")
    assert caught.value.details["key"] == "k"
    with pytest.raises(Conflict):
        store.put("k", b"first")
    assert store.get("k", start=0, length=5) == b"first"


def test_of_many_puts_of_one_key_one_wins(store):
    """Writers that race for a key get one success in all, and its bytes are there."""

    def attempt(number):
        try:
            store.put("race", body(10_000, number))
        except FrazilError as error:
            return error
        return number

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        results = list(pool.map(attempt, range(8)))
    winners = [each for each in results if isinstance(each, int)]
    found = store.get("race", start=0, length=10_000)
    assert found in [body(10_000, number) for number in range(8)]
    assert len(winners) <= 1
    assert all(found == body(10_000, number) for number in winners)
    # A loser gets a conflict, or an error to try again and then the conflict.
    for number in range(8):
        with pytest.raises(Conflict):
            store.put("race", body(10_000, number))


@pytest.mark.parametrize("size", [1, PIECE_BYTES_MAX, PIECE_BYTES_MAX + 1, 3 * PIECE_BYTES_MAX])
def test_a_stream_of_any_size_is_one_object(store, size):
    """Small streams, exact pieces, one byte more, and several parts all arrive whole."""
    data = body(size)
    pieces = [data[n : n + 1_500_001] for n in range(0, size, 1_500_001)]
    meta = store.put_stream("big", pieces)
    assert meta.size == size
    assert store.head("big").size == size
    for start in range(0, size, PIECE_BYTES_MAX):
        length = min(PIECE_BYTES_MAX, size - start)
        assert store.get("big", start=start, length=length) == data[start : start + length]


def test_a_stream_replaces_what_is_there(store):
    """The same key written again has the new bytes."""
    store.put("k", b"old and longer")
    store.put_stream("k", [b"new"])
    assert store.head("k").size == 3
    assert store.get("k", start=0, length=3) == b"new"


class Broken(Exception):
    """What a maker of pieces raises."""


@pytest.mark.parametrize("size", [100, 3 * PIECE_BYTES_MAX])
def test_a_stream_that_breaks_leaves_nothing(store, size):
    """What the maker of the pieces raises comes out as it is, and no object appears."""

    def pieces():
        yield body(min(size // 2, PIECE_BYTES_MAX))
        raise Broken("amid")

    with pytest.raises(Broken, match="amid"):
        store.put_stream("k", pieces())
    assert store.head("k") is None


def test_pieces_and_puts_have_a_largest_size(store):
    """More than 8 MiB at once is refused before anything is sent."""
    with pytest.raises(InvalidRequest):
        store.put("k", bytes(PIECE_BYTES_MAX + 1))
    with pytest.raises(InvalidRequest):
        store.put_stream("k", [bytes(PIECE_BYTES_MAX + 1)])
    assert store.head("k") is None


def test_what_is_absent_is_not_found(store):
    """A missing object and a range beyond the end are NotFound; a look at nothing is None."""
    assert store.head("a/none") is None
    with pytest.raises(NotFound):
        store.get("a/none", start=0, length=1)
    store.put("k", b"0123456789")
    for start, length in ((10, 1), (9, 2), (0, 11), (1_000, 5), (11, 0)):
        with pytest.raises(NotFound):
            store.get("k", start=start, length=length)
    assert store.get("k", start=8, length=2) == b"89"


def test_a_look_tells_size_mark_and_time(store):
    """A look has the size, the same mark as put and list, and a time of about now."""
    put = store.put("a/k", body(777))
    meta = store.head("a/k")
    assert (meta.key, meta.size, meta.etag) == ("a/k", 777, put.etag)
    assert meta.etag
    [listed] = store.list("a/")
    assert (listed.key, listed.size, listed.etag) == ("a/k", 777, put.etag)
    # The store's clock need not be ours, but it is no other unit and no other century.
    assert abs(meta.modified_us - put.modified_us) < 3_600_000_000
    # One moment, once in microseconds and once in whole seconds.
    assert abs(listed.modified_us - meta.modified_us) < 2_000_000


def test_a_list_is_sorted_and_by_prefix(store):
    """Keys of a prefix come in order; prefixes need not end at a slash."""
    keys = ["b0/topics/00000001-u/0-9", "b0/topics/00000001-u/9-a", "b0/topics/00000002-v/0-3"]
    keys += ["b0/shared/0-1", "b0/shared/1-2", "b0x/topics/1", "b1/backup/1", "b0/topics/00000001"]
    for key in reversed(keys):
        store.put(key, b"x")
    assert keys_of(store.list("")) == sorted(keys)
    for prefix in ("b0/", "b0", "b0/topics/", "b0/topics/00000001", "b0/topics/00000001-", "b0/s"):
        assert keys_of(store.list(prefix)) == sorted(k for k in keys if k.startswith(prefix))
    assert store.list("none/") == []
    assert store.list("b0/none") == []


def test_a_list_goes_on_behind_a_key(store):
    """Pages of any size have every key once, and end with an empty one."""
    keys = [f"p/{n // 10}/{n % 10:02}" for n in range(37)]
    for key in keys:
        store.put(key, b"x")
    for limit in (1, 7, 36, 37, 100):
        seen, after = [], ""
        while page := store.list("p/", after=after, limit=limit):
            assert len(page) <= limit
            seen += keys_of(page)
            after = seen[-1]
        assert seen == sorted(keys)
    assert keys_of(store.list("p/1", after="p/1/08")) == ["p/1/09"]
    assert store.list("p/1", after="p/2") == []
    assert keys_of(store.list("p/1", after="a", limit=2)) == ["p/1/00", "p/1/01"]


def test_a_list_has_more_keys_than_a_page(store, place):
    """Beyond a thousand keys nothing is lost between two pages of the server."""
    # The emulator of Google's writes all its marks with every object, and has pages of a hundred.
    page = 110 if place[0] == "gcs" else LIST_KEYS_MAX
    keys = [f"many/{n:05}" for n in range(page + 50)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: store.put(key, b"x"), keys))
    first = store.list("many/", limit=page)
    assert keys_of(first) == keys[:page]
    assert keys_of(store.list("many/", after=first[-1].key)) == keys[page:]
    store.delete(keys)
    assert store.list("many/") == []


def test_deletes_take_present_and_absent_keys(store):
    """All named objects are gone, whichever of them were there; others stay."""
    for key in ("a/1", "a/2", "a/3"):
        store.put(key, b"x")
    store.delete(["a/0", "a/1", "a/none/deep", "a/3"])
    assert keys_of(store.list("")) == ["a/2"]
    store.delete(["a/1"])
    store.delete([])
    assert keys_of(store.list("")) == ["a/2"]
    store.put("a/1", b"again")
    assert store.get("a/1", start=0, length=5) == b"again"


def test_keys_of_the_format_work(store):
    """The characters that Frazil puts into keys come back as they are."""
    key = "0123456789abcdef/topics/0000002a-f.-_9/0000000000000000-00000000000000ff-1-abcd.frz"
    store.put(key, b"x")
    assert keys_of(store.list(key.rpartition("/")[0] + "/")) == [key]
    assert store.head(key).key == key


def test_many_threads_use_one_store(store):
    """Reads, writes, looks and lists at once do not disturb each other."""

    def work(number):
        data = body(20_000, number)
        store.put(f"t/{number:02}", data)
        assert store.get(f"t/{number:02}", start=100, length=500) == data[100:600]
        assert store.head(f"t/{number:02}").size == 20_000
        return f"t/{number:02}" in keys_of(store.list("t/"))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(32)))


def test_two_openings_see_the_same(place):
    """What one wrote the other reads: nothing is kept in the client."""
    kind, server, directory = place
    if kind == "simulated":
        pytest.skip("a simulated store is opened once, by its test")
    name = f"root-{next(_names)}"
    writer, reader = (store_of(kind, server, directory, name) for _ in range(2))
    writer.put("k", b"shared")
    writer.close()
    assert reader.get("k", start=0, length=6) == b"shared"
    deadline = time.monotonic() + 30
    while not reader.list("") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert keys_of(reader.list("")) == ["k"]
    reader.close()
