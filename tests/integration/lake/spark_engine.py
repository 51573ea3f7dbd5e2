"""An engine whose lake works on the Spark session that the tests share: no JVM of its own.

Its worker is the real one, but a thread of this process: greeting, jobs, commits and verification
are the product's. Only the start of the JVM, and the way to the catalog where a test wants to stand
in it, are others.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading

import duckdb
import duckdb_extensions
import msgspec
import pytest
from typer.testing import CliRunner

import frazil
from frazil.cli.app import app
from frazil.fs import RealFileSystem
from frazil.lake import Launched, session_conf
from frazil.lake import runtime as engine_lake
from frazil.lake.connection import connect
from frazil.lake.worker import Worker
from frazil.lake.worker_jobs import WorkerConfig
from frazil.lake.worker_spark import Spark
from tests.integration.lake.spark_world import QUICK

END_SECONDS = 30.0
SETTINGS = {
    "lake.catalog.port": 0,
    "lake.writer.flush_interval": "1h",
    "lake.ack_timeout_s": "300s",
    "lake.spark.conf": QUICK,
    "log.ballast_bytes": 0,
    "log.free_bytes_min": 0,
    "log.free_ratio_min": 0,
}


def session_at(world, address):
    """Return a session of the shared JVM that knows another catalog as `frazil`."""
    session = world.session.newSession()
    for key, value in session_conf(jars=(), catalog=address, run_dir="").items():
        if key.startswith("spark.sql.catalog.frazil"):
            session.conf.set(key, value)
    return session


class SharedWorker(Worker):
    """A worker on the shared session; it is its own process to the supervisor."""

    pid = 0

    def __init__(self, world, connection, *, epoch, way):
        super().__init__(connection, epoch=epoch, file_system=RealFileSystem())
        self.world = world
        self.way = way
        self.code = None
        self.socket = connection

    def _launched(self, request):
        config = msgspec.convert(request.body, WorkerConfig)
        address = self.way(config.catalog)
        session = session_at(self.world, address)
        settings = config.to_settings()
        return Spark.of_session(session, settings, connect(address), "")

    def live(self):
        self.code = self.run()
        self.socket.close()

    def poll(self):
        return self.code

    def terminate(self):
        self.stop()

    def kill(self):
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def shared_workers(world, *, way=lambda address: address):
    """Let all engines of this process have workers on the shared session meanwhile."""
    begun = []

    def launch(epoch):
        ours, theirs = socket.socketpair()
        worker = SharedWorker(world, ours, epoch=epoch, way=way)
        thread = threading.Thread(target=worker.live, daemon=True)
        begun.append((thread, theirs))
        thread.start()
        return Launched(worker, theirs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_lake, "launcher", lambda *_, **__: launch)
        try:
            yield
        finally:
            for thread, theirs in begun:
                # An engine that ends before it has taken the socket up does not close it.
                theirs.close()
                thread.join(END_SECONDS)


@contextlib.contextmanager
def opened(world, path, *, way=lambda address: address, **settings):
    """Open an engine with the shared Spark; `way` gives the address that its worker is to use."""
    with shared_workers(world, way=way), frazil.open(path, **{**SETTINGS, **settings}) as db:
        yield db


# -- reading a table without Frazil and without Spark --


def by_pyiceberg(catalog, name):
    """Return a table's rows, in the order of their places."""
    return _ordered(catalog.load_table(("default", name)).scan().to_arrow())


def by_duckdb(catalog, name):
    """Return the same, read by DuckDB from the newest metadata file."""
    table = catalog.load_table(("default", name))
    connection = duckdb.connect()
    for each in ("avro", "iceberg"):
        duckdb_extensions.import_extension(each, con=connection)
        connection.load_extension(each)
    connection.execute("SET TimeZone = 'UTC'")
    place = table.metadata_location.removeprefix("file://")
    return _ordered(connection.execute("SELECT * FROM iceberg_scan(?)", [place]).to_arrow_table())


def _ordered(table):
    rows = table.to_pylist()
    return sorted(rows, key=lambda row: (row.get("_part", -1), row["_offset"]))


def check_rows(catalog, name, wanted, *, column="id"):
    """Assert that both readers find one column's values at their offsets, each once.

    `wanted` has the value of each offset.
    """
    for reader in (by_pyiceberg, by_duckdb):
        found = [(row["_offset"], row[column]) for row in reader(catalog, name)]
        assert found == sorted(wanted.items()), reader.__name__


def verify_here(world, path, topic, *, port=0):
    """Run `frazil verify` on the shared session; return its exit code and what it printed."""
    options = ["--data", str(path), "--set", f"lake.catalog.port={port}", "--output", "json"]
    with shared_workers(world):
        done = CliRunner().invoke(app, [*options, "verify", topic])
    return done.exit_code, json.loads(done.stdout)
