"""The settings of Spark: a small driver, and the settings of the user over ours."""

from __future__ import annotations

import subprocess
import sys

import pytest

from frazil.errors import Unavailable
from frazil.fs import RealFileSystem
from frazil.lake import session
from frazil.lake.connection import CatalogAddress
from frazil.lake.java import Java, properties_text, put_file, read_text, spark_environment
from frazil.lake.session import (
    cause_of_end,
    check_versions,
    log_properties,
    session_conf,
    writers_of,
)

ADDRESS = CatalogAddress(uri="http://127.0.0.1:1", token="secret")
JAVA = Java("/java", "17.0.0", "/java/bin/java", "test")
RUNTIME = "/cache/iceberg-spark-runtime-4.1_2.13-1.12.0.jar"


def conf_of(**arguments):
    """Return the settings for one jar."""
    return session_conf(jars=[RUNTIME], catalog=ADDRESS, run_dir="/run dir", **arguments)


def test_the_driver_is_small_and_listens_to_nobody():
    """One JVM on the loopback, without a web page, in UTC, with errors instead of nulls."""
    conf = conf_of()
    assert (conf["spark.master"], conf["spark.driver.memory"]) == ("local[2]", "1024m")
    assert conf["spark.ui.enabled"] == "false"
    assert conf["spark.driver.bindAddress"] == conf["spark.driver.host"] == "127.0.0.1"
    assert (conf["spark.sql.session.timeZone"], conf["spark.sql.ansi.enabled"]) == ("UTC", "true")
    assert (conf["spark.scheduler.mode"], conf["spark.sql.shuffle.partitions"]) == ("FAIR", "2")
    options = conf["spark.driver.defaultJavaOptions"]
    assert "-XX:+UseSerialGC" in options
    assert "TieredStopAtLevel" not in options
    assert '"-Djava.io.tmpdir=/run dir/scratch"' in options


def test_the_catalog_is_asked_each_time_with_the_token_that_was_given():
    """No cached tables, no exchange of tokens, a limit on each wait."""
    conf = conf_of()
    prefix = "spark.sql.catalog.frazil"
    assert conf[prefix] == "org.apache.iceberg.spark.SparkCatalog"
    assert (conf[f"{prefix}.type"], conf[f"{prefix}.uri"]) == ("rest", ADDRESS.uri)
    assert (conf[f"{prefix}.token"], conf[f"{prefix}.token-refresh-enabled"]) == ("secret", "false")
    assert conf[f"{prefix}.cache-enabled"] == "false"
    assert int(conf[f"{prefix}.rest.client.socket-timeout-ms"]) <= 60_000


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.driver.memory", "3g"),
        ("spark.sql.ansi.enabled", "false"),
        ("spark.sql.catalog.frazil.cache-enabled", "true"),
        ("spark.driver.defaultJavaOptions", "-XX:+UseG1GC"),
        ("spark.driver.extraClassPath", "/mine.jar"),
        ("spark.something.new", "x"),
    ],
)
def test_every_key_of_the_user_wins(key, value):
    """What lake.spark.conf has goes over ours, whatever it is."""
    assert conf_of(conf={key: value})[key] == value


def test_the_heap_is_a_setting():
    """The heap's cap is what was asked for, in whole MiB."""
    assert conf_of(heap_bytes=512 << 20)["spark.driver.memory"] == "512m"


def test_the_writers_are_those_of_the_master():
    """The user's number of tasks counts; ours where none is given."""
    given = ["local[8]", "local[3, 2]", "local[*]", "spark://host:1"]
    assert [writers_of({"spark.master": each}) for each in given] == [8, 3, 2, 2]
    assert writers_of({}) == 2


def test_jars_are_shipped_only_where_there_is_somebody_to_ship_them_to():
    """A local driver has them on its class path; executors elsewhere get them from Spark."""
    assert conf_of()["spark.driver.extraClassPath"] == RUNTIME
    assert "spark.jars" not in conf_of()
    cluster = conf_of(conf={"spark.master": "spark://host:7077"})
    assert cluster["spark.jars"] == RUNTIME
    assert "spark.driver.extraClassPath" not in cluster


def test_another_pyspark_is_refused(monkeypatch):
    """The error says what to install."""
    monkeypatch.setattr(session, "spark_version", lambda: "4.2.0")
    with pytest.raises(Unavailable, match=r"frazil\[lake\]") as caught:
        check_versions()
    assert caught.value.details == {"pyspark": "4.2.0", "needed": "4.1.*"}


