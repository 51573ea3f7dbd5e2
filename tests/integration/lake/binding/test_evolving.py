"""A table follows its topic's columns: by id, one commit a version, while others change it too."""

from __future__ import annotations

import pytest
import requests
from pyiceberg.types import IntegerType, LongType, StringType

from frazil.clock import SystemClock
from frazil.errors import Conflict
from frazil.lake.binding import bind
from frazil.lake.connection import RestTables
from frazil.lake.evolve import evolve
from frazil.schema import (
    AddColumn,
    DropColumn,
    RenameColumn,
    WidenColumn,
    declare_schema,
    parse_partition_spec,
)
from frazil.schema import evolve as evolved
from tests.integration.lake.binding.tables import append, defined

CLOCK = SystemClock()


class Topic:
    """A topic's columns by version, and its table."""

    def __init__(self, catalog, served, name, columns, **options):
        schema = declare_schema(columns)
        self.catalog = catalog
        self.versions = {1: schema}
        if "partition_by" in options:
            options["partition_by"] = parse_partition_spec(options["partition_by"], schema)
        self.definition = defined(name, served, schema=schema, **options)
        bind(catalog, self.definition, clock=CLOCK)
        self.table = self.definition.table

    def change(self, *changes):
        last = max(self.versions)
        self.versions[last + 1] = evolved(self.versions[last], changes)

    def evolve(self, wanted=None, catalog=None):
        return evolve(
            catalog or self.catalog,
            self.table,
            topic_id=self.definition.uid,
            wanted=wanted or max(self.versions),
            columns=self.versions.__getitem__,
            partitioned=self.definition.parts > 0,
        )

    def fields(self):
        found = self.catalog.load_table(tuple(self.table)).schema().fields
        return {field.name: (field.field_id, str(field.field_type)) for field in found}

    def loaded(self):
        return self.catalog.load_table(tuple(self.table))


@pytest.fixture
def make(catalog, served, topic):
    return lambda columns, **options: Topic(catalog, served, topic, columns, **options)


def test_each_kind_of_change_in_one_commit(make):
    """Added, widened, renamed and dropped columns come in one commit with the new version."""
    topic = make({"a": "int", "b": "string", "c": "float", "d": "long"})
    before = topic.fields()
    files = len(topic.loaded().metadata.metadata_log)
    topic.change(
        WidenColumn("a", "long"),
        WidenColumn("c", "double"),
        DropColumn("d"),
        RenameColumn("b", "renamed"),
        AddColumn("d", "string"),
    )
    assert topic.evolve() == 2
    after = topic.fields()
    assert (after["a"], after["c"]) == ((before["a"][0], "long"), (before["c"][0], "double"))
    assert after["renamed"] == before["b"]
    assert after["d"] == (max(i for i, _ in before.values()) + 1, "string")
    assert list(after) == ["_offset", "_time", "a", "renamed", "c", "d"]
    loaded = topic.loaded()
    assert loaded.properties["frazil.schema-version"] == "2"
    assert len(loaded.metadata.metadata_log) == files + 1


def test_names_can_be_swapped(make):
    """Two columns that swap their names swap nothing else."""
    topic = make({"a": "int", "b": "string"})
    before = topic.fields()
    topic.change(RenameColumn("a", "x"), RenameColumn("b", "a"), RenameColumn("x", "b"))
    topic.evolve()
    after = topic.fields()
    assert (after["b"], after["a"]) == (before["a"], before["b"])


def test_a_nested_column_is_added_whole(make):
    """An added struct of lists and maps gets ids that no column had."""
    topic = make({"a": "int"})
    topic.change(AddColumn("n", "struct<x:list<struct<y:int>>,m:map<string,list<long>>>"))
    topic.evolve()
    schema = topic.loaded().schema()
    ids = [field.field_id for field in schema._lazy_id_to_field.values()]
    assert len(ids) == len(set(ids)) == 11
    assert schema.find_field("n.x.element.y").field_type == IntegerType()
    assert topic.loaded().metadata.last_column_id == max(ids)


def test_versions_are_made_one_by_one(make):
    """A table three versions behind gets three commits, and each version's schema."""
    topic = make({"a": "int"})
    topic.change(AddColumn("b", "int"))
    topic.change(DropColumn("b"), AddColumn("c", "int"))
    topic.change(RenameColumn("c", "b"))
    assert (topic.evolve(), list(topic.fields())) == (4, ["_offset", "_time", "a", "b"])
    assert (len(topic.loaded().schemas()), topic.evolve(), topic.evolve(wanted=2)) == (4, 4, 4)


