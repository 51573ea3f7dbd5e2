"""Changes of a keyed topic, checked and packed for the log: one by one, or as Arrow data.

    keyed = runtime.codec.columns.keyed               # of the current schema version, taken once
    change = keyed.changes.prepare_row({"id": 7, "name": "x"}, OP_UPSERT)
    change = keyed.changes.prepare_update(7, {"name": "y"})          # partial, `present` is set
    change = keyed.changes.prepare_delete(7)
    delete, rest = keyed.changes.prepare_update(7, {"id": 8})        # the key itself changes
    keyed.changes.key_of(7)                                          # the normal form of a key
    for batch in keyed.input.batches(data, op_column="op", bytes_max=..., rows_max=...):
        payload = runtime.codec.columns.arrow.payload(batch)

A sequencer resolves a partial update before it queues it, under its own lock:

    change = merged(change, image, codec)      # image: a row under `codec`'s columns, either
    change.base = base                         #   base.values of a change not yet written, or
                                               #   codec.image(batch, row) of a stored row
    change = completed(change)                 # the key is unknown: absent columns become null
    entry = (topic, change.codec, change, 0, len(change.packed), waiter, sender)

Always take `change.codec`: the columns may have changed since the change was prepared. The journal
marks each change as written or failed; a change that builds on a failed one is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from frazil.errors import Conflict, InvalidRequest
from frazil.log import Payload
from frazil.log import format as fmt
from frazil.model import OP_DELETE, OP_INSERT, OP_NAMES, OP_UPDATE, OP_UPSERT
from frazil.schema import (
    ArrowInput,
    BitmapMoves,
    KeyShape,
    Row,
    bitmap_bytes,
    bitmap_of,
    cell_check,
    check_cell,
    column_id,
    join_packed,
    positions_of,
    raw_batches,
    stored_forms,
)
from frazil.topic.payloads import (
    CHANGE_FLAGS,
    OP_FIELD,
    PRESENT_FIELD,
    arrow_payload,
    change_schema,
)

if TYPE_CHECKING:
    from frazil.log import Codec
    from frazil.schema import IngestLimits, Key, RowEncoder
    from frazil.topic.frames import TableCodec

_pack = msgspec.msgpack.Encoder().encode
_PLAIN: Final = frozenset({int, str, bytes})
"""The types of most keys; other keys take the slower path."""
_FULL_TAILS: Final = {op: bytes((op, 0xC0)) for op in OP_NAMES}
"""The last two elements of a packed record: the operation, and nil for the bitmap."""


class Change(msgspec.Struct, eq=False, gc=False):
    """One change of one key.

    `values` has one entry per column of `codec`'s schema, None where a column is absent. `present`
    is the bitmap of the columns that a partial change names. It is None for a whole row and for a
    delete, which has only its key columns. `base` is the unwritten change that this change was
    resolved against. The journal's thread sets `done` or `failed`; all other fields are fixed once
    a change is queued. If the columns change, the journal writes a copy, and its `origin` is
    settled with it.
    """

    key: Any
    op: int
    values: Row
    present: bytes | None
    packed: bytes
    codec: ChangeCodec
    base: Change | None = None
    previous: Change | None = None
    """The newest change of the key before this one, until it is written."""
    failed: bool = False
    done: bool = False
    origin: Change | None = None
    plain: bool = False
    """Whether it was published as a row, not as a change: it needs no operation in the log."""

    @property
    def version(self) -> int:
        """Return the schema version of `values`."""
        return self.codec.version


class Move(NamedTuple):
    """A change of a row's key."""

    delete: Change
    insert: Change
    """A partial change; `merged` or `completed` adds the columns that the update does not name."""


Step = Change | Move


