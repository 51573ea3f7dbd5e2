"""A real etcd that is killed, paused, compacted, protected and shared, behind the metadata store."""

from __future__ import annotations

import contextlib
import threading
import time

import pytest

from frazil.clock import SystemClock
from frazil.errors import Closed, Conflict, CorruptionError, InvalidRequest, Unavailable
from frazil.metadata import Compare, LeaseEpoch, Transaction, entries
from frazil.metadata.etcd import EtcdStore
from frazil.metadata.proto import etcd_pb2 as wire
from tests.servers.etcd import EtcdServer, need_etcd
from tests.servers.running import free_port
from tests.unit.serve.auth.certificates import write_certificate

pytestmark = pytest.mark.integration

WAIT_S = 60


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Run one server for the module; a test that stops it starts it again."""
    need_etcd()
    with EtcdServer(tmp_path_factory.mktemp("etcd")) as server:
        yield server


@pytest.fixture
def prefix(request):
    return f"/{request.node.name}"


@pytest.fixture
def opened(server, prefix):
    """Open stores that share their keys; all are closed at the end."""
    with contextlib.ExitStack() as stack:

        def open_store(**changes):
            settings = server.settings(**{"prefix": prefix, "timeout_s": 20, **changes})
            return stack.enter_context(
                contextlib.closing(EtcdStore.open(settings, clock=SystemClock()))
            )

        yield open_store


def put(store, key, value, **more):
    return store.commit(Transaction(puts={key: value}, **more))


def wait_until(holds):
    deadline = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def working(call):
    """Call until the server answers again."""

    def answers():
        try:
            call()
        except Unavailable:
            return False
        return True

    wait_until(answers)


# -- stores that share keys ----------------------------------------------------------------------


def test_two_stores_of_one_prefix_see_each_other(opened):
    """What one commits the other reads, with the same versions and revisions."""
    one, two = opened(), opened()
    revision = put(one, "/a", b"1")
    assert two.get("/a") == one.get("/a")
    assert two.get("/a").mod_revision == revision == two.revision()
    assert one.id == two.id


def test_stores_of_two_prefixes_do_not(opened, prefix):
    """Keys, facts and leases under one prefix are not there under another."""
    one, two = opened(), opened(prefix=f"{prefix}0")
    put(one, "/a", b"1", applied={"j": 3})
    one.acquire("l", "h", 30)
    assert (two.list("/"), two.applied_lsn("j")) == ([], None)
    assert two.held("l") is None
    assert one.id != two.id


def test_numbers_that_another_has_raised_are_seen(opened):
    """A store that remembers an older applied LSN goes on behind the other's, and never below."""
    one, two = opened(), opened()
    one.commit(Transaction(applied={"j": 1}))
    two.commit(Transaction(applied={"j": 5}))
    with pytest.raises(Conflict):
        one.commit(Transaction(applied={"j": 4}))
    one.commit(Transaction(applied={"j": 6}))
    assert two.applied_lsn("j") == 6


def test_keys_of_others_are_not_ours(server, prefix, opened):
    """A place that something else uses is refused, and one of a newer Frazil as well."""
    for value, error in (("junk", CorruptionError), ('{"format": 2, "id": "x"}', InvalidRequest)):
        server.control("put", f"{prefix}!store", value)
        with pytest.raises(error):
            opened()
    server.control("del", f"{prefix}!store")


def test_store_that_was_removed_is_closed(server, prefix, opened):
    """A commit into a store that somebody deleted is Closed, and nothing of it is there."""
    store = opened()
    put(store, "/a", b"1")
    server.control("del", prefix, "--prefix")
    with pytest.raises(Closed):
        put(store, "/a", b"2")
    assert server.control("get", prefix, "--prefix") == ""


# -- leases --------------------------------------------------------------------------------------


