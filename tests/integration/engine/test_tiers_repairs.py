"""Damaged files, changed columns and failing disks: what the tiers do about them by themselves."""

from __future__ import annotations

import contextlib
import errno
import posixpath
import threading

import pytest

from frazil.errors import CorruptionError, InvalidRequest, Overloaded
from frazil.tiers import flush_set, topic_tiers
from tests.integration.engine.opening import (
    LOG_ALONE,
    column_of,
    open_small,
    rotate,
    small_settings,
)
from tests.integration.engine.tier_world import KEEP_S, noise
from tests.support import SimulatedCrash


def lose_power(world):
    """End the engine without any farewell, so that nothing is kept but what was synced."""
    world.disk.crash()
    with contextlib.suppress(SimulatedCrash):
        world.db.close()
    world.disk = world.disk.crash_clone(1, data="all", names="all")


def file_paths(world, topic):
    """Return where the files of a topic lie."""
    disk = world.db.tiers.disk
    return [disk.path(file) for file in disk.files(topic.runtime.state.id)]


def spoil(world, path):
    """Overwrite most of a file, so that only its length is right."""
    file = world.disk.open(path, "write")
    size = world.disk.stat(path).size
    file.write_at(4, [bytes(size - 8)])
    file.close()


def keyed_topic(world, rows=50):
    """Return a topic with so many keys, all of them in files."""
    topic = world.db.create_topic("keyed", {"k": "long", "v": "long"}, primary_key="k")
    for k in range(rows):
        topic.upsert(k=k, v=0)
    world.db.tiers.flush()
    return topic


# -- damaged at a start ------------------------------------------------------------------------


def test_a_file_lost_at_a_start_is_written_again_before_the_log_lets_go(opened):
    """However long the log kept a range before, it is not freed while its file is missing."""
    world = opened()
    topic = world.db.create_topic("plain", {"n": "long"})
    for n in range(100):
        topic.append(n=n)
    world.db.tiers.flush()
    [path] = file_paths(world, topic)
    lose_power(world)
    world.disk.unlink(path)
    world.open()
    rotate(world.db)
    # The log alone at first, as if the tiers had no time for anything yet.
    world.db.upkeep.task.make_all_due()
    world.db.upkeep.run_once()
    topic = world.db.topic("plain")
    assert topic.runtime.log.source.range(topic.runtime.state.id).first == 0
    world.round(KEEP_S + 1)
    world.round(KEEP_S + 1)
    assert world.db.tiers.disk.damage.damaged() == {}
    assert topic.runtime.log.source.range(topic.runtime.state.id).first == 100
    assert column_of(topic, "n") == list(range(100))


def test_the_log_keeps_what_a_damaged_set_could_be_rebuilt_from(opened):
    """While a set cannot be written again, the log frees what lies below it and nothing else."""
    world = opened()
    topic = world.db.create_topic("plain", {"n": "long"})
    paths = []
    for part in range(3):
        for n in range(20):
            topic.append(n=20 * part + n)
        world.db.tiers.flush()
        rotate(world.db)
        paths = file_paths(world, topic)
    lose_power(world)
    world.disk.unlink(paths[1])
    world.open()
    topic = world.db.topic("plain")
    tiers = topic.runtime.tiers
    rebuild, tiers.rebuild = tiers.rebuild, lambda _file: False
    for _ in range(3):
        world.round(KEEP_S + 1)
    assert topic.runtime.log.source.range(topic.runtime.state.id).first == 20
    tiers.rebuild = rebuild
    for _ in range(3):
        world.round(KEEP_S + 1)
    assert topic.runtime.log.source.range(topic.runtime.state.id).first == 60
    assert column_of(topic, "n") == list(range(60))


@pytest.mark.parametrize("use", ["get", "query", "update", "flush"])
def test_a_keyed_topic_whose_file_is_lost_is_used_as_if_it_were_there(opened, use):
    """Whatever comes first after a start, a missing file is written again from the log for it."""
    world = opened()
    topic = keyed_topic(world)
    [path] = file_paths(world, topic)
    lose_power(world)
    world.disk.unlink(path)
    db = world.open()
    topic = db.topic("keyed")
    if use == "query":
        assert db.query("SELECT count(*), sum(v) FROM keyed").rows() == [(50, 0)]
    elif use == "update":
        topic.update(3, {"v": 7})
    elif use == "flush":
        topic.upsert(k=3, v=7)
        assert db.tiers.flush() == {"/default/keyed": 51}
    assert topic.get(3) == {"k": 3, "v": 7 if use in ("update", "flush") else 0}
    assert db.tiers.disk.damage.damaged() == {}


