"""Every file system of the seam obeys one suite."""

from __future__ import annotations

import errno
import random
from typing import NamedTuple

import pytest

from frazil.fs import (
    IOV_MAX,
    FileSystem,
    LockTaken,
    RealFileSystem,
    read_fully,
    write_fully,
)
from tests.support import Fault, FaultyFileSystem, SimulatedFileSystem


class Place(NamedTuple):
    """A file system and an empty directory on it."""

    file_system: FileSystem
    root: str

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def write(self, name: str, data: bytes) -> str:
        file = self.file_system.open(self.path(name), "create")
        write_fully(file, 0, [data])
        file.close()
        return self.path(name)

    def read(self, name: str) -> bytes:
        file = self.file_system.open(self.path(name), "read")
        try:
            return read_fully(file, 0, file.size())
        finally:
            file.close()


@pytest.fixture(params=["real", "simulated", "faulty"])
def place(request, tmp_path):
    if request.param == "real":
        return Place(RealFileSystem(), str(tmp_path))
    simulated = SimulatedFileSystem()
    simulated.make_directory("/data")
    if request.param == "simulated":
        return Place(simulated, "/data")
    return Place(FaultyFileSystem(simulated), "/data")


def test_written_bytes_are_read_back(place):
    """A new file is empty and then holds what was written, also for another handle."""
    file = place.file_system.open(place.path("a"), "create")
    assert file.size() == 0
    assert file.write_at(0, [b"hello", b" ", b"world"]) == 11
    assert file.size() == 11
    assert file.read_at(6, 5) == b"world"
    file.close()
    assert place.read("a") == b"hello world"


def test_create_is_exclusive(place):
    """Creating a file that exists fails and leaves its bytes."""
    place.write("a", b"first")
    with pytest.raises(FileExistsError):
        place.file_system.open(place.path("a"), "create")
    assert place.read("a") == b"first"


@pytest.mark.parametrize("mode", ["read", "write"])
def test_opening_nothing_fails(place, mode):
    """Only `create` makes a file."""
    with pytest.raises(FileNotFoundError):
        place.file_system.open(place.path("a"), mode)
    with pytest.raises(FileNotFoundError):
        place.file_system.open(place.path("absent/a"), "create")
    assert place.file_system.list_directory(place.root) == []


def test_a_file_opened_for_reading_cannot_be_changed(place):
    """Writes through a reading handle fail."""
    file = place.file_system.open(place.write("a", b"bytes"), "read")
    with pytest.raises(OSError, match="Bad file descriptor"):
        file.write_at(0, [b"x"])
    with pytest.raises(OSError):
        file.truncate(0)
    file.close()
    assert place.read("a") == b"bytes"


def test_a_closed_file_is_refused(place):
    """Every use of a closed handle fails, and closing twice is fine."""
    file = place.file_system.open(place.write("a", b"bytes"), "write")
    file.close()
    file.close()
    for use in (
        lambda: file.read_at(0, 1),
        lambda: file.write_at(0, [b"x"]),
        file.size,
        file.sync,
        lambda: file.truncate(0),
    ):
        with pytest.raises(OSError) as raised:
            use()
        assert raised.value.errno == errno.EBADF


def test_reads_stop_at_the_end(place):
    """A read across the end is short and one behind it is empty."""
    file = place.file_system.open(place.write("a", b"0123456789"), "read")
    assert file.read_at(8, 100) == b"89"
    assert file.read_at(10, 1) == b""
    assert file.read_at(10_000, 1) == b""
    assert file.read_at(0, 0) == b""


def test_holes_read_as_zeroes(place):
    """What lies between the old end and a write behind it is zero."""
    file = place.file_system.open(place.write("a", b"abc"), "write")
    write_fully(file, 5000, [b"z"])
    assert file.size() == 5001
    assert file.read_at(0, 6000) == b"abc" + bytes(4997) + b"z"


