"""The pinned jars: which, where they are kept, and that no other file is taken for one."""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from pathlib import Path

import pytest

from frazil.errors import CorruptionError, InvalidRequest, NotFound, Unavailable
from frazil.fs import RealFileSystem
from frazil.lake import jars
from frazil.lake.java import Java
from frazil.lake.launch import cache_directory
from frazil.lake.resolver import resolver_conf

ROOT = Path(__file__).resolve().parents[3]
NOWHERE = Java("/nowhere", "/nowhere/bin/java", "17.0.0", "test")
CONTENTS = {"one": b"first jar", "two": b"second jar"}


class CountingFileSystem(RealFileSystem):
    """Remembers which files were opened."""

    def __init__(self):
        self.opened = []

    def open(self, path, mode):
        self.opened.append(os.path.basename(path))
        return super().open(path, mode)


@pytest.fixture
def small(monkeypatch):
    """Pin two small jars instead of the real ones."""
    pinned = {
        name: jars.Jar("org.example", name, "1.0", len(data), hashlib.sha256(data).hexdigest())
        for name, data in CONTENTS.items()
    }
    sets = {"always": ("one",), "rest": (), "local": (), "s3": ("two",)}
    found = jars.Pins("4.1", "2.13", "1.12.0", sets, pinned)
    monkeypatch.setattr(jars, "pins", lambda: found)
    return pinned


@pytest.fixture
def source(tmp_path):
    """A directory that has both jars."""
    place = tmp_path / "source"
    place.mkdir()
    (place / "one-1.0.jar").write_bytes(CONTENTS["one"])
    (place / "org.example_two-1.0.jar").write_bytes(CONTENTS["two"])
    return str(place)


def test_the_pinned_versions_belong_together():
    """The runtime jar is made for the Spark and Scala that pyproject.toml installs."""
    pinned = jars.pins()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    spark = next(
        line
        for line in project["project"]["optional-dependencies"]["lake"]
        if line.startswith("pyspark")
    )
    assert re.match(r"pyspark>=(\d+\.\d+)\.", spark)[1] == pinned.spark
    runtime = jars.jars_of(("rest", "local"))
    assert [jar.artifact for jar in runtime] == [
        f"iceberg-spark-runtime-{pinned.spark}_{pinned.scala}"
    ]
    assert runtime[0].version == pinned.iceberg


def test_every_set_names_pinned_jars_with_whole_sums():
    """A set without its jar, or a sum of another length, would be found only by a user."""
    pinned = jars.pins()
    assert {name for names in pinned.sets.values() for name in names} == set(pinned.jars)
    for jar in pinned.jars.values():
        assert re.fullmatch(r"[0-9a-f]{64}", jar.sha256)
        assert jar.bytes > 1_000_000


@pytest.mark.parametrize(
    ("kinds", "count"), [(("rest", "local"), 1), (("rest", "s3"), 2), (("glue", "s3"), 2)]
)
def test_kinds_add_their_jars_once(kinds, count):
    """The bundle for S3 is there once, also if catalog and warehouse both want it."""
    assert len(jars.jars_of(kinds)) == count


@pytest.mark.parametrize(
    ("catalog", "warehouse", "kinds"),
    [
        ("embedded", "", ("rest", "local")),
        ("embedded", "file:///srv/tables", ("rest", "local")),
        ("glue", "s3://bucket/tables", ("glue", "s3")),
    ],
)
def test_kinds_come_from_the_settings(catalog, warehouse, kinds):
    """The embedded catalog is asked like any REST catalog."""
    assert jars.kinds_for(catalog, warehouse) == kinds


def test_unknown_kinds_are_refused():
    """The error names what is known, or the setting."""
    with pytest.raises(InvalidRequest, match=r"rest, jdbc"):
        jars.jars_of(("nessie",))
    with pytest.raises(InvalidRequest):
        jars.jars_of(("always",))
    with pytest.raises(InvalidRequest, match=r"lake\.warehouse"):
        jars.kinds_for("embedded", "ftp://host/x")


def test_jars_of_a_directory_are_copied_and_then_used_alone(tmp_path, small, source):
    """After the copy neither the directory nor a Java is needed; both ways to name a jar work."""
    cache = str(tmp_path / "cache")
    told = []
    paths = jars.copy_jars(
        ("rest", "s3"), source, cache_dir=cache, progress=lambda *step: told.append(step)
    )
    total = sum(map(len, CONTENTS.values()))
    assert told[-1] == (total, total)
    assert [Path(path).read_bytes() for path in paths] == list(CONTENTS.values())
    for name in os.listdir(source):
        os.unlink(os.path.join(source, name))
    assert (
        jars.ensure_jars(("rest", "s3"), cache_dir=cache, java=NOWHERE, conf={}, environment={})
        == paths
    )
    assert sorted(os.listdir(cache)) == [
        "one-1.0.jar",
        "one-1.0.jar.seen",
        "two-1.0.jar",
        "two-1.0.jar.seen",
    ]


