"""Every metadata store obeys one contract: each test runs on all of them."""

from __future__ import annotations

import threading

import pytest

from frazil.errors import Closed, Conflict, InvalidRequest
from frazil.metadata import (
    LIST_BYTES_MAX,
    NUMBER_MAX,
    VALUE_BYTES_MAX,
    Compare,
    LeaseEpoch,
    Transaction,
    entries,
)
from tests.contract.metadata_homes import (
    CountedHome,
    EtcdHome,
    ManualClock,
    MemoryHome,
    SqliteHome,
    swap,
)
from tests.servers.etcd import EtcdServer, need_etcd


@pytest.fixture(scope="module")
def etcd(tmp_path_factory):
    """Run one server for all tests of the module; each has keys of its own there."""
    need_etcd()
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        EtcdHome.server = server
        yield server


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture(
    params=[MemoryHome, SqliteHome, EtcdHome, CountedHome],
    ids=["memory", "sqlite", "etcd", "counted"],
)
def home(request, tmp_path, clock):
    if request.param is EtcdHome:
        request.getfixturevalue("etcd")
    home = request.param(tmp_path, clock)
    yield home
    home.store.close()


@pytest.fixture
def store(home):
    return home.store


def put(store, **values):
    return store.commit(Transaction(puts={f"/{key}": value for key, value in values.items()}))


# ------------------------------------------------------------------------------- entries


def test_get_returns_what_was_put(store):
    """A put key has its value, version 1 and the commit's revision."""
    revision = put(store, a=b"one")
    entry = store.get("/a")
    assert (entry.key, entry.value, entry.version, entry.mod_revision) == ("/a", b"one", 1, 1)
    assert revision == store.revision() == 1


def test_absent_key_is_none(store):
    """A key that was never put is None, and so is one whose name merely starts alike."""
    put(store, ab=b"")
    assert store.get("/a") is None
    assert store.get("/ab").value == b""


def test_versions_count_puts_and_start_again(store):
    """A version counts puts, starts at 1 again after a delete, and a mod_revision never repeats."""
    put(store, a=b"1")
    put(store, a=b"2")
    assert store.get("/a").version == 2
    store.commit(Transaction(deletes=("/a",)))
    put(store, a=b"3")
    assert (store.get("/a").version, store.get("/a").mod_revision) == (1, 4)


def test_revision_does_not_grow_without_change(store):
    """A transaction that changes nothing returns the revision of the last one that did."""
    put(store, a=b"1")
    assert store.commit(Transaction()) == 1
    assert store.commit(Transaction(deletes=("/nothing",))) == 1
    assert store.commit(Transaction(compares=(Compare("/a", version=1),))) == 1


def test_everything_survives_reopening(home):
    """Entries, revision and applied LSN are there after a restart."""
    home.store.commit(Transaction(puts={"/a": b"\x00\xff"}, applied={"j": 7}))
    put(home.store, a=b"2")
    store = home.reopen()
    assert (store.get("/a").value, store.get("/a").version) == (b"2", 2)
    assert (store.revision(), store.applied_lsn("j")) == (2, 7)
    assert put(store, b=b"") == 3


# ------------------------------------------------------------------------------ listings


def test_list_is_sorted_and_stays_in_the_prefix(store):
    """A listing has exactly the keys of the prefix, in code point order."""
    names = ["/a", "/a/", "/a/b", "/a/é", "/a/\U0010ffff", "/a0", "/b", "/a/B"]
    store.commit(Transaction(puts={name: name.encode() for name in names}))
    found = [entry.key for entry in store.list("/a/")]
    assert found == ["/a/", "/a/B", "/a/b", "/a/é", "/a/\U0010ffff"]
    assert [entry.key for entry in store.list("/a/\U0010ffff")] == ["/a/\U0010ffff"]
    assert [entry.key for entry in store.list("/")] == sorted(names)