def test_more_buffers_than_one_call_takes_are_all_written(place):
    """A vectored write of any number of buffers ends up whole and in order."""
    buffers = [bytes([index % 251]) * (index % 7) for index in range(2 * IOV_MAX + 100)]
    file = place.file_system.open(place.path("a"), "create")
    assert file.write_at(0, buffers) < len(b"".join(buffers))
    assert write_fully(file, 3, buffers) == len(b"".join(buffers))
    assert file.read_at(3, 1 << 20) == b"".join(buffers)


def test_any_buffer_can_be_written(place):
    """Bytes, bytearrays and memoryviews go through alike; empty ones are skipped."""
    file = place.file_system.open(place.path("a"), "create")
    assert write_fully(file, 0, [b"", bytearray(b"a"), memoryview(b"xbx")[1:2], b"", b"c"]) == 3
    assert write_fully(file, 3, []) == 0
    assert write_fully(file, 3, [b""]) == 0
    file.close()
    assert place.read("a") == b"abc"


def test_truncate_cuts_and_extends_with_zeroes(place):
    """What a truncate cut off does not come back when the file grows again."""
    file = place.file_system.open(place.write("a", b"x" * 1500), "write")
    file.truncate(700)
    assert file.size() == 700
    file.truncate(1500)
    assert file.read_at(0, 2000) == b"x" * 700 + bytes(800)
    file.truncate(0)
    write_fully(file, 10, [b"y"])
    assert file.read_at(0, 2000) == bytes(10) + b"y"


def test_random_changes_equal_a_bytearray(place):
    """Any sequence of writes, truncates and reads gives what a bytearray gives."""
    chance = random.Random(7)
    file = place.file_system.open(place.path("a"), "create")
    model = bytearray()
    for _ in range(400):
        position = chance.randrange(4000)
        if chance.random() < 0.2:
            file.truncate(position)
            model = model[:position] + bytes(max(0, position - len(model)))
        else:
            data = chance.randbytes(chance.choice((1, 100, 512, 1024, 3000)))
            write_fully(file, position, [data])
            model += bytes(max(0, position + len(data) - len(model)))
            model[position : position + len(data)] = data
        start = chance.randrange(5000)
        assert file.read_at(start, 900) == model[start : start + 900]
        assert file.size() == len(model)
    file.sync()
    assert file.read_at(0, 1 << 20) == model


def test_rename_replaces_the_target(place):
    """A rename takes the old name away and puts its bytes over the target's."""
    place.write("old", b"old")
    place.write("new", b"new")
    place.file_system.rename(place.path("new"), place.path("old"))
    assert place.read("old") == b"new"
    assert place.file_system.list_directory(place.root) == ["old"]
    with pytest.raises(FileNotFoundError):
        place.file_system.rename(place.path("new"), place.path("old"))
    assert place.read("old") == b"new"


def test_rename_moves_between_directories(place):
    """A file can be moved to another directory."""
    place.file_system.make_directory(place.path("aside"))
    place.write("a", b"bytes")
    place.file_system.rename(place.path("a"), place.path("aside/b"))
    assert place.read("aside/b") == b"bytes"
    assert place.file_system.list_directory(place.root) == ["aside"]


def test_an_open_file_keeps_its_bytes_after_unlink(place):
    """A reader of an unlinked file reads on, while the name can be used again."""
    file = place.file_system.open(place.write("a", b"bytes"), "read")
    place.file_system.unlink(place.path("a"))
    assert place.file_system.stat(place.path("a")) is None
    place.write("a", b"other")
    assert file.read_at(0, 10) == b"bytes"
    file.close()
    assert place.read("a") == b"other"


def test_unlinking_nothing_fails(place):
    """A missing file cannot be removed."""
    with pytest.raises(FileNotFoundError):
        place.file_system.unlink(place.path("a"))


def test_an_open_file_keeps_its_bytes_after_being_renamed_over(place):
    """A reader of a replaced file reads the bytes it opened."""
    file = place.file_system.open(place.write("a", b"old"), "read")
    place.file_system.rename(place.write("b", b"new"), place.path("a"))
    assert file.read_at(0, 10) == b"old"


