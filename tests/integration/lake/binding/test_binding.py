"""Binding a topic to its table: made once with all it needs, checked ever after."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, NestedField

from frazil.clock import SystemClock
from frazil.errors import Conflict, InvalidRequest, Unavailable
from frazil.lake import ends_of, iceberg_schema, table_of
from frazil.lake.binding import bind, table_properties
from frazil.lake.connection import CatalogAddress, connect
from frazil.schema import declare_schema, parse_partition_spec
from tests.integration.lake.binding.tables import defined

CLOCK = SystemClock()


def test_a_new_table_has_what_the_protocol_needs(catalog, served, topic):
    """Columns, partitions and properties of a new table are the topic's, its place has no name."""
    schema = declare_schema({"ts": "timestamptz", "id": "long not null", "name": "string"})
    definition = defined(
        topic,
        served,
        schema=schema,
        partition_by=parse_partition_spec(["day(ts)", "bucket[16](id)"], schema),
        begin={-1: 70},
    )
    assert bind(catalog, definition, clock=CLOCK) == 1
    table = catalog.load_table(tuple(definition.table))
    assert table.schema().column_names == ["_offset", "_time", "ts", "id", "name"]
    assert [field.required for field in table.schema().fields] == [True, True, False, True, False]
    assert [(f.name, str(f.transform)) for f in table.spec().fields] == [
        ("ts_day", "day"),
        ("id_bucket", "bucket[16]"),
    ]
    assert table.properties["write.object-storage.partitioned-paths"] == "false"
    expected = {
        "write.metadata.metrics.column._offset": "full",
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": "50",
        "write.distribution-mode": "none",
        "write.target-file-size-bytes": str(128 << 20),
        "frazil.topic-id": definition.uid,
        "frazil.schema-version": "1",
        "frazil.protocol-version": "1",
        "frazil.offset-end": "70",
    }
    assert table.properties.items() >= expected.items()
    assert table.metadata.format_version == 2
    name = table.location().rpartition("/")[2]
    assert name.startswith(f"{definition.uid}-")
    assert "topic" not in name
    side = catalog.load_table(tuple(definition.table.rejects))
    assert side.properties["frazil.offset-end"] == "70"


def test_binding_again_changes_nothing(catalog, served, topic):
    """A table that is bound again is the same one, whatever properties its owner has changed."""
    definition = defined(topic, served)
    bind(catalog, definition, clock=CLOCK)
    with catalog.load_table(tuple(definition.table)).transaction() as changes:
        changes.set_properties({"write.target-file-size-bytes": "1000000"})
    before = catalog.load_table(tuple(definition.table)).metadata_location
    bind(catalog, definition, clock=CLOCK)
    after = catalog.load_table(tuple(definition.table))
    assert after.metadata_location == before
    assert after.properties["write.target-file-size-bytes"] == "1000000"


def test_a_crash_between_the_two_tables_is_mended(catalog, served, topic):
    """Where only the main table was made, binding makes the other one."""
    definition = defined(topic, served)
    side = tuple(definition.table.rejects)
    bind(catalog, definition, clock=CLOCK)
    catalog.drop_table(side)
    bind(catalog, definition, clock=CLOCK)
    assert [field.name for field in catalog.load_table(side).schema().fields] == [
        "_offset",
        "_time",
        "stage",
        "reason",
        "field",
        "schema_version",
        "encoding",
        "original",
    ]


def test_two_binders_at_once_make_one_table(address, served, topic):
    """Of binders that race one makes each table; all of them are bound to the same."""
    definition = defined(topic, served)
    barrier = threading.Barrier(4)

    def bound(_number):
        mine = connect(address)
        barrier.wait()
        bind(mine, definition, clock=CLOCK)
        return mine.load_table(tuple(definition.table)).metadata.table_uuid

    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(bound, range(4)))) == 1


def test_parts_have_their_own_begin(catalog, served, topic):
    """A partitioned topic's table has a column and a mark for each part, and no partition of it."""
    bind(catalog, defined(topic, served, parts=3, begin={1: 5}), clock=CLOCK)
    table = catalog.load_table(tuple(table_of(topic)))
    assert table.schema().find_field("_part").required
    assert table.spec().is_unpartitioned()
    assert ends_of(table.properties) == {0: 0, 1: 5, 2: 0}


def test_the_sort_order_is_the_one_asked_for(catalog, served, topic):
    """A table's sort order names the columns of the definition, and unknown ones are refused."""
    bind(catalog, defined(topic, served, sort_by=("name", "_offset")), clock=CLOCK)
    table = catalog.load_table(tuple(table_of(topic)))
    assert [field.source_id for field in table.sort_order().fields] == [4, 1]
    with pytest.raises(InvalidRequest, match="sort_by"):
        bind(catalog, defined(topic + "x", served, sort_by=("absent",)), clock=CLOCK)