def test_list_pages_follow_each_other(store):
    """Pages behind one another give every key once."""
    names = [f"/k/{number:03}" for number in range(25)]
    store.commit(Transaction(puts=dict.fromkeys(names, b"")))
    first = store.list("/k/", limit=10)
    assert [entry.key for entry in first] == names[:10]
    assert [entry.key for entry in store.list("/k/", limit=10, after="/k/009")] == names[10:20]
    assert [entry.key for entry in entries(store, "/k/", page_entries=10)] == names
    assert store.list("/k/", after="/k/024") == []


def test_page_before_the_prefix_starts_at_its_first_key(store):
    """An `after` below the prefix skips nothing."""
    put(store, b=b"")
    assert [entry.key for entry in store.list("/b", after="/a")] == ["/b"]


def test_large_values_make_a_page_shorter(store):
    """A page stays within its bytes, and following pages still give everything."""
    count = LIST_BYTES_MAX // VALUE_BYTES_MAX + 3
    for number in range(count):
        store.commit(Transaction(puts={f"/big/{number:02}": bytes(VALUE_BYTES_MAX)}))
    assert len(store.list("/big/")) == LIST_BYTES_MAX // VALUE_BYTES_MAX
    assert len(list(entries(store, "/big/"))) == count


def test_facts_about_the_store_are_not_listed(store):
    """Applied LSNs and leases are in no listing and under no key."""
    store.commit(Transaction(applied={"j": 1}))
    store.acquire("l", "h", 1)
    assert store.list("/") == []


# -------------------------------------------------------------------------- transactions


@pytest.mark.parametrize(
    "compare",
    [
        Compare.absent("/a"),
        Compare("/a", version=1),
        Compare("/b", version=1),
        Compare("/a", mod_revision=1),
        Compare("/b", mod_revision=2),
    ],
    ids=str,
)
def test_failed_compare_changes_nothing(store, compare):
    """A compare that does not hold is a Conflict that names the key, and nothing is applied."""
    put(store, a=b"1")
    put(store, a=b"2")
    holds = Compare("/a", version=2)
    with pytest.raises(Conflict) as caught:
        store.commit(
            Transaction(
                compares=(holds, compare),
                puts={"/c": b""},
                deletes=("/a",),
                applied={"j": 1},
            )
        )
    assert caught.value.details["key"] == compare.key
    assert (store.get("/a").value, store.get("/c"), store.revision()) == (b"2", None, 2)
    assert store.applied_lsn("j") is None


def test_compares_that_hold_let_the_transaction_through(store):
    """All three kinds of compare can hold at once."""
    put(store, a=b"1")
    compares = (
        Compare.absent("/b"),
        Compare("/a", version=1),
        Compare.unchanged(store.get("/a")),
    )
    assert store.commit(Transaction(compares=compares, puts={"/b": b""}, deletes=("/a",))) == 2
    assert store.get("/a") is None


def test_an_entry_that_was_read_is_replaced_once(store):
    """Of two writers that read the same entry, the second is refused; a recreated key as well."""
    swap(store, "/a", b"1", expected=None)
    with pytest.raises(Conflict):
        swap(store, "/a", b"other", expected=None)
    seen = store.get("/a")
    store.commit(Transaction(deletes=("/a",)))
    swap(store, "/a", b"1", expected=None)
    with pytest.raises(Conflict):
        swap(store, "/a", b"2", expected=seen)
    assert store.get("/a").value == b"1"


def test_threads_that_count_lose_no_step(store):
    """Concurrent compare-and-set from four threads adds up."""
    put(store, n=b"0")

    def count():
        done = 0
        while done < 10:
            seen = store.get("/n")
            try:
                swap(store, "/n", b"%d" % (int(seen.value) + 1), expected=seen)
                done += 1
            except Conflict:
                continue

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.get("/n").value == b"40"