class ChangeCodec:
    """Makes and encodes changes of one schema version of a keyed topic. Thread-safe."""

    solo = False
    tracked = True

    def __init__(
        self, owner: TableCodec, version: int, *, rows: RowEncoder, changes: RowEncoder
    ) -> None:
        self.schema = schema = rows.schema
        self.version = version
        self.shape = KeyShape(schema, owner.primary_key)
        self.ids = tuple(column_id(field) for field in schema)
        self.readable = rows.packable
        self._rows = rows
        self._changes = changes
        self._owner = owner
        self._bytes_max = owner.limits.message_bytes_max
        self._width = len(schema)
        self._row_key = self.shape.row_key
        self._key_bits = sum(1 << position for position in self.shape.positions)
        self._bitmap_bytes = bitmap_bytes(self._width)
        self._columns = {
            field.name: (index, cell_check(field, path=field.name), bool(field.nullable))
            for index, field in enumerate(schema)
        }
        self._key_checks = tuple((name, self._columns[name][1]) for name in self.shape.names)
        self._head = _array_head(self._width + 2)
        self._row_head = _array_head(self._width)
        self._skip = len(self._row_head)
        self._stored_forms = stored_forms(schema)
        self._counted = tuple(
            pt.is_timestamp(data_type) and data_type.unit == "ns" for data_type in schema.types
        )
        self.exact = any(_has_nanoseconds(data_type) for data_type in schema.types)
        """Whether a column may have values finer than Python's: then rows are read from Arrow."""

    # -- from users' input -----------------------------------------------------------------------

    def prepare_row(self, row: Mapping[str, object], op: int, *, plain: bool = False) -> Change:
        """Check a whole row to insert or upsert, `plain` if it was appended.

        Raises:
            InvalidRequest: as for `RowEncoder.encode`.
        """
        values, packed = self._rows.encode(row)
        # The row's packed array gets two more elements; its values are not packed again.
        packed = self._head + packed[self._skip :] + _FULL_TAILS[op]
        return Change(self._row_key(values), op, values, None, packed, self, plain=plain)

    def prepare_update(self, key: object, columns: Mapping[str, object]) -> Step:
        """Check the named columns of one key; the other columns keep their values.

        A new value of a key column moves the row: then the delete of the old key and the insert of
        the new one are returned.

        Raises:
            InvalidRequest: if no column is named, or a value does not fit.
        """
        own = self.parse_key(key)
        values, named = self._named(own, columns)
        if tuple(values[position] for position in self.shape.positions) == own:
            return self._packed(OP_UPDATE, values, named)
        delete = self._packed(OP_DELETE, self._with_key(own), None)
        return Move(delete, self._packed(OP_INSERT, values, named))

    def prepare_delete(self, key: object) -> Change:
        """Check the key of a delete; the change has no other columns."""
        return self._packed(OP_DELETE, self._with_key(self.parse_key(key)), None)

    def prepare(self, op: int, key: object, row: Mapping[str, object]) -> Step:
        """Check one change by its operation; only updates and deletes use `key`."""
        if op == OP_UPDATE:
            return self.prepare_update(key, row)
        return self.prepare_delete(key) if op == OP_DELETE else self.prepare_row(row, op)

    def parse_key(self, key: object) -> Row:
        """Return the checked values of the key columns.

        `key` is a value for a key of one column; a list or tuple in the order of the key, or a
        dict of its columns, for any.

        Raises:
            InvalidRequest: with the form that the key needs.
        """
        checks = self._key_checks
        if type(key) in _PLAIN and len(checks) == 1:
            return (checks[0][1](key),)
        if isinstance(key, Mapping):
            if set(key) != set(self.shape.names):
                self._refuse_key("key must name each key column and no other", key)
            key = [key[name] for name in self.shape.names]
        parts: Sequence[object] = key if isinstance(key, (tuple, list)) else (key,)
        if len(parts) != len(checks):
            self._refuse_key(
                "key has the wrong number of values, pass a tuple or a dict for several columns",
                key,
            )
        return tuple(
            check_cell(check, part, nullable=False, path=name)
            for (name, check), part in zip(checks, parts, strict=True)
        )

    def key_of(self, key: object) -> Key:
        """Return the normal form of a user's key."""
        return self.shape.key_of(self.parse_key(key))

    # -- forms -----------------------------------------------------------------------------------

    def whole(self, values: Row, op: int) -> Change:
        """Return the change that sets a key to checked values of all columns."""
        return self._packed(op, values, None)

    def image(self, batch: pa.RecordBatch, row: int) -> Row:
        """Return the values of a stored row in this schema, nanoseconds as Arrow's integers.

        Raises:
            InvalidRequest: if a value has no Python form: nanoseconds inside of a nested column
                without pandas, or a year after 9999. Whole rows can still be published.
        """
        values: list[object] = []
        try:
            for index, counted in enumerate(self._counted):
                scalar = batch.column(index)[row]
                values.append(scalar.value if counted else scalar.as_py())
        except (pa.ArrowException, OverflowError, ValueError) as error:
            raise InvalidRequest(
                "the row has a value that Python cannot hold, publish it whole as an upsert",
                cause=error,
            ) from error
        return tuple(values)

    def as_stored(self, values: Row) -> Row:
        """Return validated values in the form that Arrow would return after a round trip."""
        if not self._stored_forms:
            return values
        stored = list(values)
        for position, form in self._stored_forms:
            if stored[position] is not None:
                stored[position] = form(stored[position])
        return tuple(stored)

    def carried(self, values: Row, ids: Sequence[int]) -> Row:
        """Map another schema version's values by column id; new columns are null."""
        positions = {number: index for index, number in enumerate(ids)}
        order = [positions.get(number) for number in self.ids]
        return tuple(None if at is None else values[at] for at in order)

    # -- to the log ------------------------------------------------------------------------------

    def encode(self, records: Sequence[Change]) -> Payload:
        """Encode changes into one payload.

        Raises:
            Conflict: if a change builds on one that failed; it counts as failed from then on.
            InvalidRequest: if the values cannot be converted to Arrow.
        """
        _check_bases(records)
        # Appended rows need no operation: a frame without operations means upserts, and readers
        # need not merge them as changes.
        flags = 0 if all(each.plain for each in records) else CHANGE_FLAGS
        if len(records) < self._owner.rows_arrow_min and self._is_packable(records):
            packed = [each.packed if flags else self._without_op(each.packed) for each in records]
            data = join_packed(packed)
            return Payload(fmt.KIND_ROWS, flags, data, len(data))
        try:
            batch = self._batch(records, flags)
        except (pa.ArrowException, OverflowError, UnicodeError, TypeError, ValueError) as error:
            raise InvalidRequest("row does not fit the topic's columns", error=error) from error
        return arrow_payload(batch, self._owner.options, flags)

    def _batch(self, records: Sequence[Change], flags: int) -> pa.RecordBatch:
        if flags:
            return self._changes.batch([(*each.values, each.op, each.present) for each in records])
        return self._rows.batch([each.values for each in records])

    def _is_packable(self, records: Sequence[Change]) -> bool:
        """Return whether packed values are exact; integers for nanoseconds need Arrow."""
        return self._rows.packable and not any(
            type(value) is int and counted
            for record in (records if self.exact else ())
            for value, counted in zip(record.values, self._counted, strict=True)
        )

    def _without_op(self, packed: bytes) -> bytes:
        """Return the packed row of a packed upsert."""
        return self._row_head + packed[len(self._head) : -2]

    def upgraded(self, data: Any, *, many: bool) -> tuple[Codec, Any]:
        """Return copies with the current columns; later changes still build on the originals."""
        keyed = self._owner.columns.keyed
        assert keyed is not None
        current = keyed.changes
        fresh = [current.adopted(change) for change in (data if many else (data,))]
        return current, fresh if many else fresh[0]

    def adopted(self, change: Change) -> Change:
        """Return a copy of another schema version's change with these columns."""
        ids = change.codec.ids
        present = change.present
        if present is not None:
            present = BitmapMoves(ids, self.ids).moved(present)
        values = self.carried(change.values, ids)
        return Change(
            change.key,
            change.op,
            values,
            present,
            _pack((*values, change.op, present)),
            self,
            change.base,
            origin=change,
            plain=change.plain,
        )

    def settled(self, data: Any, *, many: bool, written: bool) -> None:
        """Mark changes as written or failed; a chain of bases ends at a written change."""
        for record in data if many else (data,):
            change: Change | None = record
            while change is not None:
                if written:
                    change.done = True
                    change.base = change.previous = None
                else:
                    change.failed = True
                change = change.origin

    # -- parts -----------------------------------------------------------------------------------

    def _packed(self, op: int, values: Row, present: bytes | None) -> Change:
        try:
            packed = _pack((*values, op, present))
        except (OverflowError, UnicodeEncodeError, TypeError) as error:
            raise InvalidRequest("row does not fit the topic's columns", error=error) from error
        if len(packed) > self._bytes_max:
            raise InvalidRequest("row is too large", bytes=len(packed), bytes_max=self._bytes_max)
        return Change(self._row_key(values), op, values, present, packed, self)

    def _with_key(self, key: Row) -> Row:
        values: list[object] = [None] * self._width
        for position, value in zip(self.shape.positions, key, strict=True):
            values[position] = value
        return tuple(values)

    def _named(self, key: Row, columns: Mapping[str, object]) -> tuple[Row, bytes]:
        """Return the checked values of the named columns and of the key, and their bitmap."""
        if type(columns) is not dict and not isinstance(columns, Mapping):
            raise InvalidRequest("columns must be a dict", got=type(columns).__name__)
        if not columns:
            raise InvalidRequest("an update must name at least one column")
        values = list(self._with_key(key))
        named = self._key_bits
        for name, value in columns.items():
            found = self._columns.get(name)
            if found is None:
                raise self._rows.unknown(name)
            index, check, nullable = found
            values[index] = check_cell(check, value, nullable=nullable, path=name)
            named |= 1 << index
        return tuple(values), named.to_bytes(self._bitmap_bytes, "little")

    def _refuse_key(self, why: str, key: object) -> NoReturn:
        raise InvalidRequest(why, columns=", ".join(self.shape.names), got=type(key).__name__)