def test_a_table_of_nobody_is_left_alone(catalog, served, topic):
    """A table that frazil did not make is refused, and stays as it is."""
    table = table_of(topic)
    catalog.create_namespace_if_not_exists((table.namespace,))
    catalog.create_table(tuple(table), Schema(NestedField(1, "a", IntegerType(), required=False)))
    with pytest.raises(Conflict, match="not made by frazil: rename it"):
        bind(catalog, defined(topic, served), clock=CLOCK)
    assert catalog.load_table(tuple(table)).schema().column_names == ["a"]
    assert not catalog.table_exists(tuple(table.rejects))


def test_a_table_of_another_topic_is_refused(catalog, served, topic):
    """A topic created anew under an old name does not write into the old one's table."""
    bind(catalog, defined(topic, served, uid="0" * 16), clock=CLOCK)
    with pytest.raises(Conflict, match="frazil lake adopt") as caught:
        bind(catalog, defined(topic, served, uid="1" * 16), clock=CLOCK)
    assert caught.value.details["found"] == "0" * 16


def test_a_table_of_another_format_is_refused(catalog, served, topic):
    """A table of a format version that is not written is not taken."""
    definition = defined(topic, served)
    properties = {**table_properties(definition), "format-version": "3"}
    catalog.create_namespace_if_not_exists((definition.table.namespace,))
    schema = iceberg_schema(definition.schema, partitioned=False)
    catalog.create_table(tuple(definition.table), schema, properties=properties)
    with pytest.raises(Conflict, match="another format version"):
        bind(catalog, definition, clock=CLOCK)


def test_a_side_table_of_another_topic_is_refused(catalog, served, topic):
    """A left-over table of rejects is another's, even where the main table is new."""
    bind(catalog, defined(topic, served, uid="0" * 16), clock=CLOCK)
    catalog.drop_table(tuple(table_of(topic)))
    with pytest.raises(Conflict, match="rename or drop it") as caught:
        bind(catalog, defined(topic, served, uid="1" * 16), clock=CLOCK)
    assert caught.value.details["table"] == table_of(topic).rejects


def test_a_table_of_another_protocol_is_refused(catalog, served, topic):
    """A table that a later frazil has written is not touched by this one."""
    bind(catalog, defined(topic, served), clock=CLOCK)
    with catalog.load_table(tuple(table_of(topic))).transaction() as changes:
        changes.set_properties({"frazil.protocol-version": "2"})
    with pytest.raises(Conflict, match="another version of frazil"):
        bind(catalog, defined(topic, served), clock=CLOCK)


def test_an_older_table_is_compared_with_older_columns(catalog, served, topic):
    """A table at an earlier version is bound by the columns of that version, not of this one."""
    old = declare_schema({"a": "int"})
    new = declare_schema({"a": "int", "b": "int"})
    bind(catalog, defined(topic, served, schema=old), clock=CLOCK)
    newer = defined(topic, served, schema=new, version=2)
    assert bind(catalog, newer, clock=CLOCK, columns={1: old}.__getitem__) == 1
    with pytest.raises(Conflict, match="other columns"):
        bind(catalog, newer, clock=CLOCK)


def test_a_table_ahead_of_its_topic_is_refused(catalog, served, topic):
    """A topic restored from an older copy finds a table with later columns and stops."""
    schema = declare_schema({"a": "int"})
    bind(catalog, defined(topic, served, schema=schema, version=3), clock=CLOCK)
    with pytest.raises(Conflict, match="older copy"):
        bind(
            catalog,
            defined(topic, served, schema=schema, version=2),
            clock=CLOCK,
            columns=lambda _: schema,
        )


def test_a_wrong_token_is_said_and_not_shown(address):
    """A catalog that refuses the token says so, and not the token."""
    with pytest.raises(InvalidRequest, match="token") as caught:
        connect(CatalogAddress(uri=address.uri, token="no-such-token"))
    assert "no-such-token" not in str(caught.value)
    assert "no-such-token" not in repr(CatalogAddress(uri="http://x", token="no-such-token"))


def test_a_catalog_that_hangs_is_given_up():
    """A catalog that accepts and never answers does not stop its caller for ever."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        # Without an end of its own the call would never come back.
        with pytest.raises(Unavailable, match="cannot be reached"):
            connect(CatalogAddress(uri=uri), timeout_seconds=0.3)