def test_listing_is_sorted_and_shallow(place):
    """A listing has the names of files and directories in order, without what is below."""
    place.file_system.make_directory(place.path("m/inner"))
    for name in ("z", "a", "m/x", "B"):
        place.write(name, b"")
    assert place.file_system.list_directory(place.root) == ["B", "a", "m", "z"]
    assert place.file_system.list_directory(place.path("m")) == ["inner", "x"]
    with pytest.raises(FileNotFoundError):
        place.file_system.list_directory(place.path("absent"))


def test_making_a_directory_twice_is_fine(place):
    """A directory is made with its parents, once."""
    for _ in range(2):
        place.file_system.make_directory(place.path("a/b/c"))
    found = place.file_system.stat(place.path("a/b/c"))
    assert found is not None
    assert found.is_directory


def test_a_file_is_in_the_way_of_a_directory(place):
    """Making a directory over a file fails."""
    place.write("a", b"bytes")
    with pytest.raises(FileExistsError):
        place.file_system.make_directory(place.path("a"))
    assert place.read("a") == b"bytes"


def test_stat_tells_size_and_kind(place):
    """Facts about a path follow its changes; nothing has no facts."""
    assert place.file_system.stat(place.path("a")) is None
    assert place.file_system.stat(place.path("absent/a")) is None
    place.write("a", b"12345")
    found = place.file_system.stat(place.path("a"))
    assert found is not None
    assert (found.size, found.is_directory) == (5, False)
    assert found.modified_ns > 0


def test_allocate_makes_a_file_of_zeroes(place):
    """An allocated file has its size and can be written in place."""
    place.file_system.allocate(place.path("a"), 70_000)
    file = place.file_system.open(place.path("a"), "write")
    assert file.size() == 70_000
    assert read_fully(file, 0, 80_000) == bytes(70_000)
    write_fully(file, 600, [b"x"])
    assert file.size() == 70_000
    file.close()
    with pytest.raises(FileExistsError):
        place.file_system.allocate(place.path("a"), 10)
    place.file_system.allocate(place.path("empty"), 0)
    assert place.read("empty") == b""


def test_space_is_reported(place):
    """There is room, and not more than the whole."""
    space = place.file_system.space(place.root)
    assert 0 < space.free_bytes <= space.total_bytes


def test_a_lock_excludes_the_second(place):
    """The second lock names the first holder; after release the lock is free."""
    path = place.path("LOCK")
    first = place.file_system.lock(path, "pid=1 with a long line about itself")
    with pytest.raises(LockTaken) as raised:
        place.file_system.lock(path, "pid=2")
    assert raised.value.holder == "pid=1 with a long line about itself"
    first.release()
    first.release()
    second = place.file_system.lock(path, "pid=3")
    with pytest.raises(LockTaken) as raised:
        place.file_system.lock(path, "pid=4")
    assert raised.value.holder == "pid=3"
    second.release()


def test_files_and_directories_can_be_synced(place):
    """Syncs succeed and change nothing that a reader sees."""
    file = place.file_system.open(place.write("a", b"bytes"), "write")
    file.sync()
    place.file_system.sync_directory(place.root)
    file.sync()
    file.close()
    assert place.read("a") == b"bytes"
    with pytest.raises(FileNotFoundError):
        place.file_system.sync_directory(place.path("absent"))


@pytest.mark.parametrize("short", ["one", "half"])
def test_short_reads_and_writes_are_continued(place, short):
    """`write_fully` and `read_fully` move all bytes however short each call is."""
    plan = [
        Fault("write_at", short=short, persistent=True),
        Fault("read_at", short=short, persistent=True),
    ]
    faulty = FaultyFileSystem(place.file_system, plan)
    file = faulty.open(place.path("a"), "create")
    buffers = [b"abc", b"", bytes(range(200)), b"end"]
    assert write_fully(file, 7, buffers) == 206
    assert read_fully(file, 7, 206) == b"".join(buffers)
    assert read_fully(file, 7, 1000) == b"".join(buffers)
    assert faulty.fired > 10