def test_scrubbing_asks_again_for_what_is_damaged_already(opened):
    """A file known as damaged is rebuilt by a later scrub, or taken for good if it is again."""
    world = opened(tiers={"scrub_interval_s": 3600.0})
    topic = world.db.create_topic("plain", {"n": "long"})
    topic.append(n=1)
    world.db.tiers.flush()
    disk = world.db.tiers.disk
    [file] = disk.files(topic.runtime.state.id)
    disk.damage.note_damage(file.topic, file.name, "said by a test")
    world.clock.advance(3601)
    assert disk.damage.scrub_once() == 0
    assert disk.damage.damaged() == {}
    spoil(world, disk.path(file))
    disk.damage.note_damage(file.topic, file.name, "said by a test")
    world.clock.advance(3601)
    assert disk.damage.scrub_once() == 1
    assert disk.damage.damaged() == {}
    assert disk.files(file.topic) != (file,)


# -- damage met under locks --------------------------------------------------------------------


def watch_rebuilds(tiers):
    """Note at each rebuild whether another thread could have the lock of the topic's memory."""
    free, rebuild = [], tiers.rebuild

    def attempt():
        free.append(tiers.memory.lock.acquire(timeout=1))
        if free[-1]:
            tiers.memory.lock.release()

    def watched(file):
        thread = threading.Thread(target=attempt)
        thread.start()
        thread.join()
        return rebuild(file)

    tiers.rebuild = watched
    return free


def changed_over_damage(opened):
    """Damage the file of a keyed topic, change all its rows; return the topic, the rebuilds."""
    world = opened(tiers={"index_share": 0.0})
    keyed_topic(world)
    world.db.close()
    topic = world.open().topic("keyed")
    topic.runtime.tiers.ensure_loaded()
    assert not topic.runtime.tiers.keyed.complete
    spoil(world, *file_paths(world, topic))
    free = watch_rebuilds(topic.runtime.tiers)
    for k in range(50):
        topic.upsert(k=k, v=1)
    return world.db, topic, free


def test_a_flush_that_meets_a_damaged_file_does_not_wait_for_itself(opened):
    """The fold of a flush finds a base row's file damaged; it is rebuilt and the flush goes on."""
    db, topic, free = changed_over_damage(opened)
    assert db.tiers.flush() == {"/default/keyed": 100}
    assert free == [True]
    assert topic.get(3) == {"k": 3, "v": 1}
    assert db.query("SELECT count(*), sum(v) FROM keyed").rows() == [(50, 50)]
    assert db.tiers.disk.damage.damaged() == {}


def test_a_query_that_meets_a_damaged_file_is_answered_at_once(opened):
    """The fold of a query finds a base row's file damaged: it is rebuilt and the query goes on."""
    db, _topic, free = changed_over_damage(opened)
    assert db.query("SELECT count(*), sum(v) FROM keyed").rows() == [(50, 50)]
    assert free == [True]


def test_one_topics_lost_file_keeps_no_other_from_moving(opened):
    """With a file that nobody can rebuild, its topic is still flushed, and others do all."""
    world = opened(memory={"retention_s": 1.0, "flush_offsets": 10}, tiers={"index_share": 0.0})
    keyed_topic(world)
    other = world.db.create_topic("other", {"n": "long"})
    world.db.close()
    db = world.open()
    topic, other = db.topic("keyed"), db.topic("other")
    tiers = topic.runtime.tiers
    tiers.ensure_loaded()
    [path] = file_paths(world, topic)
    spoil(world, path)
    # As when the log has let the range go.
    tiers.rebuild = lambda _file: False
    for n in range(50):
        topic.upsert(k=n, v=1)
        other.append(n=n)
    for _ in range(3):
        world.round(5)
    assert tiers.flushed == 100
    assert other.runtime.tiers.flushed == other.runtime.tiers.memory.start == 50
    assert set(db.tiers.errors) == {"fold /default/keyed", "evict /default/keyed"}
    assert db.query("SELECT count(*) FROM other").rows() == [(50,)]
    with pytest.raises(CorruptionError):
        topic.get(1000)


