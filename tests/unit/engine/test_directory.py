"""The data directory's checks before anything is opened in it."""

from __future__ import annotations

import pytest

from frazil.engine import directory
from frazil.errors import InvalidRequest
from frazil.testing import SimulatedFileSystem


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


def test_lanes_are_named_by_number():
    """No path contains a topic's name."""
    paths = directory.DataDirectory("/data/")
    assert (paths.root, paths.lane(255)) == ("/data", "/data/lanes/000000ff")
