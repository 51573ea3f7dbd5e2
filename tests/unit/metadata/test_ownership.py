"""Who owns a broker's data: epochs that grow, deadlines that hold, and what fences."""

from __future__ import annotations

import pytest

from frazil.config import Settings
from frazil.engine import Engine
from frazil.errors import Closed, Conflict, Unavailable
from frazil.fs import RealFileSystem
from frazil.metadata import LeaseEpoch, MemoryStore, Transaction
from frazil.metadata.ownership import LEASE, Ownership, holder_of
from frazil.topic import SUBSCRIPTIONS, StateTag, cursor_path
from tests.support import SimulatedClock, SimulatedFileSystem

TTL_S = 10.0


class Clock(SimulatedClock):
    """A clock that stands until it is moved."""

    seconds = 100.0

    def monotonic(self):
        return self.seconds


class Shaky(MemoryStore):
    """A store that can be out of reach."""

    down = False

    def renew(self, lease):
        if self.down:
            raise Unavailable("no answer")
        return super().renew(lease)

    def acquire(self, *words, **more):
        if self.down:
            raise Unavailable("no answer")
        return super().acquire(*words, **more)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(clock):
    return Shaky(clock=clock)


@pytest.fixture
def owner(store, clock):
    """An owner with a deadline whose thread does nothing: the tests call `keep`."""
    owner = Ownership(store, clock, holder="one", ttl_s=TTL_S)
    owner._run = lambda: None
    owner.take(epoch_above=6)
    yield owner
    owner.stop()


def test_epoch_is_above_what_is_known_and_in_every_requirement(owner):
    """The first epoch exceeds those known from elsewhere, and transactions require it."""
    assert owner.epoch == 7
    assert owner.requires() == LeaseEpoch(LEASE, 7)


def test_past_the_deadline_nothing_may_be_written(owner, clock):
    """The owner stops a margin before the lease ends for others, and a renewal moves that."""
    clock.seconds += TTL_S * 0.79
    assert owner.may_write()
    clock.seconds += TTL_S * 0.02
    assert not owner.may_write()
    owner.keep()
    assert owner.may_write()
    assert owner.epoch == 7


def test_store_that_is_down_leaves_the_deadline_and_recovers(owner, store, clock):
    """While the store is down the deadline stands; when it is back the owner goes on."""
    calls = []
    owner.on_epoch = calls.append
    store.down = True
    with pytest.raises(Unavailable):
        owner.keep()
    assert owner.may_write()
    clock.seconds += TTL_S * 2
    with pytest.raises(Unavailable):
        owner.keep()
    assert not owner.may_write()
    store.down = False
    owner.keep()
    assert owner.may_write()
    assert (owner.epoch, calls, owner.fenced) == (8, [8], None)


@pytest.mark.parametrize("gone", [False, True])
def test_owner_that_another_followed_is_fenced_for_good(owner, store, clock, gone):
    """Another's epoch in between fences the owner, whether or not the other is still there."""
    calls = []
    owner.on_fenced = calls.append
    clock.seconds += TTL_S
    other = store.acquire(LEASE, "two", TTL_S)
    if gone:
        store.release(other)
    with pytest.raises(Closed):
        owner.keep()
    assert not owner.may_write()
    assert calls == [owner.fenced]
    assert owner.fenced.details["epoch"] == 7
    clock.seconds += TTL_S
    assert not owner.may_write()


def test_own_attempts_without_an_answer_do_not_fence(owner, store, clock):
    """Epochs that the owner itself was given without hearing of it are not another's."""
    clock.seconds += TTL_S
    store.acquire(LEASE, "one", TTL_S)
    store.acquire(LEASE, "one", TTL_S)
    owner.keep()
    assert (owner.epoch, owner.fenced) == (10, None)


def test_lease_of_another_is_waited_for_and_then_refused(store, clock):
    """An owner who lives keeps a second one out; one who died makes way when its time is over."""
    store.acquire(LEASE, "two", TTL_S)
    second = Ownership(store, clock, holder="one", ttl_s=TTL_S)
    second._run = lambda: None
    waits = []

    def wait(seconds):
        waits.append(seconds)
        clock.seconds += 1
        return False

    second._stopping.wait = wait
    assert second.take(epoch_above=0) == 2
    assert len(waits) == TTL_S
    second.stop()
    stubborn = store.acquire(LEASE, "two", 1000)
    third = Ownership(store, clock, holder="one", ttl_s=TTL_S)
    third._stopping.wait = wait
    with pytest.raises(Conflict):
        third.take(epoch_above=0)
    assert store.held(LEASE) == stubborn


