"""The engine equals a list: any calls, any crashes, any reads, against the model of the world."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.crash.engine_world import World

VERBS = (
    *("append", "append_many", "append_arrow", "produce", "hold", "alter"),
    *("create", "delete", "rotate", "seal", "free", "tick"),
)
COUNTS = st.integers(1, 12)


def offsets_of(batch):
    """The offsets of a batch, which is never empty."""
    assert batch.count > 0
    return range(batch.offset, batch.offset_next)


class EngineMachine(RuleBasedStateMachine):
    """Drives a world; the world's own checks compare every answer with the model."""

    @initialize(seed=st.integers(0, 1 << 32))
    def start(self, seed):
        self.random = Random(seed)
        self.world = World(self.random, seed)
        self.world.open()
        self.world.create(kind="message")
        self.world.create(kind="table")

    def model(self):
        return self.random.choice(list(self.world.models.values()))

    @rule(verb=st.sampled_from(VERBS))
    def act(self, verb):
        models = len(self.world.models)
        if (verb != "create" or models < 6) and (verb != "delete" or models > 3):
            self.world.act(verb)

    @rule(
        share=st.floats(0, 1),
        limit=st.none() | st.integers(1, 20),
        bytes_max=st.none() | st.integers(1, 4096),
    )
    def read(self, share, limit, bytes_max):
        """A read from any offset gives the model's rows, no more than asked for."""
        model = self.model()
        marks = self.world.topic(model).describe()["watermarks"]
        start = marks["start"] + round(share * (marks["head"] - marks["start"]))
        seen = self.world.read(model, start=start, limit=limit, bytes_max=bytes_max)
        assert limit is None or len(seen) <= limit
        wanted = [offset for offset in sorted(model.values) if offset >= start]
        assert seen == (wanted if limit is None else wanted[:limit])

    @rule(share=st.floats(0, 1), count=COUNTS, bytes_max=st.none() | st.integers(1, 4096))
    def read_while_appending(self, share, count, bytes_max):
        """A read gives what was there when it began; a tail that began then gives the rest, too."""
        model = self.model()
        topic = self.world.topic(model)
        self.world.sync()
        marks = topic.describe()["watermarks"]
        start = marks["start"] + round(share * (marks["head"] - marks["start"]))
        wanted = [offset for offset in sorted(model.values) if offset >= start]
        with (
            topic.read(start, bytes_max=bytes_max) as reader,
            topic.tail(start, bytes_max=bytes_max, timeout_s=0) as tail,
        ):
            self.world.append(model)
            self.world.append_many(model, count)
            self.world.free()
            self.world.sync()
            seen = [offset for batch in reader for offset in offsets_of(batch)]
            assert seen == wanted
            seen = [offset for batch in tail for offset in offsets_of(batch)]
            assert seen == [offset for offset in sorted(model.values) if offset >= start]

    @rule(below=st.integers(1, 5))
    def read_what_is_gone(self, below):
        """An offset below the start is refused, and the error names the first one."""
        model = self.model()
        start = self.world.topic(model).describe()["watermarks"]["start"]
        if start:
            self.world.check_offset_missing(model, max(0, start - below))

    @rule()
    def count(self):
        """The number of messages is the number of records that a read gives."""
        model = self.model()
        self.world.sync()
        marks = self.world.topic(model).describe()["watermarks"]
        known = [offset for offset in model.values if offset >= marks["start"]]
        assert self.world.topic(model).stats()["message_count"] == len(known)

    @rule()
    def reopen(self):
        self.world.reopen()

    @rule(end=st.sampled_from(["kill", "lose_power"]))
    def crash(self, end):
        getattr(self.world, end)()
        self.world.open()
        self.world.check()

    def teardown(self):
        if hasattr(self, "world"):
            self.world.reopen()
            self.world.close()


EngineMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=30, deadline=None)


# A failure is shrunk for up to five minutes: a time-out in the middle of that would hide what
# failed behind a complaint of hypothesis about a test that does not repeat itself.
@pytest.mark.timeout(600)
class TestEngine(EngineMachine.TestCase):
    """Whatever is called in whatever order, reads equal the model."""
