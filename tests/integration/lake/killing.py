"""Workers and programs that are frozen or killed, with their JVM, at a step of their commits."""

from __future__ import annotations

import contextlib
import os
import signal
import time

from frazil.lake import VARIABLE
from tests.integration.lake.test_worker import Engine, java_children
from tests.support.processes import is_alive, state_of, wait_gone

HALT_SECONDS = 300.0
GONE_SECONDS = 20.0


class Orders:
    """The file that tells workers at which step to halt; see `frazil.lake.worker_jobs`."""

    def __init__(self, path):
        self.path = path

    @property
    def environment(self):
        return {VARIABLE: str(self.path)}

    def give(self, step, action):
        # Whole or not at all: a worker may look at any moment.
        draft = self.path.with_suffix(".draft")
        draft.write_text(f"{step}:{action}")
        draft.rename(self.path)

    def wait_obeyed(self, pid):
        """Wait until the worker of that number has halted."""
        deadline = time.monotonic() + HALT_SECONDS
        while self.path.exists() or not is_halted(pid):
            assert time.monotonic() < deadline, self.path.read_text()
            time.sleep(0.02)


def is_halted(pid):
    """Tell whether a process is frozen or dead."""
    return state_of(pid) in "TZX"


def wake(pid):
    """Let a frozen worker and its JVM go on."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGCONT)


class Workers:
    """Real workers, one after the other: the next is started when it is needed.

    `address` returns the address of the catalog for each of them.
    """

    def __init__(self, world, directories, address, orders):
        self.world = world
        self.orders = orders
        self._directories = directories
        self._address = address
        self._engine = None
        self._group = []
        self.starts = 0

    @property
    def engine(self):
        """Return the engine's side of a worker that is ready."""
        if self._engine is None or not is_alive(self._engine.process.pid):
            self.end()
            world = _World(self._address)
            made = Engine(world, self._directories(), environment=self.orders.environment)
            self._engine = made
            self.starts += 1
            greeted = made.hear(made.hello())
            assert greeted.state == "done", greeted
            self._group = [made.process.pid, *java_children(made.process.pid)]
            assert greeted.body["java_pid"] in self._group
        return self._engine

    @property
    def pid(self):
        return self._engine.process.pid

    def kill(self):
        """Kill the worker and its JVM at once."""
        os.killpg(self.pid, signal.SIGKILL)

    def wait_dead(self):
        """Wait until the worker and its JVM are gone by themselves."""
        self._engine.process.wait(HALT_SECONDS)
        assert wait_gone(self._group, GONE_SECONDS)

    def end(self):
        if self._engine is not None:
            wake(self.pid)
            self._engine.end()
            self._engine = None


class _World:
    def __init__(self, address):
        self.address = address
