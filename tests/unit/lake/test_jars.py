"""The pinned jars: which, where they are kept, and that no other file is taken for one."""

from __future__ import annotations

import hashlib
import http.server
import os
import re
import threading
import tomllib
from pathlib import Path

import pytest

from frazil.errors import CorruptionError, InvalidRequest, NotFound, Unavailable
from frazil.lake import jars
from frazil.lake.java import cache_directory

ROOT = Path(__file__).resolve().parents[3]
NOWHERE = {"spark.jars.repositories": "file:///nowhere"}
CONTENTS = {"one": b"first jar", "two": b"second jar"}


@pytest.fixture
def small(monkeypatch):
    """Pin two small jars instead of the real one."""
    pinned = [
        jars.Jar("org.example", name, "1.0", len(data), hashlib.sha256(data).hexdigest())
        for name, data in CONTENTS.items()
    ]
    monkeypatch.setattr(jars, "pins", lambda: jars.Pins("4.1", "2.13", "1.12.0", tuple(pinned)))
    return pinned


@pytest.fixture
def source(tmp_path):
    """A directory that has both jars."""
    place = tmp_path / "source"
    place.mkdir()
    for name, data in CONTENTS.items():
        (place / f"{name}-1.0.jar").write_bytes(data)
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
    (runtime,) = pinned.jars
    assert runtime.artifact == f"iceberg-spark-runtime-{pinned.spark}_{pinned.scala}"
    assert runtime.version == pinned.iceberg
    assert re.fullmatch(r"[0-9a-f]{64}", runtime.sha256)


def test_jars_of_a_directory_are_copied_and_then_used_alone(tmp_path, small, source):
    """After the copy the directory is not needed any more."""
    cache = str(tmp_path / "cache")
    calls = []
    paths = jars.ensure_jars(
        cache, conf=NOWHERE, source=source, progress=lambda *step: calls.append(step)
    )
    total = sum(map(len, CONTENTS.values()))
    assert calls[-1] == (total, total)
    assert [Path(path).read_bytes() for path in paths] == list(CONTENTS.values())
    for name in os.listdir(source):
        os.unlink(os.path.join(source, name))
    assert jars.ensure_jars(cache, conf=NOWHERE) == paths
    assert sorted(os.listdir(cache)) == ["one-1.0.jar", "two-1.0.jar"]


def test_a_directory_that_lacks_a_jar_is_refused_before_anything_is_copied(tmp_path, small):
    """The error names all that it has to hold."""
    place = tmp_path / "source"
    place.mkdir()
    with pytest.raises(NotFound, match=r"one-1\.0\.jar, two-1\.0\.jar"):
        jars.ensure_jars(str(tmp_path / "cache"), conf={}, source=str(place))
    assert not (tmp_path / "cache").exists()


def test_a_changed_file_of_the_cache_is_found_and_not_used(tmp_path, small, source):
    """The sum of each file is checked at each start; a copy from a directory replaces it."""
    cache = str(tmp_path / "cache")
    path, _other = jars.ensure_jars(cache, conf={}, source=source)
    Path(path).write_bytes(b"first jaR")
    with pytest.raises(CorruptionError, match="remove this file") as caught:
        jars.ensure_jars(cache, conf=NOWHERE)
    assert caught.value.details["path"] == path
    jars.ensure_jars(cache, conf={}, source=source)
    assert Path(path).read_bytes() == CONTENTS["one"]


def test_a_cache_that_cannot_be_written_is_named(tmp_path, small, source):
    """The error says where, and how to move it."""
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="XDG_CACHE_HOME"):
        jars.ensure_jars(str(tmp_path / "file" / "cache"), conf={}, source=source)


@pytest.fixture
def mirror(tmp_path):
    """A repository on loopback that has both jars; its address and the paths that were asked for."""
    asked = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments):
            super().__init__(*arguments, directory=str(tmp_path / "mirror"))

        def do_GET(self):
            asked.append(self.path)
            super().do_GET()

        def log_message(self, *_words):
            """Be quiet."""

    for name, data in CONTENTS.items():
        folder = tmp_path / "mirror" / "org" / "example" / name / "1.0"
        folder.mkdir(parents=True)
        (folder / f"{name}-1.0.jar").write_bytes(data)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


def test_jars_are_fetched_once_from_the_first_repository_that_has_them(tmp_path, small, mirror):
    """Progress counts bytes of all jars; a second call asks for nothing."""
    address, asked = mirror
    conf = {"spark.jars.repositories": f"{address}/absent, {address}/"}
    calls = []
    for _call in range(2):
        paths = jars.ensure_jars(
            str(tmp_path / "cache"), conf=conf, progress=lambda *step: calls.append(step)
        )
        assert [Path(path).read_bytes() for path in paths] == list(CONTENTS.values())
    assert asked == [
        "/absent/org/example/one/1.0/one-1.0.jar",
        "/org/example/one/1.0/one-1.0.jar",
        "/absent/org/example/two/1.0/two-1.0.jar",
        "/org/example/two/1.0/two-1.0.jar",
    ]
    total = sum(map(len, CONTENTS.values()))
    assert calls == [(len(CONTENTS["one"]), total), (total, total)]


@pytest.mark.parametrize("data", [b"First jar", b"first jar and more", b"first"])
def test_a_jar_that_a_mirror_changed_is_not_used(tmp_path, small, mirror, data):
    """One changed byte, a longer and a shorter file: refused by name and sum, nothing is kept."""
    place = tmp_path / "mirror" / "org" / "example" / "one" / "1.0" / "one-1.0.jar"
    place.write_bytes(data)
    conf = {"spark.jars.repositories": mirror[0]}
    with pytest.raises(CorruptionError, match="mirror may have changed it") as caught:
        jars.ensure_jars(str(tmp_path / "cache"), conf=conf)
    assert caught.value.details["expected"] == small[0].sha256
    assert not (tmp_path / "cache").exists()


def test_an_unreachable_repository_is_one_sentence_with_the_way_out(tmp_path, small):
    """Nothing is left in the cache; the error names the setting, `--jars` and the address."""
    cache = tmp_path / "cache"
    with pytest.raises(Unavailable) as caught:
        jars.ensure_jars(str(cache), conf=NOWHERE)
    text = str(caught.value)
    for words in ("lake.spark.conf", "--jars DIR", "https_proxy", "file:///nowhere/org/example"):
        assert words in text
    assert not cache.exists()
    with pytest.raises(InvalidRequest, match="http"):
        jars.ensure_jars(str(cache), conf={"spark.jars.repositories": "ftp://host"})


def test_without_a_setting_the_default_of_sparks_resolver_is_used():
    """Its address is in a file of Ivy that PySpark brings."""
    [address] = jars._repositories({})
    assert address.startswith("https://")
    assert "maven2" in address


def test_the_cache_directory_follows_the_xdg_rules():
    """A relative XDG_CACHE_HOME is no valid one."""
    assert cache_directory({"XDG_CACHE_HOME": "/c", "HOME": "/h"}) == "/c/frazil/lake"
    assert cache_directory({"HOME": "/h"}) == "/h/.cache/frazil/lake"
    assert cache_directory({"XDG_CACHE_HOME": "c", "HOME": "/h"}) == "/h/.cache/frazil/lake"