# -- columns that change ---------------------------------------------------------------------


def alter_after_a_read(world, topic, monkeypatch):
    """Drop a column and add another right behind the next read of the log."""
    source = topic.runtime.log.source
    read, left = source.read, [True]

    def altering(*arguments, **options):
        piece = read(*arguments, **options)
        if left:
            left.clear()
            world.db.alter_topic("plain", add={"c": "long"}, drop=["a"])
        return piece

    monkeypatch.setattr(source, "read", altering)


def test_columns_that_change_while_memory_is_loaded_get_no_others_values(opened, monkeypatch):
    """A column that was just added is null in old records, whatever was dropped for it."""
    world = opened()
    topic = world.db.create_topic("plain", {"k": "long", "a": "long"})
    for n in range(10):
        topic.append(k=n, a=n)
    world.db.close()
    db = world.open()
    topic = db.topic("plain")
    alter_after_a_read(world, topic, monkeypatch)
    topic.runtime.tiers.ensure_loaded()
    [chunk] = topic.runtime.tiers.memory.chunks
    assert (chunk.version, chunk.batch.schema.names) == (2, ["k", "c"])
    db.tiers.flush()
    db.tiers.evict()
    assert db.query("SELECT k, c FROM plain").rows() == [(n, None) for n in range(10)]


def test_columns_that_change_while_a_file_is_rebuilt_get_no_others_values(opened, monkeypatch):
    """A set that is written again is of one version of the columns, the newest."""
    world = opened()
    topic = world.db.create_topic("plain", {"k": "long", "a": "long"})
    for n in range(10):
        topic.append(k=n, a=n)
    world.db.tiers.flush()
    world.db.tiers.evict()
    disk, number = world.db.tiers.disk, topic.runtime.state.id
    [file] = disk.files(number)
    spoil(world, disk.path(file))
    alter_after_a_read(world, topic, monkeypatch)
    assert disk.damage.report(file, "said by a test")
    assert [each.schema for each in disk.files(number)] == [2]
    assert world.db.query("SELECT k, c FROM plain").rows() == [(n, None) for n in range(10)]


def test_a_flush_refuses_rows_of_other_columns(opened):
    """Columns are distinguished by their ids and names, not by their positions."""
    world = opened()
    topic = world.db.create_topic("plain", {"k": "long", "a": "long"})
    topic.append(k=1, a=2)
    tiers = topic.runtime.tiers
    columns = topic.runtime.codec.columns
    [chunk] = tiers.memory.snapshot(1)
    batch = tiers.file_rows(chunk, columns)

    def flush(rows):
        return flush_set(
            tiers.disk,
            topic=tiers.id,
            schema=columns.schema,
            version=columns.version,
            shape=None,
            partitioner=tiers.partitioner(columns.version, columns.schema),
            first=0,
            end=1,
            batches=[rows],
        )

    swapped = batch.select(["_offset", "_time", "a", "k"])
    for wrong in (swapped, swapped.rename_columns(batch.schema.names)):
        with pytest.raises(InvalidRequest, match="other columns"):
            flush(wrong)
    assert [file.rows for file in flush(batch)] == [1]


# -- a disk that fails ---------------------------------------------------------------------------


def test_a_failed_sync_of_a_directory_degrades_health(opened, monkeypatch):
    """Flushes fail from then on and stats name the cause; full memory refuses; a restart heals."""
    world = opened(memory={"budget_bytes": 1 << 20, "flush_offsets": 5})
    topic = world.db.create_topic("plain", {"n": "long", "data": "binary"})
    sync, left = world.disk.sync_directory, [True]

    def failing(path):
        if left and "/disk/" in path:
            left.clear()
            raise OSError(errno.EIO, "said by a test")
        sync(path)

    monkeypatch.setattr(world.disk, "sync_directory", failing)
    for n in range(10):
        topic.append(n=n, data=b"")
    for _ in range(3):
        world.round(2)
    assert not left
    assert "could not be synced" in world.db.tiers.errors["flush /default/plain"]
    assert world.db.stats()["health"] == "degraded"
    topic.append(n=10, data=noise(1, 900_000))
    world.round(2)
    with pytest.raises(Overloaded, match="memory is nearly full"):
        topic.append(n=11, data=b"")
    assert "open the engine again" in world.db.tiers.errors["flush /default/plain"]
    world.db.close()
    topic = world.open().topic("plain")
    assert column_of(topic, "n") == list(range(11))


