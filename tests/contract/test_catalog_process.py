"""The embedded catalog as a process: kills, restarts, ports, its address, its SQLite file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pyarrow as pa
import pytest
import requests
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException

from frazil.clock import SystemClock
from frazil.errors import Closed, Unavailable
from frazil.fs import RealFileSystem
from frazil.lake.catalog import CatalogProcess, read_address
from frazil.lake.catalog.process import CatalogOptions
from tests.contract.catalogs import EmbeddedCatalog, Http
from tests.support.processes import is_alive, wait_gone

ROWS = pa.table({"a": pa.array(range(10), pa.int64()), "b": ["x"] * 10})
KILLS = 3
SECONDS_MAX = 60


def wait_for(condition, what):
    end = time.monotonic() + SECONDS_MAX
    while time.monotonic() < end:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError(f"{what} did not happen in {SECONDS_MAX} s")


def wait_for_more(answered):
    count = len(answered)
    wait_for(lambda: len(answered) >= count + 5, "five more commits")


@pytest.fixture
def home(tmp_path):
    with EmbeddedCatalog(tmp_path) as started:
        yield started


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A catalog for the tests that kill nothing."""
    with EmbeddedCatalog(tmp_path_factory.mktemp("shared")) as started:
        yield started


def setting(**properties):
    return {"action": "set-properties", "updates": properties}


def test_every_answered_commit_survives_kills(home):
    """Killed again and again in a stream of commits, the catalog comes back with all it answered."""
    namespace = home.namespace()
    home.http.table(namespace, "t")
    first = home.address
    answered, failures, killed = [], [], set()
    done = threading.Event()

    def stream(writer):
        http, number = Http(first.uri, first.token), 0
        while not done.is_set():
            number += 1
            key = f"k{writer}-{number}"
            try:
                answer = http.commit(namespace, "t", setting(**{key: "v"}))
            except requests.RequestException:
                time.sleep(0.05)
                continue
            if answer.status_code == 200:
                answered.append(key)
            else:
                failures.append(answer.text)

    writers = [threading.Thread(target=stream, args=(writer,)) for writer in range(2)]
    for writer in writers:
        writer.start()
    try:
        for _number in range(KILLS):
            wait_for_more(answered)
            victim = home.address.pid
            killed.add(victim)
            os.kill(victim, signal.SIGKILL)
            wait_for(
                lambda: (found := home.process.address) is not None and found.pid not in killed,
                "a restart",
            )
        wait_for_more(answered)
    finally:
        done.set()
        for writer in writers:
            writer.join()
    assert len(killed) == KILLS
    assert not failures
    assert (home.process.restarts, home.address.uri) == (KILLS, first.uri)
    assert home.address.token == first.token
    found = home.http("GET", f"namespaces/{namespace}/tables/t").json()
    properties = found["metadata"]["properties"]
    assert [key for key in answered if key not in properties] == []
    again = SqlCatalog(
        "frazil", uri=f"sqlite:///{home.directory}/catalog.db", warehouse=home.warehouse
    )
    table = again.load_table(f"{namespace}.t")
    assert table.metadata_location == found["metadata-location"]
    again.close()


def test_the_address_file_says_where_and_who(shared):
    """The file is for its owner only and has what a client needs."""
    path = shared.directory / "run" / "catalog.json"
    assert path.stat().st_mode & 0o777 == 0o600
    assert (shared.directory / "run" / "catalog.token").stat().st_mode & 0o777 == 0o600
    found = read_address(str(path.parent), file_system=RealFileSystem())
    assert found == shared.address
    assert found.uri.startswith("http://127.0.0.1:")
    assert len(found.token) == 64
    assert json.loads(path.read_text())["pid"] == found.pid
    assert requests.get(f"{found.uri}/health", timeout=10).json() == {"status": "ok"}