def test_a_directory_that_lacks_a_jar_is_refused_before_anything_is_copied(tmp_path, small):
    """The error names all that it has to hold."""
    place = tmp_path / "source"
    place.mkdir()
    with pytest.raises(NotFound, match=r"one-1\.0\.jar, two-1\.0\.jar"):
        jars.copy_jars(("s3",), str(place), cache_dir=str(tmp_path / "cache"))
    assert not (tmp_path / "cache").exists()


def test_a_jar_with_another_sum_is_not_taken(tmp_path, small, source):
    """One changed byte: the error names the file and both sums, and the cache stays empty."""
    cache = tmp_path / "cache"
    path = os.path.join(source, "one-1.0.jar")
    Path(path).write_bytes(b"first jaR")
    with pytest.raises(CorruptionError, match="fetch the file again") as caught:
        jars.copy_jars(("rest",), source, cache_dir=str(cache))
    assert caught.value.details["path"] == path
    assert caught.value.details["expected"] == small["one"].sha256
    assert caught.value.details["found"] == hashlib.sha256(b"first jaR").hexdigest()
    assert os.listdir(cache) == []


def test_a_changed_file_of_the_cache_is_found_and_not_used(tmp_path, small, source):
    """A jar that was right once is read again when its size or time has changed."""
    cache = str(tmp_path / "cache")
    (path,) = jars.copy_jars(("rest",), source, cache_dir=cache)
    Path(path).write_bytes(b"first jaR")
    os.utime(path, ns=(1, 1))
    (state,) = jars.inspect_jars(("rest",), cache)
    assert state.state == "wrong"
    with pytest.raises(CorruptionError, match="remove this file") as caught:
        jars.ensure_jars(("rest",), cache_dir=cache, java=NOWHERE, conf={}, environment={})
    assert caught.value.details["path"] == path
    jars.copy_jars(("rest",), source, cache_dir=cache)
    assert jars.inspect_jars(("rest",), cache)[0].state == "ok"


def test_a_file_is_summed_up_once_and_again_only_when_it_was_touched(tmp_path, small, source):
    """A start does not read 50 MB again; a new time of the file makes it."""
    cache = str(tmp_path / "cache")
    (path,) = jars.copy_jars(("rest",), source, cache_dir=cache)
    counting = CountingFileSystem()
    assert jars.missing_jars(("rest",), cache, file_system=counting) == []
    assert counting.opened == ["one-1.0.jar.seen"]
    os.utime(path, ns=(1, 1))
    assert jars.missing_jars(("rest",), cache, file_system=counting) == []
    assert "one-1.0.jar" in counting.opened
    counting.opened.clear()
    assert jars.missing_jars(("rest",), cache, file_system=counting) == []
    assert counting.opened == ["one-1.0.jar.seen"]


def test_a_cache_that_cannot_be_written_is_named(tmp_path, small, source):
    """The error says where, and how to move it."""
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="XDG_CACHE_HOME"):
        jars.copy_jars(("rest",), source, cache_dir=str(tmp_path / "file"))


def test_mirrors_and_proxies_of_the_settings_reach_the_resolver(small):
    """Keys of lake.spark.conf that concern fetching win; others stay out of it."""
    conf = {
        "spark.jars.repositories": "file:///mirror",
        "spark.jars.ivySettings": "/etc/ivy.xml",
        "spark.driver.extraJavaOptions": "-Dhttps.proxyHost=proxy",
        "spark.jars.packages": "org.example:other:1",
        "spark.executor.memory": "9g",
    }
    found = resolver_conf(list(small.values()), "/work-area/ivy", conf)
    assert found["spark.jars.packages"] == "org.example:one:1.0,org.example:two:1.0"
    assert found["spark.jars.ivy"] == "/work-area/ivy"
    assert {key: found[key] for key in list(conf)[:3]} == dict(list(conf.items())[:3])
    assert "spark.executor.memory" not in found
    assert resolver_conf([], "/x", {"spark.jars.ivy": "/own"})["spark.jars.ivy"] == "/own"


def test_the_cache_directory_follows_the_xdg_rules():
    """A relative XDG_CACHE_HOME is no valid one."""
    assert cache_directory({"XDG_CACHE_HOME": "/c", "HOME": "/h"}) == "/c/frazil/lake"
    assert cache_directory({"HOME": "/h"}) == "/h/.cache/frazil/lake"
    assert cache_directory({"XDG_CACHE_HOME": "c", "HOME": "/h"}) == "/h/.cache/frazil/lake"
