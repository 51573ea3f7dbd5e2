"""Repeat one seed of the simulated crashes and show what happens: `--seed N [--trace]`."""

from __future__ import annotations

import argparse

from tests.crash.simulation import Simulation
from tests.crash.workload import Waiter, Work
from tests.support import SimulatedCrash


class TracedWork(Work):
    """Prints every commit and every answer."""

    def commit(self, entries):
        for entry in entries:
            waiter: Waiter = entry[5]
            topic = entry[0].id if entry[0] is not None else entry[2]
            first = [payload[:16] for payload in waiter.payloads]
            print(f"    submit {waiter.kind} topic={topic} {first} {entry[6] or ''}")
        super().commit(entries)

    def deliver(self, waiters, results):
        for waiter, result in zip(waiters, results, strict=True):
            print(f"    answer {waiter.kind} {[p[:16] for p in waiter.payloads]}: {result!r}")
        super().deliver(waiters, results)

    def step(self):
        super().step()
        heads = {t.id: (t.start, t.durable, t.next) for t in self.journal.state.topics.values()}
        print(f"  segment={self.journal.active.id} lsn={self.journal.state.lsn} {heads}")


class TracedSimulation(Simulation):
    """Prints every life and every sync point."""

    def __init__(self, seed):
        super().__init__(seed)
        self.work.__class__ = TracedWork
        self.inner = None

    def open(self):
        print(f"open crash_at={self.disk.crash_at} cache_lives={self.cache_lives}")
        if self.disk.on_sync != self.printed:
            self.inner, self.disk.on_sync = self.disk.on_sync, self.printed
        super().open()

    def printed(self, event):
        print(f"    {event}")
        if self.inner is not None:
            self.inner(event)

    def check(self, *, damaged=False):
        print(f"  recovered: {self.work.journal.report}")
        super().check(damaged=damaged)

    def crash(self):
        lives = self.cache_lives
        super().crash()
        print("killed" if self.cache_lives or not lives else "power lost")
        for path in self.disk.paths():
            print(f"    {path} {len(self.disk.read_bytes(path))}")


def main():
    """Run it; a broken promise ends with its traceback."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--trace", action="store_true")
    arguments = parser.parse_args()
    kind = TracedSimulation if arguments.trace else Simulation
    simulation = kind(arguments.seed)
    try:
        simulation.run()
    except SimulatedCrash as crash:
        raise AssertionError("a crash came out of the last life") from crash
    print(
        f"seed {arguments.seed}: {simulation.crashes} crashes, {simulation.recoveries} recoveries"
    )


if __name__ == "__main__":
    main()
