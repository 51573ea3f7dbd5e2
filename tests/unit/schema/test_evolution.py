"""Schema changes, and old batches under new schemas."""

from __future__ import annotations

import pyarrow as pa
import pytest

from frazil.errors import InvalidRequest
from frazil.schema.columns import declare_schema, schema_with
from frazil.schema.evolution import (
    AddColumn,
    DropColumn,
    RenameColumn,
    WidenColumn,
    evolve,
    plan_read,
)

SCHEMA = declare_schema({"id": "long", "a": "int", "b": "string", "f": "float"}, primary_key=["id"])
BATCH = pa.RecordBatch.from_pydict(
    {"id": [1, 2, 3], "a": [10, None, 30], "b": ["x", "y", None], "f": [0.5, 1.5, None]},
    schema=SCHEMA,
)


def test_an_old_batch_reads_under_every_change():
    """Added columns are null, widened and renamed ones keep their values, dropped ones go."""
    changes = [
        AddColumn("n", "struct<x:int,y:list<string>>"),
        WidenColumn("a", "long"),
        RenameColumn("a", "aa"),
        DropColumn("b"),
        WidenColumn("f", pa.float64()),
    ]
    wanted = evolve(SCHEMA, changes)
    found = plan_read(SCHEMA, wanted)(BATCH)
    found.validate(full=True)
    assert found.schema.equals(wanted, check_metadata=True)
    assert found.to_pydict() == {
        "id": [1, 2, 3],
        "aa": [10, None, 30],
        "f": [0.5, 1.5, None],
        "n": [None, None, None],
    }
    assert found.column(0).buffers()[1].address == BATCH.column(0).buffers()[1].address


def test_identical_schemas_give_the_batch_itself():
    """Reading under the same schema, also a copy of it, returns the very same object."""
    copy = pa.ipc.read_schema(SCHEMA.serialize())
    assert plan_read(SCHEMA, copy)(BATCH) is BATCH
    assert plan_read(SCHEMA, copy) is plan_read(SCHEMA, copy)


@pytest.mark.parametrize(
    "change",
    [
        AddColumn("c", "int not null"),
        AddColumn("A", "int"),
        AddColumn("_time", "int"),
        AddColumn("c", "uint64"),
        WidenColumn("a", "int16"),
        WidenColumn("a", "double"),
        WidenColumn("a", "string"),
        WidenColumn("f", "long"),
        WidenColumn("nope", "long"),
        WidenColumn("id", "decimal(20,0)"),
        DropColumn("id"),
        DropColumn("nope"),
        RenameColumn("a", "b"),
        RenameColumn("a", "_offset"),
        RenameColumn("nope", "x"),
    ],
)
def test_any_other_change_is_refused(change):
    """Narrowing, retyping, required columns, key columns and clashes are refused."""
    with pytest.raises(InvalidRequest):
        evolve(SCHEMA, [change], fixed_ids={1})


def test_dropping_every_column_is_refused():
    """A topic keeps at least one column."""
    only = declare_schema({"a": "int"})
    with pytest.raises(InvalidRequest, match="no columns"):
        evolve(only, [DropColumn("a")])


@pytest.mark.parametrize(
    ("narrow", "wide"),
    [
        ("int8", "int16"),
        ("int8", "long"),
        ("int16", "int"),
        ("uint8", "uint32"),
        ("uint32", "long"),
    ],
)
def test_integers_widen_in_steps(narrow, wide):
    """Each wider integer that holds all values of the narrower one is a legal type."""
    before = declare_schema({"a": narrow})
    after = evolve(before, [WidenColumn("a", wide)])
    batch = pa.RecordBatch.from_pydict({"a": [0, 100, None]}, schema=before)
    assert plan_read(before, after)(batch).to_pydict() == {"a": [0, 100, None]}


def _nested():
    """Return a schema, rows of it, and a wanted one with changes inside its nested columns."""
    text = {
        "m": "map<string,int>",
        "s": "struct<a:int,b:string>",
        "l": "list<struct<x:int,y:string>>",
    }
    schema = declare_schema(text)
    struct = schema.field("s").type
    added = pa.field("q", pa.int64(), metadata={"frazil.id": "99"})
    wide_struct = pa.struct([added, struct.field(0).with_name("z").with_type(pa.int64())])
    item = schema.field("l").type.value_field
    x, y = item.type.field(0), item.type.field(1)
    wide_item = item.with_type(pa.struct([y.with_name("yy"), x.with_type(pa.int64())]))
    mapping = schema.field("m").type
    wide_map = pa.map_(mapping.key_field, mapping.item_field.with_type(pa.int64()))
    types = (wide_map, wide_struct, pa.list_(wide_item))
    fields = [field.with_type(new) for field, new in zip(schema, types, strict=True)]
    rows = [
        {"m": [("k", 1)], "s": {"a": 1, "b": "p"}, "l": [{"x": 1, "y": "z"}]},
        {"m": None, "s": None, "l": None},
        {
            "m": [("k", 3), ("j", None)],
            "s": {"a": None, "b": None},
            "l": [None, {"x": None, "y": "w"}],
        },
    ]
    return schema, rows, schema_with(fields, last=99)


@pytest.mark.parametrize(("first", "count"), [(0, 3), (1, 2), (2, 1), (0, 1), (1, 1)])
def test_nested_fields_are_matched_by_id(first, count):
    """Fields inside structs, lists and maps are renamed, widened, added and dropped in slices."""
    schema, rows, wanted = _nested()
    batch = pa.RecordBatch.from_pylist(rows, schema=schema).slice(first, count)
    found = plan_read(schema, wanted)(batch)
    found.validate(full=True)
    assert found.schema.equals(wanted, check_metadata=True)
    expected = [
        {"m": [("k", 1)], "s": {"q": None, "z": 1}, "l": [{"yy": "z", "x": 1}]},
        {"m": None, "s": None, "l": None},
        {"m": rows[2]["m"], "s": {"q": None, "z": None}, "l": [None, {"yy": "w", "x": None}]},
    ]
    assert found.to_pylist() == expected[first : first + count]
