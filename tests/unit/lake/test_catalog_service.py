"""The catalog over simulated files: what a crash or a failing disk leaves, and what it may touch."""

from __future__ import annotations

import errno

import msgspec
import pytest

from frazil.errors import Unavailable
from frazil.lake.catalog.files import MetadataFiles, is_inside, local_path
from frazil.lake.catalog.refusals import OutcomeUnknown, Refusal
from frazil.lake.catalog.requirements import Requirement
from frazil.lake.catalog.service import Catalog, TableChange
from frazil.lake.catalog.store import Store, SwapLost
from frazil.lake.catalog.updates import Update
from tests.support import Fault, FaultyFileSystem, SimulatedClock, SimulatedFileSystem

SCHEMA = {
    "type": "struct",
    "fields": [{"id": 1, "name": "a", "required": False, "type": "long"}],
}
CRASHES = 25


class World:
    """A catalog in memory over simulated files."""

    def __init__(self, file_system=None):
        self.disk = SimulatedFileSystem(seed=1)
        self.fs = file_system or self.disk
        self.clock = SimulatedClock(seed=1)
        self.store = Store(":memory:", catalog="c", file_system=self.fs)
        self.warehouse = "/wh"
        self.catalog = Catalog(
            self.store, file_system=self.fs, clock=self.clock, warehouse=self.warehouse
        )
        self.store.create_namespace("db", {})

    def create(self, name="t", *, stage=False, location=None, **properties):
        return self.catalog.create(
            "db",
            name,
            schema=SCHEMA,
            spec=None,
            order=None,
            location=location,
            properties=properties,
            stage=stage,
        )

    def commit(self, *updates, name="t", requires=()):
        return self.catalog.commit([change(*updates, name=name, requires=requires)])[0]

    def files_on(self, disk):
        return MetadataFiles(file_system=disk, clock=self.clock, warehouse=self.warehouse)


def change(*updates, name="t", requires=()):
    return TableChange(
        "db",
        name,
        msgspec.convert(list(requires), list[Requirement]),
        msgspec.convert(list(updates), list[Update]),
    )


def setting(**properties):
    return {"action": "set-properties", "updates": properties}


@pytest.fixture
def world():
    return World()


def test_what_a_row_names_survives_a_loss_of_power(world):
    """At every moment the row's file is whole on the disk, whatever the power takes."""
    world.create()
    for number in range(6):
        world.commit(setting(n=str(number)))
        location = world.store.location("db", "t")
        for seed in range(CRASHES):
            left = world.disk.crash_clone(seed)
            found = world.files_on(left).load(location)
            assert found.metadata["properties"]["n"] == str(number)


def test_a_crash_before_the_swap_leaves_the_old_table(world):
    """At each point of writing the new file the row names the old one, which is whole."""
    world.create()
    world.commit(setting(n="old"))
    before = world.store.location("db", "t")
    seen = []

    def look(point):
        seen.append(point)
        assert world.store.location("db", "t") == before
        left = world.disk.crash_clone(len(seen))
        assert world.files_on(left).load(before).metadata["properties"]["n"] == "old"

    world.disk.on_sync = look
    world.commit(setting(n="new"))
    world.disk.on_sync = None
    assert any("sync_directory" in point for point in seen)
    assert any(point.endswith(".metadata.json") for point in seen)


@pytest.mark.parametrize("verb", ["open", "write_at", "sync", "sync_directory", "close"])
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_failing_disk_fails_the_commit_for_certain(verb, code):
    """The error says that nothing happened, the table stays, and a later commit works."""
    where = (
        {"nth": 2, "path_part": "/metadata"}
        if verb == "sync_directory"
        else {"path_part": "/00001-"}
    )
    faulty = FaultyFileSystem(SimulatedFileSystem(seed=2), [Fault(verb, error=code, **where)])
    world = World(faulty)
    world.create()
    before = world.store.location("db", "t")
    with pytest.raises(Refusal) as caught:
        world.commit(setting(k="v"))
    assert (caught.value.status, caught.value.kind) == (409, "CommitFailedException")
    assert faulty.fired == 1
    assert world.store.location("db", "t") == before
    assert faulty.inner.paths() == [before]
    assert world.commit(setting(k="v")).metadata["properties"]["k"] == "v"


def overtake(world, *updates):
    """Let another program commit right before the next swap: past the catalog's locks."""
    original = world.store.swap
    other = Catalog(world.store, file_system=world.fs, clock=world.clock, warehouse=world.warehouse)

    def swap(swaps):
        world.store.swap = original
        other.commit([change(*updates)])
        original(swaps)

    world.store.swap = swap


def fail_swaps(world, error):
    def swap(_swaps):
        raise error

    world.store.swap = swap


def test_a_commit_that_another_program_overtakes_is_built_again(world):
    """A lost swap is tried on the new state; both changes are there, and no file is left over."""
    world.create()
    overtake(world, setting(foreign="1"))
    loaded = world.commit(setting(own="1"))
    assert loaded.metadata["properties"]["foreign"] == "1"
    assert loaded.metadata["properties"]["own"] == "1"
    assert len(world.disk.paths()) == 3


def test_a_commit_that_is_always_overtaken_fails_for_certain(world):
    """After ten lost swaps the commit fails, and all new files are gone."""
    world.create()
    fail_swaps(world, SwapLost)
    before = world.disk.paths()
    with pytest.raises(Refusal, match="again and again") as caught:
        world.commit(setting(own="1"))
    assert caught.value.kind == "CommitFailedException"
    assert world.disk.paths() == before