def test_applied_lsn_never_goes_back(store):
    """An older LSN is a Conflict with nothing applied; the same one again is fine."""
    store.commit(Transaction(applied={"j": 5, "other": 1}))
    with pytest.raises(Conflict):
        store.commit(Transaction(puts={"/a": b""}, applied={"j": 4, "other": 2}))
    assert (store.applied_lsn("j"), store.applied_lsn("other")) == (5, 1)
    assert store.get("/a") is None
    store.commit(Transaction(applied={"j": 5}))
    store.commit(Transaction(applied={"j": NUMBER_MAX}))
    assert store.applied_lsn("j") == NUMBER_MAX
    assert store.applied_lsn("none") is None


# -------------------------------------------------------------------------------- limits


@pytest.mark.parametrize(
    "key",
    ["", "a", "!applied/j", "/" + "k" * 1024, "/é" * 400, "/a\n", "/a\0", "/\ud800", b"/a", None],
    ids=ascii,
)
def test_bad_keys_are_refused_everywhere(store, key):
    """A bad key is an InvalidRequest in every call that takes one."""
    for call in (
        lambda: store.get(key),
        lambda: store.list(key),
        lambda: store.commit(Transaction(puts={key: b""})),
        lambda: store.commit(Transaction(deletes=(key,))),
        lambda: store.commit(Transaction(compares=(Compare.absent(key),))),
    ):
        with pytest.raises(InvalidRequest):
            call()
    assert store.revision() == 0


@pytest.mark.parametrize(
    "transaction",
    [
        Transaction(puts={"/a": bytes(VALUE_BYTES_MAX + 1)}),
        Transaction(puts={"/a": bytearray(1)}),
        Transaction(puts={"/a": "text"}),
        Transaction(puts={f"/{number}": b"" for number in range(1001)}),
        Transaction(puts={f"/{number}": bytes(VALUE_BYTES_MAX) for number in range(8)}),
        Transaction(puts={"/a": b""}, deletes=("/a",)),
        Transaction(deletes=("/a", "/a")),
        Transaction(compares=(Compare("/a"),)),
        Transaction(compares=(Compare("/a", version=1, mod_revision=1),)),
        Transaction(applied={"": 1}),
        Transaction(applied={"j": -1}),
        Transaction(applied={"j": NUMBER_MAX + 1}),
        Transaction(applied={"j": 1.5}),
        Transaction(requires=LeaseEpoch("", 1)),
    ],
    ids=range(14),
)
def test_bad_transactions_are_refused(store, transaction):
    """A transaction beyond the limits is an InvalidRequest and changes nothing."""
    with pytest.raises(InvalidRequest):
        store.commit(transaction)
    assert (store.revision(), store.list("/")) == (0, [])


