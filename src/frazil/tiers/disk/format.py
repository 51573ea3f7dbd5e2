"""The format of the disk tier's files: names, labels in footers, facts, column ranges, runs.

A flush writes a *set* of files for one contiguous range of offsets. The footer of each file names
its set and its number in it, so that a directory without metadata shows which sets are whole.
`docs/internals/disk.md` has the names and the footer's fields.
"""

from __future__ import annotations

import base64
import re
import zlib
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.types as pt

from frazil.errors import CorruptionError
from frazil.log import OFFSET_FIELD, TIME_FIELD, SpecialRange
from frazil.schema.keys import column_id
from frazil.struct_types import learnt
from frazil.topic import OP_FIELD, PRESENT_FIELD

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

# -- column ranges ---------------------------------------------------------------------------------

COLUMNS_MAX: Final = 100
"""Ranges are kept of so many columns; the footer has those of all."""
CHARACTERS_MAX: Final = 64
_MILLIS: Final = 1000


class ColumnRange(msgspec.Struct, frozen=True, array_like=True):
    """No value of a column is below `low` or above `high`; None is unknown and excludes no row.

    Values are what msgpack can hold: temporal ones are storage integers in the column's unit,
    decimals are text. The type is Any because msgspec has no union of text and bytes.
    """

    low: Any = None
    high: Any = None
    nulls: int | None = None


def column_ranges(
    metadata: pq.FileMetaData, schema: pa.Schema, *, nan: Collection[str] = ()
) -> dict[str, ColumnRange]:
    """Return the ranges of a file's scalar columns, at most `COLUMNS_MAX` of them.

    Args:
        metadata: the file's footer.
        schema: the columns as they were written; the footer may have other units.
        nan: float columns with NaN: statistics leave it out, while SQL sorts it above all others.
    """
    ranges: dict[str, ColumnRange] = {}
    leaf = 0
    for field in schema:
        leaves = _leaves(field.type)
        if leaves == 1 and not pt.is_nested(field.type) and len(ranges) < COLUMNS_MAX:
            found = _column_range(metadata, leaf, field.type)
            if field.name in nan:
                found = ColumnRange(found.low, None, found.nulls)
            ranges[field.name] = found
        leaf += leaves
    return ranges


def group_integers(metadata: pq.FileMetaData, leaf: int) -> list[tuple[int, int]]:
    """Return the smallest and largest value of an integer column for each row group.

    Raises:
        ValueError: if a row group has no statistics.
    """
    found: list[tuple[int, int]] = []
    for number in range(metadata.num_row_groups):
        statistics = metadata.row_group(number).column(leaf).statistics
        if statistics is None or not statistics.has_min_max:
            raise ValueError(f"row group {number} has no statistics")
        found.append((int(statistics.min_raw), int(statistics.max_raw)))
    return found


def _leaves(data_type: pa.DataType) -> int:
    """Return the number of columns of the file that store a field."""
    if data_type.num_fields == 0:
        return 1
    return sum(_leaves(data_type.field(index).type) for index in range(data_type.num_fields))


def _column_range(metadata: pq.FileMetaData, leaf: int, data_type: pa.DataType) -> ColumnRange:
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    found = [group.column(leaf).statistics for group in groups]
    if any(each is None for each in found):
        return ColumnRange()
    counted = all(each.has_null_count for each in found)
    nulls = sum(each.null_count for each in found) if counted else None
    pairs = zip(found, groups, strict=True)
    if not all(_has_bounds(each, group.num_rows) for each, group in pairs):
        return ColumnRange(None, None, nulls)
    bounds = [_bounds(each, data_type) for each in found if each.has_min_max]
    if not bounds:
        return ColumnRange(None, None, nulls)
    lows, highs = zip(*bounds, strict=True)
    return ColumnRange(_low(min(lows)), _high(max(highs)), nulls)


def _has_bounds(statistics: pq.Statistics, rows: int) -> bool:
    """Tell whether a group has bounds or only nulls: values may be too long for statistics."""
    return bool(statistics.has_min_max or statistics.null_count == rows)


def _bounds(statistics: pq.Statistics, data_type: pa.DataType) -> tuple[Any, Any]:
    if pt.is_temporal(data_type):
        low, high = int(statistics.min_raw), int(statistics.max_raw)
        if pt.is_timestamp(data_type) and data_type.unit == "s":
            # Parquet has no seconds.
            return low // _MILLIS, high // _MILLIS
        return low, high
    return statistics.min, statistics.max


def _low(value: Any) -> Any:
    if isinstance(value, (str, bytes)):
        return value[:CHARACTERS_MAX]
    return value if isinstance(value, (bool, int, float)) else str(value)


