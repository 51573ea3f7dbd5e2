"""The worker's own steps, without a JVM: what it tells while it starts, and how it ends."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from frazil.fs import RealFileSystem
from frazil.lake import worker as lake_worker
from frazil.lake.worker import Worker
from frazil.lake.worker_spark import fetch_steps, kept_conf


class EndingSpark:
    """A JVM that is dead for a while before its scratch files are gone."""

    def __init__(self):
        self.dead = threading.Event()
        self.cleaned = False

    def alive(self):
        return not self.dead.is_set()

    def end(self):
        self.dead.set()
        threading.Event().wait(6 * lake_worker.WATCH_SECONDS)
        self.cleaned = True


@pytest.fixture
def exits(monkeypatch):
    """Return the codes that the process would have ended with."""
    codes = []
    monkeypatch.setattr(lake_worker, "WATCH_SECONDS", 0.02)
    monkeypatch.setattr(os, "_exit", codes.append)
    return codes


def watched(spark):
    """Return a worker with a JVM, and the thread that watches it."""
    ours, theirs = socket.socketpair()
    theirs.close()
    made = Worker(ours, epoch=1, file_system=RealFileSystem())
    made._spark = spark
    thread = threading.Thread(target=made._watch, daemon=True)
    thread.start()
    return made, thread, ours


def test_a_jvm_that_is_ended_on_purpose_is_no_death(exits):
    """The process is not ended under the hands of who removes the scratch files."""
    spark = EndingSpark()
    made, thread, connection = watched(spark)
    made.end()
    thread.join(5)
    connection.close()
    assert (spark.cleaned, exits, thread.is_alive()) == (True, [], False)


def test_a_jvm_that_dies_by_itself_ends_the_worker(exits):
    """Nothing can be done without it: another worker has to come."""
    spark = EndingSpark()
    made, thread, connection = watched(spark)
    spark.dead.set()
    for _attempt in range(500):
        if exits:
            break
        threading.Event().wait(0.01)
    made._ending = True
    thread.join(5)
    connection.close()
    assert exits[0] == lake_worker.EXIT_LOST


def test_a_fetch_tells_the_megabytes():
    """The last one counts although it is not full."""
    steps = []
    fetch_steps(steps.append)(2_500_000, 2_500_001)
    assert steps == ["fetching Spark's jars, 2 of 3 MB"]


def test_settings_that_would_change_rows_are_named():
    """The user hears of those that stay as they are, and only of them."""
    given = {
        "spark.sql.session.timeZone": "Asia/Tokyo",
        "spark.sql.ansi.enabled": "TRUE",
        "spark.sql.shuffle.partitions": "7",
    }
    assert kept_conf(given) == {"spark.sql.session.timeZone": "UTC"}