def test_limits_themselves_are_allowed(store):
    """The longest key, the largest value and the most operations work."""
    key = "/" + "k" * 1023
    value = b"v" * VALUE_BYTES_MAX
    store.commit(Transaction(puts={key: value}))
    assert store.get(key).value == value
    most = store.operations_max
    store.commit(Transaction(puts={f"/{number:04}": b"" for number in range(most)}))
    assert len(store.list("/0", limit=1000)) == most
    with pytest.raises(InvalidRequest):
        store.commit(Transaction(puts={f"/{number:04}": b"" for number in range(most + 1)}))
    piece = bytes(store.bytes_max // 16 - 2)
    many = {f"/{number:x}": piece for number in range(16)}
    store.commit(Transaction(puts=many))
    with pytest.raises(InvalidRequest):
        store.commit(Transaction(puts={**many, "/one": bytes(4)}))


def test_page_of_a_thousand_entries(store):
    """The longest page has a thousand entries, of one moment."""
    for first in range(0, 1000, 100):
        store.commit(
            Transaction(puts={f"/{number:04}": b"v" for number in range(first, first + 100)})
        )
    put(store, z=b"")
    page = store.list("/", limit=1000)
    assert [entry.key for entry in page] == [f"/{number:04}" for number in range(1000)]


@pytest.mark.parametrize("limit", [0, -1, 1001])
def test_list_limit_is_bounded(store, limit):
    """A page of no entries or of more than a thousand is refused."""
    with pytest.raises(InvalidRequest):
        store.list("/", limit=limit)


# -------------------------------------------------------------------------------- leases


def test_lease_is_held_by_one(store, clock):
    """A held lease is refused to others until it expires; then its epoch is higher."""
    lease = store.acquire("lake", "one", 10)
    assert store.held("lake") == lease
    with pytest.raises(Conflict) as caught:
        store.acquire("lake", "two", 10)
    assert caught.value.details["holder"] == "one"
    clock.seconds += 10
    assert store.held("lake") is None
    assert store.acquire("lake", "two", 10).epoch > lease.epoch


def test_renewed_lease_lasts_on(store, clock):
    """A renewal counts from now; an expired lease cannot be renewed, even if nobody took it."""
    lease = store.acquire("lake", "one", 10)
    clock.seconds += 9
    lease = store.renew(lease)
    clock.seconds += 9
    assert store.held("lake") == lease
    clock.seconds += 1
    with pytest.raises(Conflict):
        store.renew(lease)


def test_acquiring_again_fences_the_earlier_self(store):
    """The same holder gets a new epoch, and its old lease neither renews nor releases."""
    first = store.acquire("lake", "one", 10)
    second = store.acquire("lake", "one", 10)
    assert second.epoch > first.epoch
    with pytest.raises(Conflict):
        store.renew(first)
    store.release(first)
    assert store.held("lake") == second


def test_released_lease_is_free(store):
    """A released lease can be taken at once, by a higher epoch."""
    lease = store.acquire("lake", "one", 10)
    store.release(lease)
    store.release(lease)
    assert store.held("lake") is None
    assert store.acquire("lake", "two", 10).epoch == lease.epoch + 1


def test_epochs_grow_over_restarts(home):
    """Nobody holds a lease after a restart, and the next epoch is higher than all before."""
    old = home.store.acquire("lake", "one", 10)
    store = home.reopen()
    assert store.held("lake") is None
    with pytest.raises(Conflict):
        store.renew(old)
    assert store.acquire("lake", "two", 10).epoch == old.epoch + 1


def test_epoch_can_be_raised_above_what_was_seen(store):
    """An epoch known from elsewhere is exceeded."""
    assert store.acquire("lake", "one", 10, epoch_above=41).epoch == 42
    assert store.acquire("lake", "one", 10, epoch_above=5).epoch == 43


def test_stale_epoch_is_fenced(store, clock):
    """A transaction under a lease works while it is held and is refused after, changing nothing."""
    lease = store.acquire("lake", "one", 10)
    under = Transaction(puts={"/a": b"1"}, requires=LeaseEpoch("lake", lease.epoch))
    store.commit(under)
    clock.seconds += 10
    with pytest.raises(Conflict):
        store.commit(under)
    store.acquire("lake", "two", 10)
    with pytest.raises(Conflict):
        store.commit(under)
    with pytest.raises(Conflict):
        store.commit(Transaction(requires=LeaseEpoch("other", 1)))
    assert store.get("/a").version == 1


@pytest.mark.parametrize(
    ("name", "holder", "ttl_s"),
    [("", "h", 1), ("n" * 257, "h", 1), ("n", "", 1), ("n", "h", 0), ("n", "h", 1e9)],
)
def test_bad_leases_are_refused(store, name, holder, ttl_s):
    """A lease without a name, a holder or a sensible time is an InvalidRequest."""
    with pytest.raises(InvalidRequest):
        store.acquire(name, holder, ttl_s)


# --------------------------------------------------------------------------------- close


def test_closed_store_refuses_every_call(store):
    """After close every method raises Closed, and close itself is fine again."""
    lease = store.acquire("lake", "one", 10)
    store.close()
    store.close()
    for call in (
        lambda: store.get("/a"),
        lambda: store.list("/"),
        lambda: store.commit(Transaction()),
        store.revision,
        lambda: store.applied_lsn("j"),
        lambda: store.acquire("lake", "one", 10),
        lambda: store.renew(lease),
        lambda: store.release(lease),
        lambda: store.held("lake"),
    ):
        with pytest.raises(Closed):
            call()
