"""A disk tier on a simulated disk, and rows that are a function of their offset."""

from __future__ import annotations

import pyarrow as pa

from frazil.log import SpecialRange
from frazil.metadata import MemoryStore
from frazil.model import OP_DELETE, OP_UPSERT, PartitionField
from frazil.schema import KeyShape
from frazil.tiers.disk.tier import DiskLimits, DiskTier
from frazil.tiers.flush import flush_set
from frazil.tiers.partitions import Partitioner
from tests.support import FaultyFileSystem, SimulatedClock, SimulatedCrash, SimulatedFileSystem

ROOT = "/data/disk"
QUARANTINE = "/data/quarantine"
TOPIC = 7
KEYS = 10
COUNTRIES = ("DE", "FR", "IT")


def field(name, data_type, number, *, nullable=True):
    """Return a column with its id."""
    return pa.field(name, data_type, nullable=nullable, metadata={"frazil.id": str(number)})


SCHEMA = pa.schema(
    [
        field("id", pa.string(), 1, nullable=False),
        field("country", pa.string(), 2),
        field("n", pa.int64(), 3),
        field("tags", pa.list_(field("item", pa.string(), 5)), 4),
    ]
)
SHAPE = KeyShape(SCHEMA, (1,))
BY_COUNTRY = (PartitionField(2, "identity"),)


def row(offset):
    """Return the topic's columns of the row with this offset."""
    return {
        "id": f"key {offset % KEYS}",
        "country": COUNTRIES[offset % len(COUNTRIES)],
        "n": offset,
        "tags": [str(offset)] if offset % 2 else None,
    }


def time_of(offset):
    """Return when a row was appended: ten rows at a time."""
    return 1_000_000 + offset // 10 * 1000


def op_of(offset):
    """Return the operation of a row: every fifth is a delete."""
    return OP_DELETE if offset % 5 == 4 else OP_UPSERT


def present_of(offset):
    """Return the bitmap of a row: every seventh names the columns `id` and `n`."""
    return b"\x05" if offset % 7 == 3 else None


def batch_of(offsets, *, keyed=False):
    """Return rows in the columns of a file."""
    offsets = list(offsets)
    rows = pa.Table.from_pylist([row(offset) for offset in offsets], schema=SCHEMA)
    columns = {
        "_offset": pa.array(offsets, pa.int64()),
        "_time": pa.array([time_of(each) for each in offsets], pa.timestamp("us", "UTC")),
    }
    if keyed:
        columns["_op"] = pa.array([op_of(each) for each in offsets], pa.int8())
        columns["_present"] = pa.array([present_of(each) for each in offsets], pa.binary())
    for name in SCHEMA.names:
        columns[name] = rows.column(name).combine_chunks()
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


class CrashingFileSystem(FaultyFileSystem):
    """A simulated disk that loses power right before a certain call among those that change it."""

    def __init__(self, inner, crash_at):
        super().__init__(inner)
        self.crash_at = crash_at
        self.changes = 0

    def enter(self, verb, path, *more_paths):
        """Crash if this is the call."""
        if verb not in {"read_at", "size", "stat", "list_directory", "close"}:
            self.changes += 1
        if self.changes >= self.crash_at:
            self.inner.crash()
            raise SimulatedCrash
        return super().enter(verb, path, *more_paths)


class World:
    """A simulated disk, a metadata store and the tier over both; can be crashed and reopened."""

    def __init__(self, *, keyed=False, partition_by=(), files=None, store=None, **settings):
        self.keyed = keyed
        self.partition_by = partition_by
        self.limits = settings
        self.clock = SimulatedClock()
        self.files = SimulatedFileSystem() if files is None else files
        self.store = MemoryStore(clock=self.clock) if store is None else store
        if files is None:
            self.files.make_directory("/data")
            self.files.sync_directory("/")
        self.tier = self.new_tier()

    def new_tier(self, files=None):
        """Return a tier over the same disk and metadata, not opened."""
        return DiskTier(
            files or self.files,
            ROOT,
            self.store,
            clock=self.clock,
            limits=DiskLimits(**self.limits),
            quarantine=QUARANTINE,
        )

    def reopened(self, files=None, store=None, **options):
        """Return a world on what is left, with its tier opened."""
        world = World(
            keyed=self.keyed,
            partition_by=self.partition_by,
            files=files or self.files,
            store=store or self.store.clone(),
            **self.limits,
        )
        world.tier.open(**options)
        return world

    def flush(self, first, end, *, gaps=(), size=64, tier=None, topic=TOPIC, **options):
        """Flush `[first, end)` in batches of `size` rows."""
        special = [SpecialRange(low, high, kind, "why") for low, high, kind in gaps]
        empty = {each for low, high, _ in gaps for each in range(low, high)}
        offsets = [each for each in range(first, end) if each not in empty]
        return flush_set(
            tier or self.tier,
            topic=topic,
            schema=SCHEMA,
            version=1,
            shape=SHAPE if self.keyed else None,
            partitioner=Partitioner(SCHEMA, self.partition_by),
            first=first,
            end=end,
            batches=(
                batch_of(offsets[at : at + size], keyed=self.keyed)
                for at in range(0, len(offsets), size)
            ),
            gaps=special,
            **options,
        )

    def expected(self, offset):
        """Return a row as history gives it."""
        found = {"_offset": offset, "_time_us": time_of(offset), **row(offset)}
        if self.keyed:
            found |= {"_op": op_of(offset), "_present": present_of(offset)}
        return found

    def history(self, first=None, *, bytes_max=2000, tier=None):
        """Return all rows from `first` on, and the gaps met."""
        tier = tier or self.tier
        found = tier.history.range(TOPIC)
        at = found.first if first is None else first
        rows, gaps = [], []
        while at < found.end:
            piece = tier.history.read(TOPIC, offset=at, bytes_max=bytes_max)
            assert piece.offset_next > at
            for batch in piece.batches:
                gaps += [(gap.first, gap.end) for gap in batch.gaps]
                rows += rows_of(batch)
            gaps += [(gap.first, gap.end) for gap in piece.gaps]
            at = piece.offset_next
        return rows, gaps

    def check_history(self, first, end, *, gaps=()):
        """Assert that history is exactly the rows of `[first, end)` but for the gaps."""
        empty = {each for low, high in gaps for each in range(low, high)}
        rows, found = self.history(first)
        wanted = [self.expected(each) for each in range(first, end) if each not in empty]
        assert rows == wanted
        assert found == list(gaps)
        assert (self.tier.start(TOPIC), self.tier.flushed(TOPIC)) == (first, end)


def opened(**options):
    """Return a world with an open tier and small row groups."""
    world = World(row_group_rows=16, **options)
    world.tier.open()
    return world


def rows_of(batch):
    """Return the rows of a history batch with offset and time in microseconds."""
    times = [us for count, us in batch.times for _ in range(count)]
    assert len(times) == batch.count
    data = batch.data.to_pylist()
    return [
        {"_offset": batch.offset + number, "_time_us": times[number], **values}
        for number, values in enumerate(data)
    ]
