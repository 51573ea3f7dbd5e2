"""What is synced of a table, what is passed over, and what says that records must be kept."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField

from frazil.errors import CorruptionError
from frazil.fs import RealFileSystem
from frazil.lake.durable import make_durable, settled_ends
from frazil.lake.plan import TableName
from tests.support import Fault, FaultyFileSystem

TABLE = TableName("db", "t")
END = "frazil.offset-end"
SCHEMA = Schema(
    NestedField(1, "_offset", LongType(), required=False),
    NestedField(2, "day", LongType(), required=False),
)
SPEC = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "day"))


class World:
    """A table of the topic `own` in a catalog of PyIceberg, and what was synced of it."""

    def __init__(self, root):
        self.root = root
        self.catalog = SqlCatalog(
            "c", uri=f"sqlite:///{root}/c.db", warehouse=f"file://{root}/warehouse"
        )
        self.catalog.create_namespace("db")
        self.catalog.create_table(
            tuple(TABLE), SCHEMA, partition_spec=SPEC, properties={"frazil.topic-id": "own"}
        )

    def load(self):
        return self.catalog.load_table(tuple(TABLE))

    def append(self, offset, *, day=1, owner="own", **marks):
        """Append a row; return the paths of all files that this made."""
        before = self.files()
        summary = {**marks, **({"frazil.topic-id": owner} if owner else {})}
        rows = pa.table({"_offset": [offset], "day": [day]})
        self.load().append(rows, snapshot_properties=summary)
        return self.files() - before

    def files(self):
        return {str(each) for each in (self.root / "warehouse").rglob("*") if each.is_file()}

    def sync(self, settled, *faults, file_system=None):
        """Sync the table; return the files and the directories that were synced, in order."""
        seam = file_system or FaultyFileSystem(RealFileSystem(), faults)
        make_durable(self.catalog, TABLE, settled, file_system=seam)
        files = [call.path for call in seam.trace if call.verb == "sync"]
        directories = [call.path for call in seam.trace if call.verb == "sync_directory"]
        return files, directories


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def named(paths, part):
    (found,) = [Path(path) for path in paths if part in path]
    return found


def test_every_file_of_a_commit_and_its_directories_are_synced_once(world):
    """Data, manifest, list, metadata, and each directory up to the table's own; nothing older."""
    world.append(0, day=1, **{END: "1"})
    new = world.append(1, day=2, **{END: "2"})
    assert len(new) == 4
    files, directories = world.sync({-1: 1})
    assert sorted(files) == sorted(new)
    table = world.root / "warehouse" / "db" / "t"
    wanted = [table, table / "data", table / "data" / "day=2", table / "metadata"]
    assert sorted(directories) == sorted(map(str, wanted))
    assert world.sync({-1: 2}) == ([], [])


def test_directories_come_after_the_files_that_they_name(world):
    """A name may only become durable with the bytes that it stands for."""
    world.append(0, **{END: "1"})
    seam = FaultyFileSystem(RealFileSystem())
    world.sync({}, file_system=seam)
    verbs = [call.verb for call in seam.trace if call.verb.startswith("sync")]
    assert verbs == sorted(verbs)


def test_what_others_wrote_since_is_synced_as_well(world):
    """A compaction by others takes rows of ours along; what they wrote earlier is settled."""
    old = world.append(0, owner="")
    world.append(1, **{END: "1"})
    theirs = world.append(2, owner="")
    files, _directories = world.sync({-1: 1})
    assert set(files) == theirs
    assert not set(files) & old


def test_a_late_lower_mark_hides_no_commit_that_is_not_synced(world):
    """A commit without rows may lie above a higher one; both belong to what is not settled."""
    world.append(0, **{END: "1"})
    high = world.append(1, **{END: "9"})
    world.append(2, **{END: "1"})
    files, _directories = world.sync({-1: 1})
    assert set(high) - set(files) == {str(named(high, ".metadata.json"))}


def test_without_any_mark_everything_that_lives_is_synced(world):
    """Others expired all marks: which files are new cannot be known any more."""
    data = world.append(0, owner="") | world.append(1, owner="", day=2)
    files, _directories = world.sync({-1: 5})
    assert {path for path in data if path.endswith(".parquet")} < set(files)