def test_settings_survive_the_properties_file():
    """What Java's reader treats as its own signs is escaped."""
    text = properties_text(
        {"a b:c=d#e!": " led by a space", "path": "C:\\x = y", "lines": "one\ntwo\tthree\r"}
    )
    assert text.splitlines() == [
        "a\\ b\\:c\\=d\\#e\\!=\\ led\\ by\\ a\\ space",
        "path=C\\:\\\\x\\ \\=\\ y",
        "lines=one\\ntwo\\tthree\\r",
    ]


def test_a_private_file_is_replaced_whole_and_read_by_its_owner_alone(tmp_path):
    """The file with the token has mode 0600 and leaves no draft."""
    path = tmp_path / "new" / "spark.properties"
    put_file(str(path), b"first", RealFileSystem())
    put_file(str(path), b"2", RealFileSystem())
    assert read_text(str(path), RealFileSystem()) == "2"
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == ["spark.properties"]
    assert read_text(str(path / "absent"), RealFileSystem()) == ""


def test_sparks_log_goes_to_a_file_of_limited_size():
    """No appender writes to the terminal."""
    lines = log_properties("/logs/spark.log").splitlines()
    assert "appender.file.fileName=/logs/spark.log" in lines
    assert "appender.file.policies.size.size=10000000" in lines
    assert not [line for line in lines if "onsole" in line]


def test_another_spark_of_the_machine_is_left_out():
    """SPARK_HOME and settings of another installation do not reach ours."""
    found = spark_environment(
        JAVA, {"SPARK_HOME": "/opt/spark-3", "SPARK_CONF_DIR": "/etc/spark", "HOME": "/h"}
    )
    assert found["SPARK_HOME"].endswith("pyspark")
    assert (found["JAVA_HOME"], found["HOME"]) == ("/java", "/h")
    assert "SPARK_CONF_DIR" not in found


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (
            'WARNING: x\nException in thread "main" org.x.Y: Master must be local\n\tat Z.scala\n',
            "Master must be local",
        ),
        (
            'Exception in thread "main" java.lang.A: outer\nCaused by: java.io.B: inner\n',
            "inner",
        ),
        (
            "Invalid maximum heap size: -Xmxlots\nError: Could not create the Java Virtual Machine.",
            "Invalid maximum heap size: -Xmxlots",
        ),
        ("Error: LinkageError occurred", "LinkageError occurred"),
        ("nothing of use", ""),
    ],
)
def test_the_last_words_of_a_jvm_tell_the_cause(said, cause):
    """The line that says most is found, not the first and not the last."""
    assert cause_of_end(said) == cause


START = """
import logging, sys
from frazil.errors import Unavailable
from frazil.lake.java import Java
from frazil.lake.session import build_session
root = sys.argv[1]
seen = logging.Handler()
seen.emit = lambda record: print("TRACE", ascii(getattr(record, "trace", "")))
logging.getLogger("frazil").addHandler(seen)
try:
    java = Java(root + "/java", root + "/java/bin/java", "17", "JAVA_HOME")
    build_session({}, java=java, run_dir=root + "/run", log_path=root + "/logs/spark.log")
except Unavailable as error:
    print("ERROR", error)
"""


def test_a_jvm_that_does_not_start_is_reported_with_its_cause(tmp_path):
    """One sentence names cause and setting; what was in the log before counts for nothing."""
    program = tmp_path / "java" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho Invalid maximum heap size: -Xmxlots >&2\nexit 1\n")
    program.chmod(0o700)
    log = tmp_path / "logs" / "spark.log"
    log.parent.mkdir()
    log.write_text("Caused by: java.io.Old: long ago\n")
    # In a process of its own: PySpark leaves a pipe to the process that did not start.
    done = subprocess.run(
        [sys.executable, "-c", START, str(tmp_path)], capture_output=True, text=True, check=True
    )
    [trace] = [line for line in done.stdout.splitlines() if line.startswith("TRACE")]
    [line_found] = [line for line in done.stdout.splitlines() if line.startswith("ERROR")]
    assert "lake.spark.conf" in line_found
    assert "cause=Invalid maximum heap size: -Xmxlots" in line_found
    assert "Invalid maximum heap size" in trace
    assert "long ago" not in trace
