"""Whatever comes in is stored as it was or refused: random types, rows, changes and junk."""

from __future__ import annotations

import datetime as dt
import json
import math

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.errors import InvalidRequest
from frazil.schema import (
    AddColumn,
    DropColumn,
    Message,
    RenameColumn,
    RowEncoder,
    WidenColumn,
    cell_check,
    column_id,
    declare_schema,
    evolve,
    join_packed,
    last_id,
    message_batch,
    pack_messages,
    parse_json_row,
    parse_partition_spec,
    plan_read,
    strip_ids,
    to_batches,
    unpack_messages,
)
from frazil.schema.columns import parse_type, type_name

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCALARS = {
    "boolean": st.booleans(),
    "int8": st.integers(-128, 127),
    "uint16": st.integers(0, 2**16 - 1),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32),
    "double": st.floats(),
    "string": TEXT,
    "large_string": TEXT,
    "bytes": st.binary(max_size=20),
    "fixed[3]": st.binary(min_size=3, max_size=3),
    "date": st.dates(),
    "time": st.times(),
    "timestamp": st.datetimes(),
    "timestamptz": st.datetimes(timezones=st.just(dt.UTC)),
    "decimal(9,3)": st.decimals(-999_999, 999_999, places=3),
}
ANY_VALUE = st.one_of(st.none(), st.text(max_size=3), st.integers(), *SCALARS.values()) | st.lists(
    st.integers(), max_size=2
)


def _nested(inner):
    def wrap(pair):
        text, values = pair
        nullable = st.none() | values
        return st.sampled_from(
            [
                (f"list<{text}>", st.lists(nullable, max_size=3)),
                (
                    f"struct<a:{text},b:long>",
                    st.fixed_dictionaries({"a": nullable, "b": st.none()}),
                ),
                (
                    f"map<string,{text}>",
                    st.dictionaries(TEXT, nullable, max_size=3).map(
                        lambda pairs: list(pairs.items())
                    ),
                ),
            ]
        )

    return inner.flatmap(wrap)


SCALAR_PAIRS = st.sampled_from(sorted(SCALARS.items(), key=lambda pair: pair[0]))
PAIRS = st.recursive(SCALAR_PAIRS, _nested, max_leaves=3)


