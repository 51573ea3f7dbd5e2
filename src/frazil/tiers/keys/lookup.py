"""Rows by key across the tiers: the index, chunks in memory, files."""

from __future__ import annotations

import datetime as dt
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa

from frazil.errors import InvalidRequest
from frazil.model import OP_DELETE
from frazil.schema.keys import column_id
from frazil.schema.python_rows import python_rows
from frazil.tiers.keys.fold import STEP_ROWS
from frazil.topic import Image, check_watch

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from frazil.schema import Key
    from frazil.tiers.keys.fold import KeyedState
    from frazil.tiers.keys.index import Found
    from frazil.tiers.topic_tiers import TopicTiers
    from frazil.topic import ChangeCodec

KEYS_MAX: Final = 100_000
"""One call looks up at most so many keys."""
STEP_PAUSE_S: Final = 0.0002
_EPOCH: Final = pa.scalar(0, pa.timestamp("us", "UTC")).as_py()
"""With Arrow's own object for UTC, so that every way to a row gives equal times."""


class StoredRow(NamedTuple):
    """A row at some offset: its values from memory, or else a batch of one."""

    offset: int
    time_us: int
    values: tuple[Any, ...] | None
    batch: pa.RecordBatch | None = None


class KeyLookup:
    """Look-ups in one keyed topic. All methods may be called from any thread."""

    def __init__(self, tiers: TopicTiers, keyed: KeyedState) -> None:
        self._tiers = tiers
        self._keyed = keyed
        self._between_steps = threading.Event()

    @property
    def _codec(self) -> ChangeCodec:
        codec: ChangeCodec = self._tiers.runtime.codec.columns.keyed.changes
        return codec

    # -- for users ---------------------------------------------------------------------------------

    def get(self, key: object) -> dict[str, Any] | None:
        """Return the row with a key as a dict, None if there is none."""
        codec = self._codec
        self.refresh()
        found = self.stored(codec.key_of(key), codec)
        return None if found is None else _as_dict(found, codec)

    def get_many(self, keys: Iterable[object]) -> list[dict[str, Any] | None]:
        """Return the rows with these keys, of one snapshot."""
        codec = self._codec
        given = list(keys)
        if len(given) > KEYS_MAX:
            raise InvalidRequest("too many keys in one call", keys=len(given), keys_max=KEYS_MAX)
        normal = [codec.key_of(key) for key in given]
        end = self.refresh()
        rows = [self.stored(key, codec, before=end) for key in normal]
        return [None if row is None else _as_dict(row, codec) for row in rows]

    def get_rows(
        self, keys: Sequence[object], *, before: int | None = None
    ) -> list[dict[str, Any] | None]:
        """Return rows with `_offset` and `_time`, for SQL; as they were before an offset."""
        codec = self._codec
        end = self.refresh() if before is None else before
        found = [self.stored(codec.key_of(key), codec, before=end) for key in keys]
        return [None if row is None else _with_system(row, codec) for row in found]

    def row_before(self, key: Key, offset: int, schema: pa.Schema) -> dict[str, Any] | None:
        """Return the row that a key had before an offset, under the columns of a schema."""
        codec = self._codec
        self.refresh()
        found = self.stored(key, codec, before=offset)
        if found is None:
            return None
        row = _as_dict(found, codec)
        names = {column_id(field): field.name for field in codec.schema}
        return {field.name: row.get(names.get(column_id(field), "")) for field in schema}

    def image(self, keys: Sequence[Key], codec: ChangeCodec) -> list[Image]:
        """Return the written state of keys, for changes that build on them."""
        self.refresh()
        images: list[Image] = []
        for key in keys:
            found = self.stored(key, codec)
            values = None if found is None else found.values
            if found is not None and found.batch is not None:
                values = codec.image(found.batch, 0)
            images.append(Image(values, None, codec))
        return images

    def has(self, key: Key) -> bool:
        """Tell whether a visible row has a key, after a `refresh`."""
        found = self._newest(key, None)
        return found is not None and found.op != OP_DELETE

    def refresh(self) -> int:
        """Load what a look-up needs; return the end of what is visible now."""
        tiers = self._tiers
        tiers.ensure_loaded()
        return tiers.state.durable

    def fold_to(self, end: int) -> None:
        """Fold all below an offset, step by step; the caller holds no lock of the topic.

        A query that is cancelled stops between two steps; the next fold continues from there.
        """
        self._tiers.repairing(partial(self._fold_steps, end))

    def _fold_steps(self, end: int) -> None:
        keyed = self._keyed
        check_watch()
        keyed.fold(end, budget_rows=STEP_ROWS)
        while keyed.folded_to < end:
            # Without a pause this thread takes the lock again before another one wakes up.
            self._between_steps.wait(STEP_PAUSE_S)
            check_watch()
            keyed.fold(end, budget_rows=STEP_ROWS)

    # -- rows --------------------------------------------------------------------------------------

    def stored(
        self, key: Key, codec: ChangeCodec, *, before: int | None = None
    ) -> StoredRow | None:
        """Return the state of a key below an offset, under a codec's columns."""
        found = self._newest(key, before)
        if found is None or found.op == OP_DELETE:
            return None
        # Columns with values that Python cannot hold exactly are read from Arrow.
        image = None if codec.exact else self._keyed.image_at(found.offset)
        if image is not None and image.version == codec.version:
            return StoredRow(found.offset, image.time_us, codec.as_stored(image.values))
        return self._read(found.offset, codec)

    def _newest(self, key: Key, before: int | None) -> Found | None:
        """Return the newest visible change of a key below an offset; fold only if necessary."""
        keyed, visible = self._keyed, self._tiers.state.durable
        end = visible if before is None else min(before, visible)
        known, found = keyed.latest(key, end)
        if known:
            return found
        self.fold_to(end)
        return keyed.newest(key, end)

    def _read(self, offset: int, codec: ChangeCodec) -> StoredRow:
        """Return a row from Arrow: of a chunk, or of a file."""
        batch = self._tiers.row_batch(offset)
        time_us = batch.column("_time").cast("int64")[0].as_py()
        return StoredRow(offset, time_us, None, _under(batch, codec.schema))


def _under(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a batch under columns of another version: they may have changed meanwhile."""
    positions = {column_id(field): number for number, field in enumerate(batch.schema)}
    fields = [field.with_nullable(True) for field in schema]
    arrays = [_column(batch, positions.get(column_id(each)), each.type) for each in fields]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _column(batch: pa.RecordBatch, position: int | None, data_type: pa.DataType) -> pa.Array:
    if position is None:
        return pa.nulls(batch.num_rows, data_type)
    column = batch.column(position)
    return column if column.type == data_type else column.cast(data_type, safe=False)


def _with_system(row: StoredRow, codec: ChangeCodec) -> dict[str, Any]:
    time = _EPOCH + dt.timedelta(microseconds=row.time_us)
    return {"_offset": row.offset, "_time": time, **_as_dict(row, codec)}


def _as_dict(row: StoredRow, codec: ChangeCodec) -> dict[str, Any]:
    names = codec.schema.names
    if row.values is None:
        assert row.batch is not None
        return python_rows(row.batch.select(names))[0]
    return dict(zip(names, row.values, strict=True))