def test_lease_without_a_deadline_lasts_as_long_as_it_is_used(store, clock):
    """On one machine the lease is renewed by use, and taken anew after days without any."""
    owner = Ownership(store, clock, holder="one", ttl_s=None)
    assert owner.requires() is None
    owner.take(epoch_above=0)
    for _ in range(5):
        clock.seconds += 80_000
        store.commit(Transaction(puts={"/a": b""}, requires=owner.requires()))
    assert owner.epoch == 1
    clock.seconds += 200_000
    assert owner.may_write()
    store.commit(Transaction(puts={"/a": b""}, requires=owner.requires()))
    assert owner.epoch == 2


def test_holder_is_the_same_for_the_same_file_only(tmp_path):
    """A later self of a directory has the same name as its owner, and nobody else has."""
    files = RealFileSystem()
    clock = SimulatedClock()
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"")
    first = holder_of(files, str(tmp_path / "a"), clock)
    assert first == holder_of(files, str(tmp_path / "a"), clock)
    assert first != holder_of(files, str(tmp_path / "b"), clock)
    unknown = [holder_of(files, str(tmp_path / "c"), clock) for _ in range(2)]
    assert len({first, *unknown}) == 3


def settings(**more):
    return Settings(
        data_dir="/data",
        memory={"enabled": False},
        log={"ballast_bytes": 0, "free_bytes_min": 0, "free_ratio_min": 0},
        objects={"store": "memory", "root": "test"},
        **more,
    )


def test_epoch_outlives_the_metadata():
    """The journal remembers the epoch: with lost metadata the next one is higher still."""
    disk = SimulatedFileSystem()
    clock = SimulatedClock()
    epochs = []
    for backend in ("sqlite", "sqlite", "memory", "memory"):
        engine = Engine(
            settings(metadata={"backend": backend}), file_system=disk, clock=clock, threads=False
        )
        epochs.append(engine.ownership.epoch)
        values = engine.log.journal.state.values
        assert values[StateTag.EPOCH, LEASE] == b"%d" % epochs[-1]
        engine.close()
    assert epochs == [1, 2, 3, 4]


def test_journal_whose_owner_may_be_another_writes_and_answers_nothing():
    """Before the write it is Unavailable and nothing happens; after the sync it is unknown."""
    disk = SimulatedFileSystem()
    engine = Engine(settings(), file_system=disk, clock=SimulatedClock(), threads=False)
    engine.create_topic("t", {"v": "long"})
    journal = engine.log.journal
    position, answers = journal.active.body_end, [False]
    journal.fence = lambda: answers.pop(0)
    with pytest.raises(Unavailable) as caught:
        engine.append("t", {"v": 1})
    assert "outcome" not in caught.value.details
    assert journal.active.body_end == position
    answers += [True, False]
    with pytest.raises(Unavailable) as caught:
        engine.append("t", {"v": 2})
    assert caught.value.details["outcome"] == "unknown"
    answers += [True, True]
    assert engine.append("t", {"v": 3}).offset == 1
    journal.fence = None
    found = [row["v"] for batch in engine.topic("t").read() for row in batch.data.to_pylist()]
    assert found == [2, 3]
    engine.close()


@pytest.mark.parametrize(
    ("subscription", "path"),
    [
        ("plain", "plain/default/t"),
        ("a/b%c\n", "a%2Fb%25c%0A/default/t"),
        ("é" * 126, None),
    ],
)
def test_paths_of_cursors(subscription, path):
    """A path has the names as they are where they fit, escaped or as a digest where not."""
    found = cursor_path(subscription, "/default/t").removeprefix(SUBSCRIPTIONS)
    assert found == path or (path is None and found.startswith("%sha256-"))
    assert found.endswith("/default/t")
    assert found.count("/") == 2