def test_a_change_that_iceberg_does_not_see_moves_the_version(make):
    """A short that becomes an int is an int to Iceberg before and after."""
    topic = make({"a": "int16"})
    before = topic.fields()
    topic.change(WidenColumn("a", "int"))
    assert (topic.evolve(), topic.fields()) == (2, before)
    assert topic.loaded().properties["frazil.schema-version"] == "2"


class Answerless(RestTables):
    """Commits, then loses the answer, the first time."""

    lost = False

    def commit_table(self, *args, **options):
        answer = super().commit_table(*args, **options)
        if not self.lost:
            self.lost = True
            raise requests.ConnectionError("reset by peer")
        return answer


def test_a_lost_answer_is_looked_up(make, address):
    """A commit whose answer is lost is not made again."""
    topic = make({"a": "int"})
    topic.change(AddColumn("b", "int"))
    lossy = Answerless(address)
    assert topic.evolve(catalog=lossy) == 2
    assert lossy.lost
    assert list(topic.fields()) == ["_offset", "_time", "a", "b"]


class Overtaken(RestTables):
    """Lets something else happen right before its first commit."""

    before = None

    def commit_table(self, *args, **options):
        if self.before is not None:
            happens, self.before = self.before, None
            happens()
        return super().commit_table(*args, **options)


def test_an_overtaken_evolver_changes_nothing(make, address):
    """One that stalled while another made this version and the next does not set it back."""
    topic = make({"a": "int"})
    topic.change(AddColumn("b", "int"))
    topic.change(RenameColumn("b", "c"))
    slow = Overtaken(address)
    slow.before = topic.evolve
    assert topic.evolve(wanted=2, catalog=slow) == 3
    assert list(topic.fields()) == ["_offset", "_time", "a", "c"]
    assert topic.loaded().properties["frazil.schema-version"] == "3"


def test_a_foreign_change_in_between_is_seen(make, address):
    """A column that somebody drops between load and commit is not put back silently."""
    topic = make({"a": "int", "s": "string"})
    topic.change(AddColumn("b", "int"))

    def drop():
        with topic.loaded().update_schema() as update:
            update.delete_column("a")

    slow = Overtaken(address)
    slow.before = drop
    with pytest.raises(Conflict, match="dropped or renamed"):
        topic.evolve(catalog=slow)
    assert list(topic.fields()) == ["_offset", "_time", "s"]


def test_foreign_columns_stay(make):
    """Columns that somebody else added, also inside a struct, survive a change of the topic's."""
    topic = make({"a": "int", "s": "struct<x:int>"})
    with topic.loaded().update_schema() as update:
        update.add_column("theirs", StringType())
        update.add_column(("s", "y"), LongType())
    topic.change(RenameColumn("s", "t"), AddColumn("b", "int"))
    topic.evolve()
    schema = topic.loaded().schema()
    assert list(topic.fields()) == ["_offset", "_time", "a", "t", "theirs", "b"]
    assert schema.find_field("t.y").field_type == LongType()


def test_a_name_of_a_partition_is_not_given_to_a_column(make):
    """Spark cannot open a table whose column has a partition's name, so none gets it."""
    topic = make({"ts": "timestamp"}, partition_by=["day(ts)"])
    topic.change(RenameColumn("ts", "moment"))
    topic.change(AddColumn("ts_day", "int"))
    with pytest.raises(Conflict, match="name of a partition"):
        topic.evolve()
    assert topic.loaded().properties["frazil.schema-version"] == "2"


def test_another_topics_table_is_not_changed(make):
    """A table that changed hands is left alone."""
    topic = make({"a": "int"})
    topic.change(AddColumn("b", "int"))
    with topic.loaded().transaction() as changes:
        changes.set_properties({"frazil.topic-id": "f" * 16})
    with pytest.raises(Conflict, match="belongs to another topic"):
        topic.evolve()


def test_rows_of_parts_follow_too(make, catalog):
    """A table of a partitioned topic keeps its column of parts over a change."""
    topic = make({"a": "int"}, parts=2)
    append(catalog, topic.table, [(1, 3)])
    topic.change(AddColumn("b", "int"))
    topic.evolve()
    assert list(topic.fields()) == ["_offset", "_time", "_part", "a", "b"]