def test_a_requirement_is_checked_again_after_a_lost_swap(world):
    """What another program did in between can make the requirement false."""
    world.create()
    schema = {**SCHEMA, "fields": [{**SCHEMA["fields"][0], "name": "z"}]}
    add = {"action": "add-schema", "schema": schema}
    overtake(world, add, {"action": "set-current-schema", "schema-id": -1})
    with pytest.raises(Refusal, match="current-schema-id has changed"):
        world.commit(
            setting(own="1"),
            requires=[{"type": "assert-current-schema-id", "current-schema-id": 0}],
        )


def test_an_unknown_outcome_keeps_the_new_file(world):
    """If the swap may have happened, its file is not deleted."""
    world.create()
    fail_swaps(world, OutcomeUnknown("storage failed"))
    with pytest.raises(OutcomeUnknown):
        world.commit(setting(k="v"))
    assert len(world.disk.paths()) == 2


def test_a_busy_file_fails_the_commit_for_certain(world):
    """A swap that could not begin is a failed commit, not an unknown one."""
    world.create()
    fail_swaps(world, Unavailable("catalog file cannot be used to write", reason="busy"))
    with pytest.raises(Refusal, match="nothing was changed") as caught:
        world.commit(setting(k="v"))
    assert caught.value.status == 409
    assert len(world.disk.paths()) == 1


def test_deletion_of_old_files_stays_in_the_table(world):
    """A log that names a file elsewhere, or one that is no metadata, deletes neither."""
    world.create("t", **{"write.metadata.delete-after-commit.enabled": "true"})
    loaded = world.catalog.load("db", "t")
    home = loaded.metadata["location"]
    world.disk.write_bytes("/wh/other.metadata.json", b"{}")
    world.disk.write_bytes(f"{home}/data.parquet", b"rows")
    named = ["/wh/other.metadata.json", f"{home}/data.parquet", f"{home}/../other.metadata.json"]
    base = {
        **loaded.metadata,
        "metadata-log": [{"metadata-file": name, "timestamp-ms": 1} for name in named],
    }
    world.files_on(world.disk).delete_outgrown(base, loaded.metadata)
    assert "/wh/other.metadata.json" in world.disk.paths()
    assert f"{home}/data.parquet" in world.disk.paths()


def test_a_new_table_never_lies_where_another_was(world):
    """A name that is used again gets another place, so that a purge hits its own files only."""
    first = world.create()[1].metadata["location"]
    world.catalog.drop("db", "t", wants_purge=False)
    second = world.create()[1].metadata["location"]
    assert first != second
    assert first.startswith("/wh/db/t-")


def test_a_purge_takes_the_checksums_of_the_files(world):
    """What Spark laid beside the files goes with them; a stranger's file stays."""
    world.create("t")
    directory, _, name = world.store.location("db", "t").rpartition("/")
    world.disk.write_bytes(f"{directory}/.{name}.crc", b"crc")
    world.disk.write_bytes(f"{directory}/.stranger.crc", b"crc")
    world.catalog.drop("db", "t", wants_purge=True)
    assert world.disk.paths() == [f"{directory}/.stranger.crc"]


def test_a_purge_spares_what_another_table_uses(world):
    """Two names on one table's files: purging one leaves the files of the other."""
    world.create("t")
    location = world.store.location("db", "t")
    world.catalog.register("db", "again", metadata_location=location, overwrite=False)
    world.catalog.drop("db", "t", wants_purge=True)
    assert world.disk.paths() == [location]
    assert world.catalog.load("db", "again").location == location


def test_a_lost_metadata_file_is_said(world):
    """A row whose file is gone is a refusal that names the file; the table can still be dropped."""
    world.create("t")
    location = world.store.location("db", "t")
    world.disk.unlink(location)
    fresh = Catalog(world.store, file_system=world.fs, clock=world.clock, warehouse=world.warehouse)
    with pytest.raises(Refusal, match="metadata file does not exist"):
        fresh.load("db", "t")
    fresh.drop("db", "t", wants_purge=True)
    assert world.store.location("db", "t") is None


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"format-version": 2}', b"\x1f\x8bjunk"])
def test_a_file_that_is_no_metadata_cannot_be_registered(world, data):
    """Registration reads the file first."""
    world.disk.write_bytes("/wh/x.metadata.json", data)
    with pytest.raises(Refusal) as caught:
        world.catalog.register("db", "x", metadata_location="/wh/x.metadata.json", overwrite=False)
    assert caught.value.status == 400
    assert world.store.location("db", "x") is None


@pytest.mark.parametrize(
    ("location", "path"),
    [("/a//b/", "/a/b"), ("file:/a", "/a"), ("file:///a/b", "/a/b"), ("//a", "/a")],
)
def test_locations_on_the_disk_are_paths(location, path):
    """Paths and file URIs mean the same place."""
    assert local_path(location) == path


def test_inside_is_really_inside():
    """A neighbour whose name begins alike is not inside, nor is the directory itself."""
    assert is_inside("/wh/a/b", "/wh/a")
    assert not is_inside("/wh/ab", "/wh/a")
    assert not is_inside("/wh/a", "/wh/a/")
    assert not is_inside("/wh/a/../b", "/wh/a")