def _high(value: Any) -> Any:
    # A shortened text would be below some values.
    too_long = isinstance(value, (str, bytes)) and len(value) > CHARACTERS_MAX
    return None if too_long else value if isinstance(value, bytes) else _low(value)


# -- names, labels, facts of a file ---------------------------------------------------------------

LABEL_KEY: Final = "frazil"
LABEL_FORMAT: Final = 1
MIXED: Final = "*"
"""The partition of a file with rows of several partitions: a flush with too many of them."""
SUFFIX: Final = ".parquet"
KEYS_SUFFIX: Final = ".keys"
TEMPORARY_SUFFIX: Final = ".tmp"
SYSTEM_ID_FIRST: Final = 2_147_480_000
FIELD_ID: Final = b"PARQUET:field_id"
_NAME: Final = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})-([0-9]+)-([0-9a-f]{8})\.parquet\Z")


class SetName(NamedTuple):
    """The parts of a file's name: range and id of its set, and its number in the set."""

    first: int
    end: int
    number: int
    id: str


class FileLabel(msgspec.Struct, frozen=True, omit_defaults=True):
    """The description of a file in its footer; `name` has the range of its set.

    `set_files` is the number of files of the set; 0 if it was not known when the file was written.
    At least one file of a set has it.
    """

    topic: int
    name: str
    set_files: int
    schema: int
    created_us: int
    partition: str = ""
    key_ids: tuple[int, ...] = ()
    gaps: tuple[tuple[int, int, str, str], ...] = ()
    format: int = LABEL_FORMAT

    def to_metadata(self) -> dict[str, str]:
        """Return the entry of the footer."""
        return {LABEL_KEY: msgspec.json.encode(self).decode()}

    @classmethod
    def from_metadata(cls, metadata: dict[str, str]) -> FileLabel:
        """Decode the entry of a footer.

        Raises:
            CorruptionError: if it is missing or has an unknown version.
        """
        try:
            label = msgspec.json.decode(metadata[LABEL_KEY], type=learnt(cls))
        except (KeyError, msgspec.MsgspecError, ValueError) as error:
            raise CorruptionError("file has no label", reason=error) from error
        if label.format != LABEL_FORMAT:
            raise CorruptionError("file has another format", format=label.format)
        return label


class FileFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a finished file holds. Times are microseconds; an empty file has no offsets or times."""

    rows: int
    bytes: int
    crc: int
    footer_crc: int
    offset_first: int = 0
    offset_last: int = -1
    time_first: int = 0
    time_last: int = 0
    columns: dict[str, ColumnRange] = {}
    deletes: int = 0
    unmatched: int = 0


class DiskFile(FileFacts, frozen=True, kw_only=True, omit_defaults=True):
    """One registered file of the disk tier. Times are microseconds.

    `offset_first` and `offset_last` are those of its rows; a file without rows only records the
    gaps of its set. One file of each set has `gaps`, the declared and lost ranges of the set.

    A set is what one flush or one merge wrote: the range `[set_first, set_end)` in `set_files`.
    """

    topic: int
    name: str
    set_first: int
    set_end: int
    set_files: int
    schema: int
    created_us: int
    partition: str = ""
    key_ids: tuple[int, ...] = ()
    key_bytes: int = 0
    """The size of the file with the map of its keys."""
    gaps: tuple[tuple[int, int, str, str], ...] = ()

    @property
    def dense(self) -> bool:
        """Tell whether it has every offset from its first to its last."""
        return self.rows == self.offset_last - self.offset_first + 1

    @property
    def size(self) -> int:
        """Return its bytes on disk, with its map of keys."""
        return self.bytes + self.key_bytes

    @property
    def ranges(self) -> tuple[SpecialRange, ...]:
        """Return its gaps as the log's type."""
        return tuple(SpecialRange(*gap) for gap in self.gaps)


def file_of(label: FileLabel, facts: FileFacts, *, key_bytes: int = 0) -> DiskFile:
    """Return the file that a footer describes."""
    parsed = parse_name(label.name)
    assert parsed is not None
    found = msgspec.structs.asdict(facts)
    if not facts.rows:
        found |= {"offset_first": parsed.first, "offset_last": parsed.first - 1}
    return DiskFile(
        topic=label.topic,
        name=label.name,
        set_first=parsed.first,
        set_end=parsed.end,
        set_files=label.set_files,
        schema=label.schema,
        created_us=label.created_us,
        partition=label.partition,
        key_ids=label.key_ids,
        key_bytes=key_bytes,
        gaps=label.gaps,
        **found,
    )


def set_name(name: SetName) -> str:
    """Return the name of a file."""
    return f"{name.first:016x}-{name.end:016x}-{name.number}-{name.id}{SUFFIX}"