def _check_bases(records: Sequence[Change]) -> None:
    failed = False
    for each in records:
        if each.base is not None and each.base.failed:
            each.failed = failed = True
    if failed:
        raise Conflict("the change it builds on failed, nothing was written; try again")


def merged(change: Change, image: Row, codec: ChangeCodec) -> Change:
    """Apply a partial change to `image`, a row with `codec`'s columns; return the whole row.

    The result is a change of the newer of both schema versions and keeps its operation.
    """
    if change.codec.version < codec.version:
        change = codec.adopted(change)
    elif change.codec is not codec:
        image = change.codec.carried(image, codec.ids)
    assert change.present is not None
    values = list(image)
    for position in positions_of(change.present):
        values[position] = change.values[position]
    return change.codec.whole(tuple(values), change.op)


def completed(change: Change) -> Change:
    """Return a partial change as a whole row whose absent columns are null.

    Raises:
        InvalidRequest: if an absent column must not be null.
    """
    assert change.present is not None
    codec = change.codec
    named = set(positions_of(change.present))
    for index, field in enumerate(codec.schema):
        if index not in named and not field.nullable:
            raise InvalidRequest(
                "key does not exist, and a new row needs this column", column=field.name
            )
    return codec.whole(change.values, change.op)


def _array_head(count: int) -> bytes:
    """Return the bytes with which msgpack starts an array of `count` elements."""
    return _pack([None] * count)[:-count]


