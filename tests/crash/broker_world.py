"""Clients of a broker in processes of their own, with commands to work, to drain, and a check."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections import defaultdict

import grpc

from frazil.serve.danube.proto import danube_admin_pb2 as admin
from tests.crash.broker_ledger import Follower, Ledger, is_refused
from tests.crash.broker_process import Peer, environment, wait_until

TOPIC = "/default/kills"
PRODUCERS = ("p1", "p2")
DEAD = "/default/kills-dead"
FIRST = (
    ("alone", "exclusive", "a1", ""),
    ("spread", "shared", "s1", ""),
    ("keys", "key_shared", "k1", ""),
    ("next", "failover", "f1", ""),
    ("letters", "shared", "l1", "refuses"),
    ("behind", "exclusive", "b1", "late"),
)
SECOND = (
    ("spread", "shared", "s2", ""),
    ("keys", "key_shared", "k2", ""),
    ("next", "failover", "f2", ""),
    ("letters", "shared", "l2", "refuses"),
)
DRAIN_S = 90.0


class Clients:
    """The processes of clients, and what their ledgers say so far."""

    def __init__(self, directory, url, *, admin_port, seed):
        self.directory = directory
        self.ledger = Ledger(directory, "world")
        self._follower = Follower(directory)
        self._workers = {}
        self._url, self._seed = url, seed
        self._admin_port = admin_port
        self.published, self.finished = set(), set()
        self.delivered = {name: {} for name, *_ in FIRST}
        self.acking, self.acked = defaultdict(set), defaultdict(set)
        self.unknown = defaultdict(set)
        self._lives = 0
        self.progress = 0

    def begin(self):
        """Start consumers, and producers when all have subscribed."""
        self._set_policy()
        self._add("first", consumers=FIRST)
        self._add("second", consumers=SECOND)
        self._add("producers", producers=PRODUCERS)

    def _set_policy(self):
        """Have what is refused twice go to the dead letters."""
        policy = admin.SubscriptionFailurePolicy(
            max_redelivery_count=1,
            base_redelivery_delay_ms=10,
            max_redelivery_delay_ms=10,
            poison_policy=admin.PoisonPolicy.DeadLetter,
            dead_letter_topic=DEAD,
        )
        with grpc.insecure_channel(f"127.0.0.1:{self._admin_port}") as channel:
            for method, request in (
                ("CreateTopic", admin.NewTopicRequest(name=TOPIC, dispatch_strategy=1)),
                (
                    "SetSubscriptionFailurePolicy",
                    admin.SetSubscriptionFailurePolicyRequest(
                        topic=TOPIC, subscription="letters", failure_policy=policy
                    ),
                ),
            ):
                call = channel.unary_unary(f"/danube_admin.TopicAdmin/{method}")
                call(request.SerializeToString(), timeout=60)

    def _add(self, name, *, producers=(), consumers=()):
        plan = {
            "url": self._url,
            "topic": TOPIC,
            "producers": producers,
            "consumers": consumers,
            "seed": f"{self._seed} {name}",
        }
        arguments = (str(self.directory), name, json.dumps(plan))
        self._workers[name] = Peer("tests.crash.broker_worker", *arguments)

    def replace(self):
        """Kill the second consumers, whatever they do; others of the same names come instead."""
        name = next(name for name in self._workers if name.startswith("second"))
        self._workers.pop(name).kill()
        self.look()
        for subscription, offsets in self.acking.items():
            # Whether these acks arrived is known to the broker alone.
            self.unknown[subscription] |= offsets - self.acked[subscription]
        self._lives += 1
        self.ledger.note("replaced", name)
        self._add(f"second-{self._lives}", consumers=SECOND)

    def look(self):
        """Take in what is new in the ledgers."""
        for _, kind, *facts in self._follower.events():
            if kind == "published":
                self.published.add(tuple(facts))
            elif kind == "finished":
                self.finished.add(facts[0])
            elif kind == "got":
                self.delivered[facts[0]][facts[2]] = tuple(facts[3])
            elif kind == "acking":
                self.acking[facts[0]].add(facts[1])
            elif kind == "acked":
                self.acked[facts[0]].add(facts[1])
                self.progress += 1
        for name, worker in self._workers.items():
            assert worker.process.poll() is None, f"{name} ended with {worker.process.poll()}"

    def wait_for_work(self):
        """Wait until records are published and acked that were not before."""
        self.look()
        published, progress = len(self.published), self.progress

        def moved():
            self.look()
            return len(self.published) > published and self.progress > progress

        wait_until(moved, what="traffic")

    def is_drained(self):
        """Whether every subscription has acked all that any has seen and all that was published."""
        self.look()
        offsets = set().union(*self.delivered.values())
        return self.finished == set(PRODUCERS) and all(
            offsets <= self.acked[name] | self.unknown[name] | self._refused(name)
            and self.published <= set(found.values())
            for name, found in self.delivered.items()
        )

    def _refused(self, name):
        """Return the offsets that a subscription's consumers never ack."""
        if name != "letters":
            return set()
        return {offset for offset, record in self.delivered[name].items() if is_refused(record[1])}

    def drain(self):
        """Let producers stop; wait until consumers have had everything, or will never have."""
        for worker in self._workers.values():
            worker.tell("drain")
        with contextlib.suppress(AssertionError):
            # The checker says better what is missing.
            wait_until(self.is_drained, seconds=DRAIN_S)
        self.close()

    def close(self):
        """End all clients."""
        while self._workers:
            self._workers.popitem()[1].close()


def checked(directory, data):
    """Return what the checker's process says about ledgers and topic."""
    run = subprocess.run(
        [sys.executable, "-m", "tests.crash.broker_checker", directory, data, TOPIC, DEAD],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)
