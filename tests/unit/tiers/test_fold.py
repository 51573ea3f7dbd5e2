"""The fold of keyed topics equals a dict, whatever moves between memory and files meanwhile."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frazil.model import OP_DELETE, OP_INSERT, OP_UPDATE, OP_UPSERT
from frazil.schema import AddColumn, RenameColumn, evolve
from frazil.tiers import memory as memory_module
from frazil.tiers.keys.fold import Image, KeyedState
from frazil.tiers.keys.index import Found
from tests.unit.tiers.keyed_model import Files, KeyedTopic
from tests.unit.tiers.memory_topic import TableTopic

DAYS = [(dt.date(2026, 11, day), Decimal(day) / 4) for day in (1, 2, 3)]

keys = st.sampled_from(["k0", "k1", "k2", "k3", "ключ", "k5"])
values = st.integers(0, 9)
whole = st.fixed_dictionaries({"a": values, "b": st.sampled_from(["x", "y", None])})
part = st.one_of(
    st.fixed_dictionaries({"a": values}), st.fixed_dictionaries({"b": st.sampled_from(["p", "q"])})
)
change = st.one_of(
    st.tuples(st.sampled_from([OP_INSERT, OP_UPSERT, OP_UPDATE]), keys, whole),
    st.tuples(st.just(OP_UPDATE), keys, part),
    st.tuples(st.just(OP_DELETE), keys, st.just({})),
)
share = st.floats(0, 1)
step = st.one_of(
    st.tuples(st.just("rows"), st.lists(st.tuples(keys, values, st.just("r")), min_size=1)),
    st.tuples(st.just("change"), st.lists(change, min_size=1, max_size=7)),
    st.tuples(st.just("change"), st.lists(change, min_size=1, max_size=7)),
    st.tuples(st.just("gap"), st.integers(1, 3)),
    st.tuples(st.just("fold"), share),
    st.tuples(st.just("settle"), st.integers(1, 20)),
    st.tuples(st.just("flush"), share),
    st.tuples(st.just("merge"), st.none()),
    st.tuples(st.just("look"), share),
    st.tuples(st.just("restart"), st.none()),
)


def act(world, name, argument):
    """Do one step."""
    topic, state = world.topic, world.state
    if name == "rows":
        world.upsert_rows(argument)
    elif name == "change":
        world.change(argument)
    elif name == "gap":
        topic.skip(argument)
    elif name == "fold":
        state.fold(int(argument * world.end), budget_rows=5)
    elif name == "settle":
        topic.memory.settle(world.end, budget_rows=argument)
    elif name == "flush":
        world.flush(int(argument * world.end))
    elif name == "merge":
        topic.memory.merge_small()
    elif name == "look":
        check(world, int(argument * world.end))
    else:
        world.restart()


def check_latest(world, end):
    """Compare what is known of keys below an offset before that is folded with the model."""
    for key in ("k0", "k1", "k2", "k3", "ключ", "k5", "never"):
        known, found = world.state.latest(key, end)
        newest = world.model.newest(key, end)
        if known and (newest is None or newest[1] == OP_DELETE):
            assert found is None or found.op == OP_DELETE
        elif known:
            assert found == newest


def check(world, end):
    """Compare everything that can be asked at a snapshot with the model."""
    check_latest(world, end)
    # At an offset below the first one in memory, files hold nothing newer than what is asked for.
    assert world.visible(end) == world.model.states(end)
    state, expected = world.state, world.model.states(end)
    for key in ("k0", "k1", "k2", "k3", "ключ", "k5", "never"):
        newest = world.model.newest(key, end)
        found = state.newest(key, end)
        absent = newest is None or newest[1] == OP_DELETE
        assert (found is None or found.op == OP_DELETE) if absent else found == newest
        image = world.row(key, end)
        assert (image is None) == (key not in expected)
        if image is not None:
            assert image.offset == expected[key][0]
            if isinstance(image, Image):
                assert dict(zip(("id", "a", "b"), image.values, strict=True)) == expected[key][1]


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
@given(
    st.lists(step, min_size=4, max_size=25), st.sampled_from([1 << 30, 1 << 30, 0, 400, 700]), share
)
def test_the_state_equals_a_dict_at_every_snapshot(steps, index_bytes, cut):
    """Changes, gaps, flushes, merges and restarts in any order: rows, lookups and marks are exact."""
    world = KeyedTopic(index_bytes=index_bytes)
    for name, argument in steps:
        act(world, name, argument)
    check(world, world.end)
    check(world, int(cut * world.end))
    assert world.state.index.bytes <= max(index_bytes, 0)


def test_what_is_not_folded_is_not_found():
    """A lookup by hash does not see behind the fold, even in chunks that have more."""
    world = KeyedTopic(index_bytes=0)
    world.upsert_rows([("k0", 0, "r")])
    world.state.fold(1)
    world.upsert_rows([("k0", 1, "r")])
    world.topic.memory.settle(2)
    assert world.state.newest("k0", before=2) == Found(0, OP_UPSERT)
    assert world.state.newest("k0") == Found(0, OP_UPSERT)


def test_marks_set_while_chunks_are_joined_are_not_lost(monkeypatch):
    """A change folded while the rows are copied supersedes them in the joined chunk."""
    monkeypatch.setattr(memory_module, "JOIN_AT_ONCE_ROWS", 1)
    world = KeyedTopic()
    for key in ("k0", "k1"):
        world.upsert_rows([(key, 0, "r")])
        world.topic.memory.settle(world.end)
    world.state.fold(world.end)
    real = memory_module.join_chunks

    def slow_join(chunks):
        joined = real(chunks)
        world.change([(OP_UPDATE, "k0", {"a": 1}), (OP_DELETE, "k1", {})])
        world.state.fold(world.end)
        return joined

    monkeypatch.setattr(memory_module, "join_chunks", slow_join)
    assert world.topic.memory.merge_small()
    monkeypatch.undo()
    assert world.topic.memory.chunks[0].count == 2
    check(world, world.end)


def test_the_index_stays_within_its_bytes_and_misses_look_below():
    """Ten thousand keys in the room of about a hundred: every one is still found."""
    world = KeyedTopic(index_bytes=20_000, merge_rows=4096, arrow_min=64)
    for start in range(0, 10_000, 1000):
        world.upsert_rows([(f"key-{n:05d}", n, "r") for n in range(start, start + 1000)])
    state = world.state
    state.fold(world.end)
    assert state.index.bytes <= 20_000
    assert state.index.evictions == 10_000 - len(state.index)
    assert not state.complete
    assert state.newest("key-00007") == Found(7, OP_UPSERT)
    assert state.newest("key-09999") == Found(9999, OP_UPSERT)
    assert state.newest("key-10000") is None
    world.upsert_rows([("key-00007", 0, "s")])
    state.fold(world.end)
    assert world.topic.memory.chunk_at(7).dead[7] == 10_000


def test_keys_written_last_stay_in_a_full_index():
    """A key that is written again and again is never forgotten for one that is not."""
    world = KeyedTopic(index_bytes=50_000, merge_rows=4096, arrow_min=64)
    for start in range(0, 5000, 100):
        world.upsert_rows([("hot", start, "r")])
        world.upsert_rows([(f"cold-{n}", n, "r") for n in range(start, start + 100)])
        world.state.fold(world.end)
        assert "hot" in world.state.index.codes
    assert world.state.index.evictions > 0


def test_a_complete_index_never_asks_below():
    """While every key is known, new ones cost no lookup in files."""
    world = KeyedTopic()
    world.upsert_rows([("k0", 1, "r"), ("k1", 1, "r")])
    world.flush(2)
    world.upsert_rows([("k2", 1, "r"), ("k0", 2, "r")])
    world.state.fold(world.end)
    assert world.state.newest("never") is None
    assert world.files.asked == 0
    world.restart()
    world.state.fold(world.end)
    assert world.state.complete
    assert world.state.newest("k1") == Found(1, OP_UPSERT)
    assert world.files.asked == 0


def entries_of(world):
    """Return {row in files: superseding change}, as far as the snapshots up to the end tell."""
    found = {}
    for end in range(world.end + 1):
        for row in world.state.vectors.below(cut=world.end, end=end).tolist():
            found.setdefault(row, end - 1)
    return found


def test_a_rebuild_in_many_passes_equals_one(monkeypatch):
    """Entries computed a share of the keys at a time are those of the fold."""
    world = KeyedTopic()
    for round_ in range(6):
        world.change(
            [
                (OP_UPSERT, f"k{round_ % 4}", {"a": round_, "b": "x"}),
                (OP_UPDATE, f"k{round_}", {"a": 1}),
                (OP_DELETE, f"k{(round_ + 2) % 4}", {}),
            ]
        )
    world.flush(world.end)
    folded = entries_of(world)
    monkeypatch.setattr("frazil.tiers.keys.deletion_vectors.PASS_ROWS", 4)
    world.restart()
    rebuilt = entries_of(world)
    assert rebuilt == folded
    assert len(folded) > 5


def test_composite_keys_of_any_type_fold():
    """A key of a date, a decimal and bytes is one key from rows and from Arrow."""
    columns = {"d": "date", "n": "decimal(9,2)", "x": "binary", "v": "long"}
    topic = TableTopic(columns, key=("n", "d", "x"), arrow_min=4)
    state = KeyedState(topic.memory, Files().find_many, index_bytes_max=lambda: 1 << 30)
    schema = topic.codec.schema
    batch = pa.RecordBatch.from_pylist(
        [{"d": day, "n": n, "x": b"\0", "v": 1} for day, n in DAYS], schema=schema
    )
    topic.arrow(batch)
    topic.rows([{"d": DAYS[1][0], "n": DAYS[1][1].normalize(), "x": b"\0", "v": 2}])
    state.fold(topic.state.durable)
    assert len(state.index) == 3
    key = state.shape.key_of((DAYS[1][1], DAYS[1][0], b"\0"))
    assert state.newest(key) == Found(3, OP_UPSERT)
    assert topic.memory.chunks[0].live(4).tolist() == [True, False, True, True]


def test_a_schema_change_does_not_disturb_the_fold():
    """Keys of a renamed column and rows of two versions fold as one."""
    world = KeyedTopic()
    world.upsert_rows([("k0", 1, "r")])
    world.topic.memory.settle(1)
    topic = world.topic
    topic.use(evolve(topic.codec.schema, [RenameColumn("id", "key"), AddColumn("c", "double")]))
    codec = topic.codec.columns.keyed.changes
    whole = [codec.whole(("k0", 1, "r", 0.5), OP_UPDATE)]
    topic.write(codec.encode(whole), 1, version=2, records=whole)
    world.state.fold(2)
    assert world.state.newest("k0") == Found(1, OP_UPDATE)
    assert world.row("k0").values == ("k0", 1, "r", 0.5)
    assert [chunk.version for chunk in topic.memory.chunks] == [1, 2]
    assert world.state.newest("k0", before=1) == Found(0, OP_UPSERT)
