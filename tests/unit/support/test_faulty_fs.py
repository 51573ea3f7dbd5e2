"""The file system that fails on purpose."""

from __future__ import annotations

import errno

import pytest

from tests.support import ERRNOS, VERBS, Call, Fault, FaultyFileSystem, SimulatedFileSystem


def faulty(*plan):
    inner = SimulatedFileSystem()
    inner.make_directory("/data")
    inner.write_bytes("/data/a", b"bytes")
    return FaultyFileSystem(inner, plan)


def use(file_system, verb):
    """Make one call of `verb` that works when no fault is planned."""
    if verb in {"read_at", "write_at", "sync", "truncate", "size", "close"}:
        file = file_system.open("/data/a", "write")
        arguments = {"read_at": (0, 1), "write_at": (0, [b"x"]), "truncate": (9,)}
        getattr(file, verb)(*arguments.get(verb, ()))
        return
    arguments = {
        "open": ("/data/a", "read"),
        "rename": ("/data/a", "/data/b"),
        "make_directory": ("/data/c",),
        "list_directory": ("/data",),
        "sync_directory": ("/data",),
        "allocate": ("/data/d", 10),
        "lock": ("/data/LOCK", "me"),
    }
    getattr(file_system, verb)(*arguments.get(verb, ("/data/a",)))


@pytest.mark.parametrize("error", ERRNOS, ids=errno.errorcode.get)
@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_fails_with_each_error(verb, error):
    """The planned call fails with the planned error and has no effect on names and bytes."""
    file_system = faulty(Fault(verb, error=error))
    with pytest.raises(OSError, match="injected") as raised:
        use(file_system, verb)
    assert raised.value.errno == error
    assert file_system.fired == 1
    assert file_system.inner.read_bytes("/data/a") == b"bytes"
    assert file_system.inner.list_directory("/data") == ["a"]
    assert file_system.trace[-1].verb == verb


def test_the_nth_call_fails_once():
    """A fault of one shot hits exactly the n-th call."""
    file_system = faulty(Fault("stat", nth=3))
    outcomes = []
    for _ in range(5):
        try:
            file_system.stat("/data/a")
            outcomes.append("ok")
        except OSError:
            outcomes.append("failed")
    assert outcomes == ["ok", "ok", "failed", "ok", "ok"]


def test_a_persistent_fault_goes_on():
    """A persistent fault hits the n-th call and all later ones."""
    file_system = faulty(Fault("stat", nth=2, persistent=True))
    file_system.stat("/data/a")
    for _ in range(3):
        with pytest.raises(OSError):
            file_system.stat("/data/a")
    assert file_system.fired == 3


def test_only_matching_paths_count():
    """A fault with a path neither hits nor counts the calls on others, but any end of a rename."""
    file_system = faulty(Fault("stat", path_part="-journal"), Fault("rename", path_part="/b"))
    file_system.stat("/data/a")
    with pytest.raises(OSError):
        file_system.stat("/data/x-journal")
    with pytest.raises(OSError):
        file_system.rename("/data/a", "/data/b")


def test_the_trace_has_all_calls():
    """Each call is recorded with its path, in order."""
    file_system = faulty()
    file = file_system.open("/data/a", "write")
    file.write_at(0, [b"x"])
    file.sync()
    file.close()
    assert file_system.trace == [
        Call("open", "/data/a"),
        Call("write_at", "/data/a"),
        Call("sync", "/data/a"),
        Call("close", "/data/a"),
    ]


def test_a_failed_close_releases_the_file():
    """The descriptor is gone although close failed."""
    file_system = faulty(Fault("close"))
    file = file_system.open("/data/a", "read")
    with pytest.raises(OSError):
        file.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.read_at(0, 1)


def test_a_second_sync_after_a_failed_one_is_counted():
    """A retried sync shows, by the same handle, by another, and after a rename."""
    file_system = faulty(Fault("sync"))
    file = file_system.open("/data/a", "write")
    with pytest.raises(OSError):
        file.sync()
    assert file_system.sync_retried == 0
    file.sync()
    assert file_system.sync_retried == 1
    file_system.rename("/data/a", "/data/b")
    file_system.open("/data/b", "write").sync()
    assert file_system.sync_retried == 2
    file_system.open("/data/a", "create").sync()
    assert file_system.sync_retried == 2


def test_a_new_file_over_a_failed_one_is_not_a_retry():
    """Syncing a file that was renamed over the failed one retries nothing."""
    file_system = faulty(Fault("sync"))
    with pytest.raises(OSError):
        file_system.open("/data/a", "write").sync()
    file_system.open("/data/new", "create").sync()
    file_system.rename("/data/new", "/data/a")
    file_system.open("/data/a", "write").sync()
    assert file_system.sync_retried == 0


def test_a_write_after_a_failed_sync_is_counted():
    """Writes and truncates through the failed handle show, those through a new one do not."""
    file_system = faulty(Fault("sync"))
    file = file_system.open("/data/a", "write")
    file.write_at(0, [b"x"])
    with pytest.raises(OSError):
        file.sync()
    file_system.open("/data/a", "write").write_at(0, [b"y"])
    assert file_system.writes_after_failed_sync == 0
    file.write_at(0, [b"z"])
    file.truncate(0)
    assert file_system.writes_after_failed_sync == 2


def test_after_a_failed_sync_the_bytes_never_become_durable():
    """Readers see what a failed sync lost; a retried sync reports success and saves nothing."""
    file_system = faulty(Fault("sync"))
    file = file_system.open("/data/a", "write")
    file.write_at(0, [b"X" * 2000])
    with pytest.raises(OSError):
        file.sync()
    file.sync()
    assert file.read_at(0, 3000) == b"X" * 2000
    for seed in range(50):
        assert file_system.inner.crash_clone(seed).read_bytes("/data/a") == b"bytes"
    file.write_at(0, [b"Y" * 2000])
    file.sync()
    assert file_system.inner.crash_clone(1).read_bytes("/data/a") == b"Y" * 2000


@pytest.mark.parametrize(("short", "moved"), [("one", 1), ("half", 5)])
def test_short_calls_move_less(short, moved):
    """A short write or read moves one byte or half of them, and the rest stays."""
    file_system = faulty(Fault("write_at", short=short), Fault("read_at", short=short))
    file = file_system.open("/data/a", "write")
    assert file.write_at(0, [b"01234", b"56789"]) == moved
    assert file.read_at(0, 10) == b"0123456789"[:moved]
    assert file.read_at(0, 10) == (b"0123456789"[:moved] + b"bytes"[moved:])


def test_only_reads_and_writes_can_be_short():
    """A plan that makes no sense is refused."""
    with pytest.raises(ValueError, match="short"):
        Fault("sync", short="one")
