"""Declared columns: names, types, ids and their text form."""

from __future__ import annotations

import pyarrow as pa
import pytest

from frazil.errors import InvalidRequest
from frazil.schema.columns import (
    IngestLimits,
    column_id,
    declare_schema,
    ids_of,
    last_id,
    parse_type,
    strip_ids,
    type_name,
)

ALL_TYPES = {
    "a": "boolean",
    "b": "int8",
    "c": "int16",
    "d": "int",
    "e": "long",
    "f": "uint8",
    "g": "uint16",
    "h": "uint32",
    "i": "float",
    "j": "double",
    "k": "string",
    "l": "large_string",
    "m": "bytes",
    "n": "large_binary",
    "o": "fixed[16]",
    "p": "date",
    "q": "time",
    "r": "timestamp",
    "s": "timestamptz",
    "t": "timestamp[s]",
    "u": "timestamp[ns, UTC]",
    "v": "decimal(10,2)",
    "w": "list<string not null>",
    "x": "map<string,long not null>",
    "y": 'struct<a:int,"b c":list<struct<x:decimal(3,0)>>>',
}


def test_every_type_keeps_its_canonical_text():
    """The text form of each supported type reads back to the same text and type."""
    schema = strip_ids(declare_schema(ALL_TYPES))
    for field in schema:
        assert type_name(field.type) == ALL_TYPES[field.name]
        assert parse_type(type_name(field.type)).equals(field.type, check_metadata=True)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("int64", pa.int64()),
        ("BIGINT", pa.int64()),
        ("integer", pa.int32()),
        ("text", pa.string()),
        ("binary", pa.binary()),
        ("timestamp[ms]", pa.timestamp("ms")),
        ("timestamp[us, Europe/Zurich]", pa.timestamp("us", "Europe/Zurich")),
        ("timestamp[us, +01:00]", pa.timestamp("us", "+01:00")),
        (" decimal( 10 , 2 ) ", pa.decimal128(10, 2)),
        ("decimal(5)", pa.decimal128(5, 0)),
        ("time64[us]", pa.time64("us")),
        ("array<int>", pa.list_(pa.int32())),
    ],
)
def test_other_words_for_a_type_are_understood(text, wanted):
    """SQL's, Iceberg's and Arrow's words name the same types."""
    assert parse_type(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "",
        "strin",
        "list",
        "list<int",
        "list<int>>",
        "map<string>",
        "struct<a>",
        "struct<a:int,>",
        "decimal(39,0)",
        "decimal(5,6)",
        "decimal(0,0)",
        "fixed[0]",
        "timestamp[h]",
        "int not",
        "int null",
        "int; drop",
        "time64[ns]",
        "list<" * 100 + "int" + ">" * 100,
        "decimal(99999999999999999999,0)",
    ],
)
def test_text_that_is_no_type_is_refused(text):
    """Anything that is not exactly one type is refused and never crashes the parser."""
    with pytest.raises(InvalidRequest):
        parse_type(text)


def test_ids_are_unique_and_reach_nested_fields():
    """Each field at any depth has its own id, top-level columns first, and the last is kept."""
    schema = declare_schema(ALL_TYPES)
    seen = []

    def collect(field):
        seen.append(column_id(field))
        data_type = field.type
        if pa.types.is_map(data_type):
            collect(data_type.key_field)
            collect(data_type.item_field)
        else:
            for index in range(data_type.num_fields):
                collect(data_type.field(index))

    for field in schema:
        collect(field)
    assert list(ids_of(schema).values()) == list(range(1, len(ALL_TYPES) + 1))
    assert sorted(seen) == list(range(1, len(seen) + 1))
    assert last_id(schema) == len(seen) == len(ALL_TYPES) + 7


def test_ids_survive_serialisation():
    """A schema read back from its IPC form is equal with all its ids."""
    schema = declare_schema(ALL_TYPES)
    assert pa.ipc.read_schema(schema.serialize()).equals(schema, check_metadata=True)


def test_stripped_schema_has_no_metadata():
    """Stripping leaves the user's names, types and nullability alone, and nothing else."""
    plain = pa.schema([pa.field("a", pa.int64(), nullable=False), ("b", pa.list_(pa.string()))])
    assert strip_ids(declare_schema(plain)).equals(plain, check_metadata=True)


