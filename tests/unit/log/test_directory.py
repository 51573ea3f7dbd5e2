"""The data directory's checks before anything is opened in it."""

from __future__ import annotations

import os

import pytest

from frazil.errors import Conflict, InvalidRequest
from frazil.fs import RealFileSystem
from frazil.log import directory
from tests.support import SimulatedFileSystem


def test_a_network_file_system_is_refused_without_leave(monkeypatch):
    """A directory on a network file system is refused unless the settings allow it."""
    paths = directory.DataDirectory("/data")
    monkeypatch.setattr(directory, "file_system_kind", lambda path: "nfs4")
    with pytest.raises(InvalidRequest, match="network file system") as caught:
        directory.prepare(SimulatedFileSystem(), paths, allow_network_fs=False)
    assert caught.value.details["file_system"] == "nfs4"
    disk = SimulatedFileSystem()
    directory.prepare(disk, paths, allow_network_fs=True)
    assert disk.stat("/data").is_directory


def test_the_kind_of_a_mounted_file_system_is_known():
    """The deepest mount point that holds a path tells its kind."""
    assert directory.file_system_kind("/proc/self") == "proc"
    assert directory.file_system_kind("/") not in directory.NETWORK_FILE_SYSTEMS


def test_paths_have_no_double_slash():
    """No path contains a topic's name."""
    paths = directory.DataDirectory("/data/")
    assert (paths.root, paths.journal) == ("/data", "/data/journal")


def test_a_second_opening_says_who_has_the_directory(tmp_path):
    """The error tells whether this process or another one has the directory."""
    paths = directory.DataDirectory(str(tmp_path))
    disk = RealFileSystem()
    lock = directory.take_lock(disk, paths)
    with pytest.raises(Conflict, match="in this process already") as caught:
        directory.take_lock(disk, paths)
    assert f"pid={os.getpid()}" in str(caught.value)
    lock.release()
    other = disk.lock(paths.lock, "pid=1 host=elsewhere")
    with pytest.raises(Conflict, match="by another process") as caught:
        directory.take_lock(disk, paths)
    assert caught.value.details["holder"] == "pid=1 host=elsewhere"
    other.release()
