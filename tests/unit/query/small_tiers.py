"""Topics over real Arrow chunks and real Parquet files, small enough to be read in one go."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from frazil.clock import SystemClock
from frazil.model import OP_DELETE, OP_UPSERT
from frazil.query.engine import QueryEngine
from frazil.query.pool import PoolLimits
from frazil.query.views import ChunkView, TopicInfo
from frazil.tiers.disk.format import ColumnRange

TIME = pa.timestamp("us", "UTC")
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
HOUR_US = 3_600_000_000


def schema_of(columns):
    """Number the columns; `columns` maps names to types, or to (id, type)."""
    fields = []
    for number, (name, declared) in enumerate(columns.items(), 1):
        column, data_type = declared if isinstance(declared, tuple) else (number, declared)
        fields.append(pa.field(name, data_type, metadata={b"frazil.id": str(column).encode()}))
    return pa.schema(fields)


class Part:
    """The records of one topic, or of one part: some of them in files, the rest in memory."""

    def __init__(self, topic, directory, index=None):
        self.topic = topic
        self.directory = directory
        self.index = index
        self.records = []  # (time_us, op, schema version, row)
        self.files = []
        self.filed = 0
        self.flushed = 0
        self.chunk_rows = 3
        self.closed = 0
        self.opened = []
        self.in_place = True

    def append(self, *rows, time_us=0, op=OP_UPSERT):
        for row in rows:
            self.records.append((time_us, op, len(self.topic.schemas) - 1, row))

    def flush(self, end=None, *, overlap=0):
        """Write what is not in files yet, one file for each schema version.

        Memory still serves the last `overlap` records of it.
        """
        end = len(self.records) if end is None else end
        first = self.filed
        while first < end:
            version = self.records[first][2]
            last = first
            while last + 1 < end and self.records[last + 1][2] == version:
                last += 1
            self._write(first, last + 1, version)
            first = last + 1
        self.filed = end
        self.flushed = max(self.flushed, end - overlap)

    def _write(self, first, end, version):
        records = self.records[first:end]
        schema = self.topic.schemas[version]
        batch = self._batch(records, version)
        fields = [pa.field("_offset", pa.int64()), pa.field("_time", TIME)]
        arrays = [
            pa.array(range(first, end), pa.int64()),
            pa.array([record[0] for record in records], pa.int64()).cast(TIME),
        ]
        fields += list(batch.schema)
        arrays += batch.columns
        table = pa.Table.from_arrays(arrays, schema=pa.schema(fields))
        name = f"{first:016x}-{end:016x}-{len(self.files)}.parquet"
        path = self.directory / name
        pq.write_table(table, path, row_group_size=2)
        columns = {}
        for field in schema:
            array = batch.column(batch.schema.get_field_index(field.name))
            bounds = bounds_of(array)
            if bounds is not None:
                columns[field.name] = ColumnRange(*bounds, array.null_count)
        times = [record[0] for record in records]
        self.files.append(
            SimpleNamespace(
                name=name,
                path=path,
                offset_first=first,
                offset_last=end - 1,
                rows=end - first,
                bytes=path.stat().st_size,
                schema=version,
                time_first=min(times),
                time_last=max(times),
                columns=columns,
                deletes=sum(record[1] == OP_DELETE for record in records),
                unmatched=0,
            )
        )

    def _batch(self, records, version):
        schema = self.topic.schemas[version]
        arrays = [pa.array([r[3].get(f.name) for r in records], f.type) for f in schema]
        fields = list(schema)
        if self.topic.key:
            fields += [pa.field("_op", pa.int8()), pa.field("_present", pa.binary())]
            arrays.append(pa.array([record[1] for record in records], pa.int8()))
            arrays.append(pa.nulls(len(records), pa.binary()))
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def state(self, end):
        """Return the newest change of each key below `end`, and what it supersedes, by offset."""
        newest, dead = {}, set()
        for offset, (_, _, _, row) in enumerate(self.records[:end]):
            key = tuple(row[name] for name in self.topic.key)
            if key in newest:
                dead.add(newest[key])
            newest[key] = offset
        return newest, dead

    def snapshot(self, end, *, state):
        return Snapshot(self, end, state=state)


class Snapshot:
    """One part at one offset."""

    def __init__(self, part, end, *, state):
        self._part = part
        self.part = part.index
        self.end = end
        self.cut = min(part.flushed, end)
        self.files = tuple(file for file in part.files if file.offset_first < self.cut)
        self._newest, self._dead = part.state(end) if part.topic.key else ({}, set())
        self.dead = np.array(sorted(o for o in self._dead if o < self.cut), np.int64)
        self.chunks = tuple(self._chunks(state=state and bool(part.topic.key)))

    def _chunks(self, *, state):
        first = self.cut
        while first < self.end:
            records = self._part.records[first : min(first + self._part.chunk_rows, self.end)]
            version = records[0][2]
            same = [record for record in records if record[2] == version]
            last = first + len(same)
            live = None
            if state:
                marks = [
                    offset not in self._dead and self._part.records[offset][1] != OP_DELETE
                    for offset in range(first, last)
                ]
                live = None if all(marks) else np.array(marks)
            batch = self._part._batch(same, version)
            times = [(1, record[0]) for record in same]
            yield ChunkView(batch, first, times, live, chunk_bounds(batch), self.part)
            first = last

    def file_path(self, file):
        return str(file.path) if self._part.in_place else None

    def read_file(self, file, columns):
        self._part.opened.append(file.name)
        return pq.read_table(file.path, columns=list(columns))

    def file_schema(self, file):
        return self._part.topic.schemas[file.schema]

    def get_many(self, keys):
        return [self._row(key) for key in keys]

    def _row(self, key):
        offset = self._newest.get(key)
        if offset is None or self._part.records[offset][1] == OP_DELETE:
            return None
        time_us, _, _, row = self._part.records[offset]
        names = self._part.topic.schemas[-1].names
        moment = EPOCH + dt.timedelta(microseconds=time_us)
        return {"_offset": offset, "_time": moment} | {name: row.get(name) for name in names}

    def close(self):
        self._part.closed += 1


class Topic:
    def __init__(self, columns, *, key=(), partitions=0):
        self.schemas = [schema_of(columns)]
        self.key = tuple(key)
        self.partitions = partitions
        self.parts = []

    def evolve(self, columns):
        self.schemas.append(schema_of(columns))

    def info(self):
        return TopicInfo(self.schemas[-1], self.key, self.partitions)


class SmallTiers:
    """All topics; what the engine would be to the query engine."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.all = {}
        self.version = 0
        self.lookups = []
        self.snapshots = 0

    def create(self, name, columns, *, key=(), partitions=0):
        """Return the topic's only part, or the list of its parts."""
        topic = Topic(columns, key=key, partitions=partitions)
        namespace, _, plain = name.rpartition(".")
        self.all[namespace or "default", plain] = topic
        self.version += 1
        for index in range(partitions or 1):
            directory = self.directory / f"{len(self.all)}-{index}"
            directory.mkdir()
            topic.parts.append(Part(topic, directory, index if partitions else None))
        return topic.parts if partitions else topic.parts[0]

    def evolve(self, part, columns):
        part.topic.evolve(columns)
        self.version += 1

    def topics(self):
        return {name: topic.info() for name, topic in self.all.items()}

    def snapshot(self, wanted, *, as_of_offset=None, as_of_time=None, min_offset=None):
        self.snapshots += 1
        found = {}
        for topic, state in wanted.items():
            parts = self.all[topic].parts
            found[topic] = [part.snapshot(_end(part, as_of_offset), state=state) for part in parts]
        return found

    def lookup(self, topic, keys, *, min_offset=None):
        self.lookups.append((topic, list(keys)))
        found = [None] * len(keys)
        for part in self.all[topic].parts:
            rows = part.snapshot(len(part.records), state=False).get_many(keys)
            for number, row in enumerate(rows):
                if row is not None:
                    found[number] = {"_part": part.index, **row}
        return found

    def engine(self, **limits):
        ahead = limits.pop("result_bytes_ahead", 1 << 20)
        settings = {"directories": (str(self.directory),), "threads": 2, "wait_s": 0.2} | limits
        return QueryEngine(
            self, PoolLimits(**settings), clock=SystemClock(), result_bytes_ahead=ahead
        )


def _end(part, as_of_offset):
    return len(part.records) if as_of_offset is None else min(as_of_offset, len(part.records))


def bounds_of(array):
    """Return the least and greatest value as a file's facts have them, None if it has none."""
    if pa.types.is_nested(array.type) or pa.types.is_decimal(array.type):
        return None
    if pa.types.is_temporal(array.type):
        width = pa.int32() if array.type.bit_width == 32 else pa.int64()
        array = array.view(width)
    if not len(array) - array.null_count:
        return None
    bounds = pc.min_max(array)
    return bounds["min"].as_py(), bounds["max"].as_py()


def chunk_bounds(batch):
    return lambda name: bounds_of(batch.column(name))