def test_lease_ends_by_the_servers_clock(opened):
    """A holder that is silent loses the lease to the next, whose epoch is higher and fences it."""
    one, two = opened(), opened()
    lost = one.acquire("broker", "one", 2)
    with pytest.raises(Conflict) as caught:
        two.acquire("broker", "two", 2)
    assert caught.value.details["holder"] == "one"
    found = two.held("broker")
    assert (found.holder, found.epoch, found.since) == ("one", lost.epoch, lost.epoch)
    wait_until(lambda: two.held("broker") is None)
    taken = two.acquire("broker", "two", 30)
    assert (taken.epoch, taken.since) == (lost.epoch + 1, lost.epoch + 1)
    stale = Transaction(puts={"/a": b"stale"}, requires=LeaseEpoch("broker", lost.epoch))
    for refused in (lambda: one.renew(lost), lambda: one.commit(stale), lambda: two.commit(stale)):
        with pytest.raises(Conflict):
            refused()
    two.commit(Transaction(puts={"/a": b"new"}, requires=LeaseEpoch("broker", taken.epoch)))
    assert one.get("/a").value == b"new"


def test_renewed_lease_outlives_its_time(opened):
    """A lease that is renewed is held for longer than it was given for."""
    one, two = opened(), opened()
    lease = one.acquire("broker", "one", 2)
    until = time.monotonic() + 4
    while time.monotonic() < until:
        lease = one.renew(lease)
        time.sleep(0.3)
    assert two.held("broker").epoch == lease.epoch == 1


def test_holder_that_acquires_elsewhere_fences_itself_here(opened):
    """The same holder in another process gets the next epoch at once; the first is refused."""
    one, two = opened(), opened()
    first = one.acquire("broker", "one", 30)
    second = two.acquire("broker", "one", 30)
    assert (second.epoch, second.since) == (first.epoch + 1, first.epoch)
    with pytest.raises(Conflict):
        one.renew(first)
    one.release(first)
    assert two.held("broker").epoch == second.epoch


def test_closed_store_gives_its_leases_back(opened):
    """After a close in good order the next holder need not wait."""
    one, two = opened(), opened()
    one.acquire("broker", "one", 600)
    one.close()
    assert two.acquire("broker", "two", 600).epoch == 2


# -- servers that stop ---------------------------------------------------------------------------


def test_killed_server_comes_back_without_reopening(server, opened):
    """While it is down calls are Unavailable, reads and commits alike; then all works again."""
    store = opened(timeout_s=2)
    put(store, "/a", b"1", applied={"j": 1})
    server.kill()
    for call in (lambda: store.get("/a"), lambda: put(store, "/a", b"2"), store.revision):
        with pytest.raises(Unavailable):
            call()
    server.start()
    working(lambda: store.get("/a"))
    working(lambda: put(store, "/a", b"3", applied={"j": 2}))
    assert (store.get("/a").value, store.applied_lsn("j")) == (b"3", 2)


def test_server_that_is_not_there_is_reported_with_the_setting(server):
    """An endpoint that nobody listens on, and one that is no URL, name the setting."""
    port = free_port()
    settings = server.settings(endpoints=f"http://127.0.0.1:{port}", timeout_s=1)
    with pytest.raises(Unavailable) as caught:
        EtcdStore.open(settings, clock=SystemClock())
    assert "metadata.etcd.endpoints" in str(caught.value)
    for wrong in ("", "ftp://host:1", "http://:80", "http://host:port"):
        with pytest.raises(InvalidRequest) as refused:
            EtcdStore.open(server.settings(endpoints=wrong), clock=SystemClock())
        assert "metadata.etcd.endpoints" in str(refused.value)


def test_paused_server_leaves_the_outcome_unknown(server, opened):
    """A commit to a server that hangs is unknown; after it nothing older can overtake."""
    store = opened(timeout_s=1)
    put(store, "/a", b"0")
    server.pause()
    try:
        with pytest.raises(Unavailable) as caught:
            put(store, "/a", b"late")
        assert caught.value.details["outcome"] == "unknown"
        with pytest.raises(Unavailable) as unread:
            store.get("/a")
        assert "outcome" not in unread.value.details
    finally:
        server.resume()
    working(lambda: put(store, "/a", b"1"))
    seen = store.get("/a")
    assert seen.value == b"1"
    time.sleep(1)
    assert store.get("/a") == seen


def test_transaction_that_comes_late_is_refused(opened):
    """A commit whose answer was lost and that reaches the server after the next has no effect."""
    store, other = opened(), opened()
    put(store, "/a", b"0")
    servers = store._servers
    change, late = servers.change, []

    def lose(method, request, response, **more):
        late.append(request)
        raise Unavailable("lost", outcome="unknown")

    servers.change = lose
    with pytest.raises(Unavailable):
        put(store, "/a", b"late")
    servers.change = change
    put(store, "/a", b"1")
    answer = change("KV/Txn", late[0], wire.TxnResponse)
    assert not answer.succeeded
    assert store.get("/a").value == b"1"
    # Another store did not know of the new ticket and goes on all the same.
    put(other, "/a", b"2")
    assert store.get("/a").value == b"2"


