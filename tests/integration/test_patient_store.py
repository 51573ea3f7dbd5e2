"""A real S3 server dies, hangs and comes back under load: patience loses and doubles nothing."""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import threading
import time

import pytest

from frazil.errors import Conflict, Unavailable
from frazil.objects import RetryingStore, open_store
from tests.contract.object_stores import NO_MACHINE, server_of, settings_of
from tests.support.objects_limits import set_objects_limits

pytestmark = pytest.mark.integration

WRITERS = 4
OBJECTS = 40
TROUBLES = 2


@pytest.fixture(autouse=True)
def no_machine(monkeypatch):
    """Let no client ask this machine for credentials."""
    for name, value in NO_MACHINE.items():
        monkeypatch.setenv(name, value)


def body(key):
    return hashlib.sha256(key.encode()).digest() * 2_000


def write(store, key, deadline):
    """Put an object as an uploader does: what may be there is looked at before it is believed."""
    while True:
        try:
            store.put(key, body(key))
        except Conflict:
            assert store.head(key).size == len(body(key))
        except Unavailable:
            # The budget of further tries is used up: an uploader comes back later.
            assert time.monotonic() < deadline
            time.sleep(0.2)
            continue
        return


@pytest.mark.parametrize("trouble", ["killed", "paused"])
def test_writers_outlast_a_server_that_fails(tmp_path, trouble):
    """Every object is there once, with its bytes, after the server failed under its writers."""
    with server_of("seaweed", tmp_path / "server") as server:
        set_objects_limits(request_s=2)
        store = RetryingStore(open_store(settings_of(server.settings())))
        wrote = threading.Semaphore(0)

        deadline = time.monotonic() + 150

        def writer(number):
            for n in range(OBJECTS):
                write(store, f"w{number}/{n:03}", deadline)
                wrote.release()

        with contextlib.closing(store), concurrent.futures.ThreadPoolExecutor(WRITERS) as pool:
            running = [pool.submit(writer, number) for number in range(WRITERS)]
            for _ in range(TROUBLES):
                for _ in range(WRITERS * OBJECTS // (TROUBLES + 2)):
                    while not wrote.acquire(timeout=1):
                        failed = [each.exception() for each in running if each.done()]
                        assert not any(failed), failed
                if trouble == "killed":
                    server.restart()
                else:
                    server.pause()
                    concurrent.futures.wait(running, timeout=3)
                    server.resume()
            for each in running:
                each.result(timeout=170)
            keys = [f"w{number}/{n:03}" for number in range(WRITERS) for n in range(OBJECTS)]
            assert [meta.key for meta in store.list("")] == keys
            for key in keys:
                assert store.get(key, start=0, length=len(body(key))) == body(key)
            assert store.retries > 0
        assert server.starts == (1 + TROUBLES if trouble == "killed" else 1)
