"""Changes in bulk: operations in all their forms, absent columns, nulls, limits."""

from __future__ import annotations

import pyarrow as pa
import pytest

from frazil.errors import InvalidRequest
from frazil.log import format as fmt
from frazil.model import OP_DELETE
from frazil.schema import positions_of
from tests.unit.schema.keyed_topic import frame_of, topic_codec

COLUMNS = {"id": "long", "name": "string not null", "n": "int", "l": "list<int not null>"}
LIMITS = {"bytes_max": 1 << 20, "rows_max": 1000}


def converted(data, codec=None, **options):
    codec = codec or topic_codec(COLUMNS)[0]
    batches = list(codec.columns.keyed.input.batches(data, **{**LIMITS, **options}))
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema.equals(codec.columns.keyed.schema, check_metadata=True)
    return batches


def rows_of(batches):
    return pa.Table.from_batches(batches).to_pylist()


def with_ops(ops, **columns):
    count = len(ops)
    data = {"id": list(range(count)), "name": ["x"] * count, **columns, "_op": ops}
    return pa.table({name: values for name, values in data.items() if values is not None})


@pytest.mark.parametrize(
    "ops",
    [
        ["insert", "update", "upsert", "delete"],
        ["INSERT", "Update", "uPSERT", "DELETE"],
        ["c", "u", "r", "d"],
        [1, 2, 3, 4],
        pa.array(["c", "u", "r", "d"]).dictionary_encode(),
        pa.array(["c", "u", "r", "d"], pa.large_string()),
        pa.array(["c", "u", "r", "d"], pa.string_view()),
        pa.array([1, 2, 3, 4], pa.uint64()),
        pa.array([1, 2, 3, 4], pa.int8()),
    ],
)
def test_operations_come_as_text_letters_or_numbers(ops):
    """In any case and any type of text or integer."""
    found = rows_of(converted(with_ops(ops, n=[1, 2, 3, 4])))
    assert [row["_op"] for row in found] == [1, 2, 3, 4]
    assert [row["n"] for row in found] == [1, 2, 3, None]


def test_an_update_names_what_the_data_has():
    """The bitmap has the columns of the data; whole rows and deletes have none."""
    found = rows_of(converted(with_ops(["u", "c", "d"], n=[None, 1, 1])))
    assert positions_of(found[0]["_present"]) == [0, 1, 2]
    assert [row["_present"] for row in found[1:]] == [None, None]
    assert found[1]["l"] is None


def test_the_operation_column_has_any_name_that_no_column_has():
    """By default it is `_op`; a column of the topic cannot be it."""
    data = pa.table({"id": [1], "what": ["d"]})
    assert rows_of(converted(data, op_column="what"))[0]["_op"] == OP_DELETE
    with pytest.raises(InvalidRequest, match=r"missing.*op_column=_op"):
        converted(data)
    with pytest.raises(InvalidRequest, match=r"name of a column of the topic"):
        converted(data, op_column="name")
    with pytest.raises(InvalidRequest, match="must be a name"):
        converted(data, op_column=3)
    twice = pa.Table.from_arrays([pa.array(["d"]), pa.array(["d"])], names=["_op", "_op"])
    with pytest.raises(InvalidRequest, match="comes twice"):
        converted(twice)
    both = pa.table({"id": [1], "what": ["d"], "_op": [1]})
    with pytest.raises(InvalidRequest, match="comes twice"):
        converted(both, op_column="what")


def test_a_delete_keeps_its_key_alone():
    """Other values are dropped, of nested columns too, and need not be there."""
    data = with_ops(["d", "r"], n=[5, 6], l=[[1], [2]])
    found = rows_of(converted(data))
    assert found[0] == {"id": 0, "name": None, "n": None, "l": None, "_op": 4, "_present": None}
    assert found[1]["l"] == [2]
    assert rows_of(converted(pa.table({"id": [7], "_op": ["d"]})))[0]["id"] == 7


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (with_ops(["u", "c"], name=["x", None]), r"must not be null.*column=name row=1"),
        (with_ops(["u", "u"], name=["x", None]), r"must not be null.*column=name row=1"),
        (with_ops(["u", "d", "r"], name=None), r"is missing and must not.*column=name row=2"),
        (with_ops(["d", "d"], id=[1, None]), r"must not be null.*column=id row=1"),
        (with_ops(["d"], id=None), r"is missing.*column=id"),
        (with_ops(["d", "x"]), r"operation is not known.*row=1 operation=x"),
        (with_ops(["d", None]), r"operation is not known.*row=1"),
        (with_ops([4, 0]), r"operation is not known.*row=1 operation=0"),
        (with_ops([4, 300]), r"operation is not known"),
        (with_ops([1.0]), r"text or integers"),
        (with_ops(["u"], other=[1]), r"does not exist.*other"),
        (with_ops(["u"], n=["text"]), r"cannot be converted without loss"),
        (with_ops(["u"], l=[[None]]), r"null in a nested field.*column=l row=0"),
        ([1], r"not Arrow"),
    ],
)
def test_wrong_changes_are_refused_with_column_and_row(data, why):
    """Which null is wrong depends on the operation: an update may lack a column, not empty it."""
    with pytest.raises(InvalidRequest, match=why):
        converted(data)


def test_rows_are_numbered_through_all_batches():
    """The row of an error is that of the whole input, not of a batch or a piece."""
    good = with_ops(["r"] * 7)
    with pytest.raises(InvalidRequest, match="row=9"):
        converted(pa.concat_tables([good, with_ops(["r", "r", "?"])]), rows_max=2)
    bad = with_ops(["r"] * 3, name=["x", "x", None])
    with pytest.raises(InvalidRequest, match="row=9"):
        converted(pa.concat_tables([good, bad]), rows_max=2)


def test_large_input_is_cut_and_keeps_its_order():
    """No batch is above the limits, and each has its own operations and bitmaps."""
    ops = ["r", "u", "d"] * 40
    batches = converted(with_ops(ops, n=list(range(120))), rows_max=50)
    assert [batch.num_rows for batch in batches] == [50, 50, 20]
    found = rows_of(batches)
    assert [row["id"] for row in found] == list(range(120))
    assert [row["_op"] for row in found] == [3, 2, 4] * 40
    assert [row["_present"] is not None for row in found] == [False, True, False] * 40
    assert [row["n"] for row in found[:3]] == [0, 1, None]


def test_no_rows_give_no_batch():
    """An empty table is not an error here; the caller says what it means."""
    assert converted(with_ops(pa.array([], pa.string()))) == []


def test_a_batch_of_changes_is_one_frame_and_comes_back():
    """What the topic reads is what was checked, with the flags of both columns."""
    codec, _schema = topic_codec(COLUMNS)
    (batch,) = converted(with_ops(["c", "u", "d"], l=[[1], [], None]), codec)
    bulk = codec.columns.keyed.arrow
    payload = bulk.payload(batch)
    assert bulk.fresh().encode(payload) is payload
    assert payload.flags == fmt.FLAG_OP | fmt.FLAG_PRESENT
    assert codec.decode(frame_of(payload, count=3)).equals(batch)