def test_metadata_and_zones_of_a_given_schema_are_made_canonical():
    """A foreign schema's metadata is dropped and its time zones become UTC."""
    field = pa.field("t", pa.timestamp("ms", "Europe/Zurich"), metadata={"frazil.id": "77"})
    schema = declare_schema(pa.schema([field], metadata={"pandas": "{}"}))
    assert schema.field("t").type == pa.timestamp("ms", "UTC")
    assert ids_of(schema) == {"t": 1}
    assert set(schema.metadata) == {b"frazil.last-id"}


@pytest.mark.parametrize(
    "name",
    ["", " ", "a\nb", "a\x00", "x" * 256, "_offset", "_TIME", "_change_type", "_pos", "\ud800"],
)
def test_a_bad_name_is_refused(name):
    """Empty, long, reserved names and control characters are refused."""
    with pytest.raises(InvalidRequest):
        declare_schema({name: "int"})


def test_names_are_compared_in_nfc_and_without_case():
    """Two spellings of one name are one column, which cannot come twice."""
    assert declare_schema({"cafe\u0301": "int"}).names == ["caf\u00e9"]
    for other in ("A", "a"):
        with pytest.raises(InvalidRequest, match="twice"):
            declare_schema([pa.field("a", pa.int8()), pa.field(other, pa.int8())])
    with pytest.raises(InvalidRequest, match="twice"):
        declare_schema({"s": "struct<x:int,X:int>"})


@pytest.mark.parametrize(
    ("data_type", "hint"),
    [
        (pa.uint64(), "decimal"),
        (pa.float16(), "float"),
        (pa.null(), "declare"),
        (pa.dictionary(pa.int8(), pa.string()), "values"),
        (pa.uuid(), "fixed_size_binary"),
        (pa.duration("us"), "long"),
        (pa.month_day_nano_interval(), "long"),
        (pa.string_view(), "string"),
        (pa.binary_view(), "bytes"),
        (pa.large_list(pa.int8()), "list"),
        (pa.date64(), "date"),
        (pa.time32("ms"), "time"),
        (pa.decimal256(50, 2), "38"),
        (pa.decimal128(5, -1), "scale"),
        (pa.dense_union([pa.field("a", pa.int8())]), "struct"),
    ],
)
def test_an_unsupported_type_is_refused_with_an_alternative(data_type, hint):
    """Each refused type says what to use instead, also when it is nested."""
    for given in (data_type, pa.struct([pa.field("inner", data_type)])):
        with pytest.raises(InvalidRequest) as caught:
            declare_schema({"column": given})
        assert hint in str(caught.value.details["instead"])
        assert str(caught.value.details["column"]).startswith("column")


def test_limits_of_columns_and_depth_hold():
    """One column or one level more than the limit is refused, the limit itself is not."""
    limits = IngestLimits(columns_max=3, nesting_max=3)
    declare_schema({"a": "int", "b": "list<int>"}, limits=limits)
    with pytest.raises(InvalidRequest, match="too many"):
        declare_schema({"a": "int", "b": "list<int>", "c": "int"}, limits=limits)
    declare_schema({"a": "list<list<int>>"}, limits=limits)
    with pytest.raises(InvalidRequest, match="deep"):
        declare_schema(
            {"a": "list<list<list<int>>>"}, limits=IngestLimits(columns_max=9, nesting_max=3)
        )
    with pytest.raises(InvalidRequest, match="no columns"):
        declare_schema({})


def test_key_columns_become_required():
    """A primary key column never holds null, whether or not it was declared so."""
    schema = declare_schema({"id": "long", "v": "string"}, primary_key=["id"])
    assert not schema.field("id").nullable
    assert schema.field("v").nullable


@pytest.mark.parametrize("key", [["x"], ["f"], ["l"], ["id", "id"], "id", [1]])
def test_a_bad_primary_key_is_refused(key):
    """A key must be a list of different, existing scalar columns that are no floats."""
    with pytest.raises(InvalidRequest):
        declare_schema({"id": "long", "f": "double", "l": "list<int>"}, primary_key=key)


@pytest.mark.parametrize("kind", ["float", "double"])
def test_a_float_is_no_key_and_the_error_says_what_to_use(kind):
    """NaN and -0.0 would be one row to one engine and another to the next."""
    with pytest.raises(InvalidRequest, match="use decimal or long"):
        declare_schema({"id": "long", "f": kind}, primary_key=["id", "f"])


@pytest.mark.parametrize("columns", [5, "a", [1], {"a": 5}, {1: "int"}, None])
def test_columns_of_a_wrong_shape_are_refused(columns):
    """Whatever is no mapping, schema or list of fields is refused, not crashed upon."""
    with pytest.raises(InvalidRequest):
        declare_schema(columns)