def _has_nanoseconds(data_type: pa.DataType) -> bool:
    if pt.is_timestamp(data_type):
        return bool(data_type.unit == "ns")
    return any(_has_nanoseconds(data_type.field(i).type) for i in range(data_type.num_fields))


OP_COLUMN: Final = OP_FIELD.name
OP_TEXTS: Final = {
    **{name: op for op, name in OP_NAMES.items()},
    "c": OP_INSERT,
    "u": OP_UPDATE,
    "r": OP_UPSERT,
    "d": OP_DELETE,
}


@cache
def _known() -> tuple[pa.Array, pa.Array, pa.Array]:
    """Return the texts of operations, their numbers, and all numbers.

    Not at import: converting its first list makes Arrow import pandas, if it is installed.
    """
    return (
        pa.array(list(OP_TEXTS), pa.string()),
        pa.array(list(OP_TEXTS.values()), OP_FIELD.type),
        pa.array(list(OP_NAMES), OP_FIELD.type),
    )


class ChangeInput:
    """Converts bulk changes to one schema version. Thread-safe."""

    def __init__(self, schema: pa.Schema, primary_key: Sequence[int], limits: IngestLimits) -> None:
        self.schema = change_schema(schema, primary_key)
        self._columns = schema
        self._key = frozenset(i for i, f in enumerate(schema) if column_id(f) in primary_key)
        self._required = tuple(
            index
            for index, field in enumerate(schema)
            if not field.nullable and index not in self._key
        )
        # The operation decides which nulls are wrong, so this class checks them itself.
        loose = pa.schema(list(self.schema)[:-1], metadata=schema.metadata)
        self._input = ArrowInput(loose, limits)

    def batches(
        self, data: object, *, op_column: str = OP_COLUMN, bytes_max: int, rows_max: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield checked batches of changes, none above the limits, reading `data` as it goes.

        `data` has the forms of `to_batches`, with an extra column `op_column`.

        Raises:
            InvalidRequest: with the column and the row of the first error.
        """
        if not isinstance(op_column, str):
            raise InvalidRequest("op_column must be a name", got=type(op_column).__name__)
        if self._columns.get_field_index(op_column) >= 0:
            raise InvalidRequest(
                "operation column has the name of a column of the topic, rename it in the data",
                op_column=op_column,
            )
        row = 0
        for raw in raw_batches(data):
            changes, named = self._with_ops(raw, op_column, row)
            for piece in self._input.batches(
                changes, bytes_max=bytes_max, rows_max=rows_max, row_first=row
            ):
                yield self._finished(piece, named, row)
                row += piece.num_rows

    def _with_ops(
        self, raw: pa.RecordBatch, op_column: str, row: int
    ) -> tuple[pa.RecordBatch, frozenset[int]]:
        """Return the raw batch with the operations as numbers, and the positions of its columns."""
        try:
            names = raw.schema.names
        except UnicodeDecodeError as error:
            raise InvalidRequest("column name is not valid UTF-8", cause=error) from error
        if names.count(op_column) != 1:
            why = "comes twice" if op_column in names else "is missing"
            raise InvalidRequest(f"operation column {why}", op_column=op_column)
        position = names.index(op_column)
        ops = _numbers(raw.column(position), op_column, row)
        named = {self._columns.get_field_index(n) for n in names if n != op_column}
        fields, arrays = list(raw.schema), raw.columns
        fields[position], arrays[position] = OP_FIELD, ops
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields)), frozenset(named - {-1})

    def _finished(self, piece: pa.RecordBatch, named: frozenset[int], row: int) -> pa.RecordBatch:
        """Check the nulls of required columns, clear deleted rows, and add the bitmaps."""
        columns = len(self._columns)
        ops = piece.column(columns)
        arrays = piece.columns[:columns]
        deletes = pc.equal(ops, pa.scalar(OP_DELETE, ops.type))
        updates = pc.equal(ops, pa.scalar(OP_UPDATE, ops.type))
        for index in self._required:
            self._check_required(arrays[index], index, deletes, updates, named, row)
        if pc.any(deletes).as_py():
            arrays = [
                array if index in self._key else _emptied(array, deletes)
                for index, array in enumerate(arrays)
            ]
        if pc.any(updates).as_py():
            bitmap = pa.scalar(bitmap_of(named, columns), PRESENT_FIELD.type)
            present = pc.if_else(updates, bitmap, pa.scalar(None, PRESENT_FIELD.type))
        else:
            present = pa.nulls(piece.num_rows, PRESENT_FIELD.type)
        return pa.RecordBatch.from_arrays([*arrays, ops, present], schema=self.schema)

    def _check_required(
        self,
        array: pa.Array,
        index: int,
        deletes: pa.Array,
        updates: pa.Array,
        named: frozenset[int],
        row: int,
    ) -> None:
        if not array.null_count:
            return
        free = deletes if index in named else pc.or_(deletes, updates)
        wrong = pc.index(pc.and_not(array.is_null(), free), pa.scalar(True)).as_py()
        if wrong >= 0:
            given = index in named
            why = "column must not be null" if given else "column is missing and must not be null"
            raise InvalidRequest(why, column=self._columns.field(index).name, row=row + wrong)


def _numbers(column: pa.Array, name: str, row: int) -> pa.Array:
    """Return the operations as numbers of `_op`."""
    kind = column.type
    known_texts, of_texts, numbers = _known()
    if pt.is_dictionary(kind):
        column = column.dictionary_decode()
        kind = column.type
    try:
        if pt.is_integer(kind):
            ops = column.cast(OP_FIELD.type, safe=True)
            known = pc.is_in(ops, value_set=numbers)
        elif pt.is_string(kind) or pt.is_large_string(kind) or pt.is_string_view(kind):
            column.validate(full=True)
            indices = pc.index_in(pc.utf8_lower(column.cast(pa.string())), value_set=known_texts)
            ops, known = of_texts.take(indices), indices.is_valid()
        else:
            raise InvalidRequest(
                "operations must be text or integers", op_column=name, got=column.type
            )
    except pa.ArrowException as error:
        raise InvalidRequest("operation is not known", op_column=name, cause=error) from error
    wrong = pc.index(known, pa.scalar(False)).as_py()
    if wrong >= 0:
        raise InvalidRequest(
            "operation is not known",
            op_column=name,
            row=row + wrong,
            operation=column[wrong].as_py(),
            allowed="|".join(OP_TEXTS),
        )
    return ops


def _emptied(array: pa.Array, deletes: pa.Array) -> pa.Array:
    """Return a column with nulls where the row is deleted."""
    if array.null_count == len(array):
        return array
    rows = pa.array(range(len(array)), pa.int64())
    return array.take(pc.if_else(deletes, pa.scalar(None, pa.int64()), rows))