@pytest.mark.parametrize("kind", [".parquet", "-m0.avro", "snap-"])
@pytest.mark.parametrize("left", [None, 0, 40])
def test_a_file_that_was_lost_with_the_power_keeps_the_records(world, kind, left):
    """One that is gone, empty or cut is named, whichever it is: nobody may let go of its rows."""
    path = named(world.append(0, **{END: "1"}), kind)
    if left is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(CorruptionError, match="lost before it was synced") as caught:
        world.sync({})
    assert str(path) in caught.value.message or str(path) in str(caught.value.details)
    assert world.sync({-1: 1}) == ([], [])


def test_a_file_of_others_that_is_gone_is_passed_over(world):
    """It is no record of ours; the rest of the same pass is synced."""
    ours = world.append(0, **{END: "1"})
    named(world.append(1, owner=""), ".parquet").unlink()
    files, _directories = world.sync({})
    assert {path for path in ours if not path.endswith(".json")} <= set(files)


class ExpiringFileSystem(FaultyFileSystem):
    """Somebody expires a snapshot, and removes its file, just before it is opened."""

    def __init__(self, world, path, sid):
        super().__init__(RealFileSystem())
        self._world, self._path, self._sid = world, path, sid

    def open(self, path, mode):
        if path == self._path and Path(path).exists():
            self._world.load().maintenance.expire_snapshots().by_id(self._sid).commit()
            Path(path).unlink()
        return super().open(path, mode)


def test_a_snapshot_that_is_expired_meanwhile_is_passed_over(world):
    """Its files went with it, on purpose: that is no loss, and what is left is synced."""
    path = named(world.append(0, **{END: "1"}), "snap-")
    sid = world.load().metadata.current_snapshot_id
    new = world.append(1, **{END: "2"})
    seam = ExpiringFileSystem(world, str(path), sid)
    make_durable(world.catalog, TABLE, {}, file_system=seam)
    assert not path.exists()
    synced = {call.path for call in seam.trace if call.verb == "sync"}
    assert {each for each in new if not each.endswith(".json")} <= synced


@pytest.mark.parametrize("verb", ["sync", "sync_directory"])
def test_a_sync_that_fails_is_not_asked_again(world, verb):
    """The system forgets what it could not write: a second sync would say yes."""
    world.append(0, **{END: "1"})
    seam = FaultyFileSystem(RealFileSystem(), [Fault(verb, nth=2)])
    with pytest.raises(CorruptionError, match="cannot be synced"):
        world.sync({}, file_system=seam)
    assert (seam.fired, seam.sync_retried) == (1, 0)


def test_a_file_system_that_knows_no_sync_of_directories_is_fine(world):
    """It says so with another error than a disk that fails."""
    world.append(0, **{END: "1"})
    fault = Fault("sync_directory", error=errno.EINVAL, persistent=True)
    files, directories = world.sync({}, fault)
    assert len(files) == 4
    assert len(directories) == 4


def test_a_table_elsewhere_is_passed_over(world):
    """Object stores have what they answered; nothing of this machine is touched."""
    world.append(0, **{END: "1"})
    source = Path(world.load().metadata_location.removeprefix("file://"))
    metadata = json.loads(source.read_text())
    metadata["location"] = "s3://bucket/db/t"
    path = world.root / "00009-away.metadata.json"
    path.write_text(json.dumps(metadata))
    world.catalog.drop_table(tuple(TABLE))
    world.catalog.register_table(tuple(TABLE), f"file://{path}")
    assert world.sync({}) == ([], [])


def test_a_replay_is_settled_only_up_to_where_it_began():
    """Its rows lie below what is remembered, and are as new as all others."""
    assert settled_ends({-1: 20}, "", {}) == {-1: 20}
    assert settled_ends({-1: 20}, "replay", {-1: 10}) == {-1: 10}
    assert settled_ends({0: 20, 1: 5}, "accept", {0: 30}) == {0: 20, 1: 0}