def test_a_second_catalog_takes_the_next_port(shared, tmp_path):
    """Two directories have two catalogs, and the second one listens right behind the first."""
    port = int(shared.address.uri.rpartition(":")[2])
    other = CatalogProcess(
        CatalogOptions(
            run_directory=str(tmp_path / "run"),
            db=str(tmp_path / "c.db"),
            warehouse=str(tmp_path / "w"),
            port=port,
        ),
        clock=SystemClock(),
    )
    with other:
        assert port < int(other.address.uri.rpartition(":")[2]) <= port + 64
        wrong = Http(other.address.uri, shared.address.token)("GET", "config")
        assert wrong.status_code == 401


def test_other_programs_share_the_file(shared):
    """PyIceberg's SqlCatalog on the same SQLite file sees and changes the same tables."""
    namespace = shared.namespace()
    rest = shared.pyiceberg()
    rest.create_table(f"{namespace}.t", schema=ROWS.schema).append(ROWS)
    sql = SqlCatalog(
        "frazil", uri=f"sqlite:///{shared.directory}/catalog.db", warehouse=shared.warehouse
    )
    assert sql.list_tables(namespace) == [(namespace, "t")]
    table = sql.load_table(f"{namespace}.t")
    assert len(table.scan().to_arrow()) == 10
    table.append(ROWS)
    assert len(rest.load_table(f"{namespace}.t").scan().to_arrow()) == 20
    rest.load_table(f"{namespace}.t").append(ROWS)
    assert len(sql.load_table(f"{namespace}.t").scan().to_arrow()) == 30
    stale = sql.load_table(f"{namespace}.t")
    rest.load_table(f"{namespace}.t").append(ROWS)
    stale.metadata.properties["commit.retry.num-retries"] = "0"
    with pytest.raises(CommitFailedException):
        stale.append(ROWS)
    sql.create_namespace((namespace, "by_sql"))
    made = sql.create_table(f"{namespace}.by_sql.u", schema=ROWS.schema)
    made.append(ROWS)
    assert rest.list_tables((namespace, "by_sql")) == [(namespace, "by_sql", "u")]
    assert len(rest.load_table(f"{namespace}.by_sql.u").scan().to_arrow()) == 10
    sql.drop_table(f"{namespace}.t")
    assert not rest.table_exists(f"{namespace}.t")
    sql.close()


PARENT = """
import sys, time
from frazil.clock import SystemClock
from frazil.lake.catalog.process import CatalogOptions, CatalogProcess
options = CatalogOptions(run_directory=sys.argv[1], db=sys.argv[2], warehouse=sys.argv[3], port=0)
print(CatalogProcess(options, clock=SystemClock()).start().pid, flush=True)
time.sleep(600)
"""


def test_the_catalog_ends_with_its_parent(tmp_path):
    """When the program that started it is killed, the catalog ends and removes its address."""
    places = [str(tmp_path / name) for name in ("run", "c.db", "w")]
    parent = subprocess.Popen([sys.executable, "-c", PARENT, *places], stdout=subprocess.PIPE)
    try:
        child = int(parent.stdout.readline())
        assert is_alive(child)
        assert (tmp_path / "run" / "catalog.json").exists()
    finally:
        parent.kill()
        parent.wait()
        parent.stdout.close()
    assert wait_gone([child], SECONDS_MAX)
    assert not (tmp_path / "run" / "catalog.json").exists()


def test_stopping_is_final(tmp_path):
    """A stopped catalog does not come back, and its file opens again with everything in it."""
    with EmbeddedCatalog(tmp_path) as home:
        namespace = home.namespace()
        assert home.http.table(namespace, "t").ok
        process, pid = home.process, home.address.pid
    assert not is_alive(pid)
    assert process.address is None
    with pytest.raises(Closed):
        process.wait_ready(timeout=1)
    assert not (tmp_path / "run" / "catalog.json").exists()
    with EmbeddedCatalog(tmp_path) as again:
        assert again.http("GET", f"namespaces/{namespace}/tables/t").ok


def test_a_catalog_that_cannot_start_says_why(tmp_path):
    """A file that is no database is named in the error, and nothing is left running."""
    (tmp_path / "catalog.db").write_bytes(b"something else" * 1000)
    home = EmbeddedCatalog(tmp_path)
    with pytest.raises(Unavailable, match="damaged"):
        home.process.start()
    assert home.process.address is None
    assert (tmp_path / "catalog.db").read_bytes() == b"something else" * 1000