def _same(left, right):
    """Compare values, NaN equal to itself."""
    if isinstance(left, float) and isinstance(right, float):
        return left == right or (math.isnan(left) and math.isnan(right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    if isinstance(left, (list, tuple)) and isinstance(right, (list, tuple)):
        return len(left) == len(right) and all(map(_same, left, right))
    return left == right


@st.composite
def tables(draw, pairs=PAIRS):
    """Return a schema and legal rows for it."""
    columns = draw(st.lists(pairs, min_size=1, max_size=5))
    schema = declare_schema({f"c{index}": text for index, (text, _) in enumerate(columns)})
    row = st.fixed_dictionaries(
        {f"c{index}": st.none() | values for index, (_, values) in enumerate(columns)}
    )
    return schema, draw(st.lists(row, min_size=1, max_size=4))


@given(PAIRS)
def test_every_type_reads_back_from_its_text(pair):
    """The text of any supported type names exactly that type."""
    field = strip_ids(declare_schema({"c": pair[0]})).field(0)
    assert parse_type(type_name(field.type)).equals(field.type, check_metadata=True)


@given(tables(), st.randoms())
def test_rows_reach_arrow_unchanged(table, chance):
    """Legal rows, their keys in any order, come back from Arrow equal to what was given."""
    schema, rows = table
    encoder = RowEncoder(schema)
    shuffled = []
    for row in rows:
        items = list(row.items())
        chance.shuffle(items)
        shuffled.append(encoder.values(dict(items)))
    batch = encoder.batch(shuffled)
    batch.validate(full=True)
    assert _same(batch.to_pylist(), rows)
    stripped = pa.RecordBatch.from_arrays(batch.columns, schema=strip_ids(schema))
    (again,) = to_batches(stripped, schema=schema, bytes_max=1 << 20, rows_max=100)
    assert _same(again.to_pylist(), rows)


@given(tables(SCALAR_PAIRS))
def test_packed_rows_unpack_unchanged(table):
    """Rows packed together or one by one unpack to the same values and the same batch."""
    schema, rows = table
    encoder = RowEncoder(schema)
    encoded = [encoder.encode(row) for row in rows]
    data = join_packed([packed for _, packed in encoded])
    assert data == msgspec.msgpack.encode([values for values, _ in encoded])
    unpacked = encoder.unpack_rows(data)
    assert _same(unpacked, [values for values, _ in encoded])
    assert _same(encoder.batch(unpacked).to_pylist(), rows)


@given(SCALAR_PAIRS, ANY_VALUE)
def test_fast_and_slow_checks_agree(pair, value):
    """A value passes the encoder exactly if the strict check of its column lets it pass."""
    schema = declare_schema({"c": pair[0]})
    encoder = RowEncoder(schema)
    try:
        wanted = None if value is None else cell_check(schema.field(0), path="c")(value)
    except InvalidRequest:
        with pytest.raises(InvalidRequest):
            encoder.values({"c": value})
        return
    (found,) = encoder.values({"c": value})
    assert _same(found, wanted)
    assert type(found) is type(wanted)
    stored = encoder.batch([(found,)]).to_pylist()[0]["c"]
    # A float column of 32 bits rounds, as its name says; everything else is kept exactly.
    assert _same(stored, wanted) or pair[0] == "float"


@given(st.dictionaries(st.text(max_size=5), ANY_VALUE, max_size=4))
def test_any_dict_is_a_row_or_refused(row):
    """No dict crashes the encoder."""
    encoder = RowEncoder(declare_schema({"a": "long", "b": "string", "c": "list<int>"}))
    try:
        assert len(encoder.values(row)) == 3
    except InvalidRequest as error:
        assert str(error).isprintable()


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | TEXT
    | st.sampled_from(['":', " :"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(TEXT, JSON_VALUES, max_size=4), st.sampled_from([None, 1, "\t"]), st.booleans()
)
def test_json_objects_read_as_the_standard_library_writes_them(row, indent, ascii_only):
    """Any object is read unchanged, however it is spaced or escaped."""
    separators = (",", " : ") if indent == 1 else None
    line = json.dumps(row, indent=indent, separators=separators, ensure_ascii=ascii_only)
    assert parse_json_row(line) == row


@given(st.dictionaries(TEXT, JSON_VALUES, min_size=1, max_size=3), JSON_VALUES, st.data())
def test_a_doubled_key_is_always_found(row, value, data):
    """An object that repeats one of its keys, on top or below, is refused."""
    key = data.draw(st.sampled_from(sorted(row)))
    gap = data.draw(st.sampled_from([":", " :", "\n: "]))
    again = f"{json.dumps(key, ensure_ascii=data.draw(st.booleans()))}{gap}{json.dumps(value)}"
    line = f"{json.dumps(row)[:-1]},{again}}}"
    for text in (line, f'{{"outer":[{line}]}}'):
        with pytest.raises(InvalidRequest, match="twice"):
            parse_json_row(text)


@given(st.lists(st.text(alphabet="abcdiyhourbucket[]()01 ", max_size=12), max_size=3))
def test_junk_partition_specs_never_crash(spec):
    """Any list of texts is a spec or an InvalidRequest."""
    schema = declare_schema({"a": "long", "d": "date"})
    try:
        assert len(parse_partition_spec(spec, schema)) == len(spec)
    except InvalidRequest as error:
        assert error.message


NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
CHANGES = st.one_of(
    st.builds(AddColumn, NAMES, st.sampled_from(["int", "float", "string", "list<int>"])),
    st.builds(WidenColumn, NAMES, st.sampled_from(["long", "double"])),
    st.builds(DropColumn, NAMES),
    st.builds(RenameColumn, NAMES, NAMES),
)


@given(st.lists(CHANGES, max_size=8))
def test_evolution_equals_a_model_by_id(changes):
    """After any legal changes an old batch shows exactly the columns that a model by id has."""
    start = declare_schema({"a": "int", "b": "float", "c": "string"})
    batch = pa.RecordBatch.from_pydict(
        {"a": [1, None], "b": [0.5, None], "c": ["x", ""]}, schema=start
    )
    values = {column_id(field): batch.column(field.name).to_pylist() for field in start}
    schema, given_ids = start, set(values)
    for change in changes:
        try:
            after = evolve(schema, [change])
        except InvalidRequest:
            continue
        fresh = {column_id(field) for field in after} - {column_id(field) for field in schema}
        assert not fresh & given_ids, "an id was given twice"
        given_ids |= fresh
        assert last_id(after) >= max(given_ids)
        schema = after
    found = plan_read(start, schema)(batch)
    found.validate(full=True)
    expected = {field.name: values.get(column_id(field), [None, None]) for field in schema}
    assert found.to_pydict() == expected


MESSAGES = st.builds(
    Message,
    st.binary(max_size=20),
    st.none() | TEXT,
    st.none() | st.dictionaries(TEXT, TEXT, max_size=3),
    st.none() | st.integers(0, 2**53),
    st.none() | TEXT,
    st.none() | st.integers(0, 2**64 - 1),
    st.none() | st.integers(0, 2**64 - 1),
    st.none() | st.integers(0, 2**32 - 1),
)


@given(st.lists(MESSAGES, max_size=5))
def test_messages_survive_both_forms(messages):
    """Messages unpack equal to what was packed, and a batch holds each of their fields."""
    assert unpack_messages(pack_messages(messages)) == messages
    batch = message_batch(messages, 7)
    batch.validate(full=True)
    times = batch.column("publish_time").cast(pa.int64()).to_pylist()
    for message, row, time in zip(messages, batch.to_pylist(), times, strict=True):
        assert row["payload"] == message.payload
        assert row["key"] == message.key
        pairs = None if message.attributes is None else list(message.attributes.items())
        assert row["attributes"] == pairs
        assert time == (7 if message.publish_time is None else message.publish_time)
        for name in ("producer_name", "producer_id", "schema_id", "schema_version"):
            assert row[name] == getattr(message, name)