def test_other_servers_are_asked_when_one_is_gone(server, opened):
    """With one endpoint of two dead, or hanging, reads, commits and leases work."""
    port = free_port()
    store = opened(endpoints=f"127.0.0.1:{port}, {server.endpoint}")
    lease = store.acquire("l", "h", 30)
    put(store, "/a", b"1", requires=LeaseEpoch("l", store.renew(lease).epoch))
    assert store.get("/a").value == b"1"


def test_page_over_a_compaction_is_shorter_not_wrong(server, opened):
    """A listing whose moment is compacted half way gives all keys over its pages."""
    store = opened()
    keys = [f"/k/{number:03}" for number in range(100)]
    store.commit(Transaction(puts=dict.fromkeys(keys, b"x")))
    read = store._servers.read
    asked = []

    def compacting(method, request, response):
        if method == "KV/Range" and request.revision and not asked:
            asked.append(request)
            put(store, "/other", b"")
            put(store, "/other", b"")
            server.control("compact", str(request.revision + 1))
        return read(method, request, response)

    store._servers.read = compacting
    assert [entry.key for entry in entries(store, "/k/")] == keys
    assert asked


# -- access --------------------------------------------------------------------------------------


def test_user_and_password(tmp_path):
    """With access control only the right password works, and a token that ended is renewed."""
    need_etcd()
    with EtcdServer(tmp_path) as server:
        server.control("user", "add", "root:secret")
        server.control("user", "grant-role", "root", "root")
        server.control("auth", "enable")
        for user, password in (("", ""), ("root", "wrong")):
            with pytest.raises(InvalidRequest) as caught:
                EtcdStore.open(server.settings(user=user, password=password), clock=SystemClock())
            assert "metadata.etcd.user" in str(caught.value)
            assert "wrong" not in str(caught.value)
        settings = server.settings(user="root", password="secret", timeout_s=20)
        with contextlib.closing(EtcdStore.open(settings, clock=SystemClock())) as store:
            put(store, "/a", b"1")
            store._servers._token = "ended"
            put(store, "/a", b"2", compares=(Compare("/a", version=1),))
            store._servers._token = "ended"
            lease = store.acquire("l", "h", 30)
            store.renew(lease)
            put(store, "/b", b"")
            assert store.get("/b").value == b""


def test_certificates(tmp_path):
    """Over TLS the servers' certificate is checked and the broker shows its own."""
    need_etcd()
    certificate, key = write_certificate(tmp_path)
    with EtcdServer(tmp_path / "etcd", tls=(certificate, certificate, key)) as server:
        files = {"ca_file": certificate, "cert_file": certificate, "key_file": key}
        good = {name: str(path) for name, path in files.items()}
        settings = server.settings(timeout_s=20, **good)
        with contextlib.closing(EtcdStore.open(settings, clock=SystemClock())) as store:
            put(store, "/a", b"1")
            assert store.get("/a").value == b"1"
        for lacking in ("ca_file", "cert_file"):
            wrong = {**good, lacking: ""} | ({"key_file": ""} if lacking == "cert_file" else {})
            with pytest.raises(Unavailable):
                EtcdStore.open(server.settings(timeout_s=2, **wrong), clock=SystemClock())
        for bad in ({"key_file": ""}, {"ca_file": str(tmp_path / "none.pem")}):
            with pytest.raises(InvalidRequest) as caught:
                EtcdStore.open(server.settings(**{**good, **bad}), clock=SystemClock())
            assert "metadata.etcd." in str(caught.value)


def test_calls_that_cross_a_close_are_closed(opened):
    """Threads that read while the store is closed get Closed or Unavailable, never a bug."""
    store = opened()
    ended = []

    def read():
        try:
            while True:
                store.get("/a")
        except (Closed, Unavailable) as error:
            ended.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    store.close()
    for thread in threads:
        thread.join(WAIT_S)
    assert len(ended) == 4
    with pytest.raises(Closed):
        store.get("/a")