def parse_name(text: str) -> SetName | None:
    """Return the parts of a file's name, None if it is another name."""
    match = _NAME.match(text)
    if match is None:
        return None
    return SetName(int(match[1], 16), int(match[2], 16), int(match[3]), match[4])


def keys_name(name: str) -> str:
    """Return the name of a file's map of keys."""
    return name.removesuffix(SUFFIX) + KEYS_SUFFIX


def file_schema(schema: pa.Schema, *, keyed: bool) -> pa.Schema:
    """Return the columns of a file: system columns first, then the topic's, all with ids."""
    system = [OFFSET_FIELD, TIME_FIELD, *((OP_FIELD, PRESENT_FIELD) if keyed else ())]
    numbered = [
        field.with_metadata({FIELD_ID: str(SYSTEM_ID_FIRST + number)})
        for number, field in enumerate(system)
    ]
    return pa.schema([*numbered, *map(_with_field_id, schema)])


def user_schema(schema: pa.Schema) -> pa.Schema:
    """Return the topic's columns of a file, without the system columns."""
    names = {OFFSET_FIELD.name, TIME_FIELD.name, OP_FIELD.name, PRESENT_FIELD.name}
    return pa.schema([field for field in schema if field.name not in names])


def ids_of(schema: pa.Schema) -> list[int]:
    """Return the id of each column, -1 for one without."""
    return [column_id(field) for field in schema]


def _with_field_id(field: pa.Field) -> pa.Field:
    data_type = field.type
    if pa.types.is_struct(data_type):
        data_type = pa.struct([_with_field_id(child) for child in data_type])
    elif pa.types.is_map(data_type):
        key, value = _with_field_id(data_type.key_field), _with_field_id(data_type.item_field)
        data_type = pa.map_(key, value)
    elif pa.types.is_list(data_type):
        data_type = pa.list_(_with_field_id(data_type.value_field))
    found = column_id(field)
    metadata = dict(field.metadata or {})
    if found >= 0:
        metadata[FIELD_ID] = b"%d" % found
    return field.with_type(data_type).with_metadata(metadata or None)


# -- producers' runs ------------------------------------------------------------------------------

RUNS_KEY: Final = "frazil.runs"
RUNS_MAX: Final = 1 << 16
"""A set keeps so many runs; those beyond every producer's window are dropped first."""
WINDOW_MAX: Final = 1_000
"""If there are too many, each producer keeps so many of its newest runs: the longest window."""
_COLUMNS: Final = 5
_BYTES_MAX: Final = RUNS_MAX * _COLUMNS * 8


class SentRun(NamedTuple):
    """Consecutive records of one producer, as one frame held them.

    Files hold records, not the batches in which they came. The footer of a set's first file keeps
    the runs of uploaded topics, so that records can be framed again after the log has freed them.
    """

    offset: int
    records: int
    producer: int
    epoch: int
    sequence: int


def kept_runs(runs: Sequence[SentRun]) -> list[SentRun]:
    """Return the runs that a set keeps, in offset order."""
    found = sorted(runs)
    if len(found) <= RUNS_MAX:
        return found
    counts: dict[int, int] = {}
    kept: list[SentRun] = []
    for run in reversed(found):
        count = counts[run.producer] = counts.get(run.producer, 0) + 1
        if count <= WINDOW_MAX:
            kept.append(run)
    return kept[:RUNS_MAX][::-1]


def encode_runs(runs: Sequence[SentRun]) -> str:
    """Encode runs, sorted by offset, as the text of a footer's entry.

    Each column is stored as its differences, which compress well.
    """
    assert len(runs) <= RUNS_MAX
    table = np.array(runs, dtype=np.uint64).reshape(-1, _COLUMNS)
    steps = np.diff(table.T, axis=1, prepend=np.uint64(0)).astype("<u8")
    return base64.b64encode(zlib.compress(steps.tobytes(), 6)).decode()


def decode_runs(text: str) -> list[SentRun]:
    """Decode the runs of a footer.

    Raises:
        CorruptionError: if the text is no list of runs.
    """
    try:
        data = zlib.decompressobj().decompress(
            base64.b64decode(text, validate=True), _BYTES_MAX + 1
        )
    except (ValueError, zlib.error) as error:
        raise CorruptionError("runs of a file cannot be decoded", reason=error) from error
    if len(data) % (8 * _COLUMNS) or len(data) > _BYTES_MAX:
        raise CorruptionError("runs of a file have the wrong size", bytes=len(data))
    steps = np.frombuffer(data, dtype="<u8").reshape(_COLUMNS, -1)
    return [SentRun(*each) for each in np.cumsum(steps, axis=1, dtype=np.uint64).T.tolist()]