# -- what neither log nor files have -------------------------------------------------------------


@pytest.mark.parametrize("metadata", ["kept", "lost"])
def test_records_whose_file_was_put_aside_are_lost_and_no_gap(opened, metadata):
    """What files had and the log has freed is lost, never a declared gap."""
    world = opened()
    topic = world.db.create_topic("plain", {"n": "long"})
    for n in range(20):
        topic.append(n=n)
        if n % 10 == 9:
            world.db.tiers.flush()
    world.move()
    topic.append(n=20)
    paths = file_paths(world, topic)
    meta = world.db.paths.metadata
    world.db.close()
    size = world.disk.stat(paths[1]).size
    file = world.disk.open(paths[1], "write")
    file.truncate(size // 2)
    file.close()
    directory, name = posixpath.split(meta)
    for each in world.disk.list_directory(directory):
        if each.startswith(name) and metadata == "lost":
            world.disk.unlink(posixpath.join(directory, each))
    db = world.open()
    topic = db.topic("plain")
    db.tiers.flush()
    reading = topic.read(start=0)
    with pytest.raises(CorruptionError) as caught:
        list(reading)
    assert caught.value.details["offset_next"] == 20
    assert column_of(topic, "n", start=20) == [20]
    assert reading.gaps == []


def test_what_retention_took_while_the_tiers_were_off_is_a_gap(tmp_path):
    """The log's own freeing is a gap as long as nothing says that files are missing."""
    with open_small(tmp_path) as db:
        topic = db.create_topic("plain", {"n": "long"})
        topic.append(n=0)
        db.tiers.flush()
    with open_small(tmp_path, memory=LOG_ALONE, retention_age_s=0.0, retention_bytes=0) as db:
        topic = db.topic("plain")
        for n in range(1, 10):
            topic.append(n=n)
        rotate(db)
        db.upkeep.free()
        topic.append(n=10)
    with open_small(tmp_path) as db:
        topic = db.topic("plain")
        assert [(each.kind, each.first, each.end) for each in topic.runtime.tiers._holes] == [
            ("gap", 1, 10)
        ]
        assert column_of(topic, "n") == [0, 10]


# -- loading ---------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [(), "n"])
def test_a_long_log_is_loaded_in_portions(opened, monkeypatch, key):
    """When the tiers come back, memory never has more than a part of its budget of the log."""
    world = opened(memory=LOG_ALONE)
    columns = {"n": "long", "data": "binary"}
    topic = world.db.create_topic("plain", columns, primary_key=key)
    for n in range(60):
        topic.append(n=n % 50, data=noise(n, 50_000))
    world.db.close()
    world._settings = small_settings("/data", memory={"budget_bytes": 4 << 20})
    monkeypatch.setattr(topic_tiers, "LOAD_BYTES", 200_000)
    db = world.open()
    topic = db.topic("plain")
    memory = topic.runtime.tiers.memory
    sizes = []
    load = memory.load

    def loading(*arguments, **options):
        load(*arguments, **options)
        sizes.append(memory.bytes)

    monkeypatch.setattr(memory, "load", loading)
    topic.runtime.tiers.ensure_loaded()
    assert len(sizes) > 5
    assert max(sizes) < 1 << 20
    assert topic.runtime.tiers.flushed > 30
    assert column_of(topic, "data") == [noise(n, 50_000) for n in range(60)]
    expected = [(50 if key else 60,)]
    assert db.query("SELECT count(*) FROM plain").rows() == expected


def test_a_topic_whose_records_are_all_gone_is_flushed_without_a_word(tmp_path):
    """Nothing is left to flush, and nothing ever was flushed: that is no fault."""
    with open_small(tmp_path, memory=LOG_ALONE, retention_age_s=0.0, retention_bytes=0) as db:
        topic = db.create_topic("plain", {"n": "long"})
        for n in range(10):
            topic.append(n=n)
        rotate(db)
        db.upkeep.free()
    with open_small(tmp_path) as db:
        topic = db.topic("plain")
        assert topic.runtime.state.start == 10
        assert db.tiers.flush() == {"/default/plain": 0}
        topic.append(n=10)
        assert db.tiers.flush() == {"/default/plain": 11}
        assert column_of(topic, "n") == [10]
