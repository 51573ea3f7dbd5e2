"""Uploads keep their promises in random lives with faults and crashes, and find planted bugs.

`FRAZIL_TEST_UPLOAD_SEEDS` says how many lives are tried, `FRAZIL_TEST_UPLOAD_SEED_FIRST` where to begin.
"""

from __future__ import annotations

import os

import attrs
import pytest

from frazil.errors import Unavailable
from frazil.objects import ObjectCatalog, Uploader
from frazil.objects.descriptor import descriptor_of
from tests.property.upload_world import Logs, World, command, failure
from tests.unit.objects.objects_world import footer_of

SEEDS = int(os.environ.get("FRAZIL_TEST_UPLOAD_SEEDS", "1000"))
SEED_FIRST = int(os.environ.get("FRAZIL_TEST_UPLOAD_SEED_FIRST", "0"))
PARTS = 4
PLANTED_SEEDS_MAX = 300


@pytest.mark.parametrize("part", range(PARTS))
def test_random_lives_keep_every_promise(part):
    """Registered objects equal what was published, once each, and uploads come to an end."""
    lives = 0
    for seed in range(SEED_FIRST + part, SEED_FIRST + SEEDS, PARTS):
        world, error = failure(seed)
        if error is not None:
            print(*world.history[-40:], sep="\n")
        assert error is None, f"{error!r}; repeat with: {command(seed)}"
        lives += 1
    assert lives == len(range(part, SEEDS, PARTS))


def test_the_same_seed_is_the_same_life():
    """A seed repeats every step and every answer."""
    assert failure(5)[0].history == failure(5)[0].history


def test_the_lives_meet_every_fault_and_every_step():
    """All faults happen, and objects are uploaded and adopted under them."""
    fired, steps = set(), set()
    for seed in range(150):
        world, error = failure(seed)
        assert error is None
        fired |= set(world.store.fired)
        steps |= {line.strip() for line in world.history}
    assert fired >= {
        *("partial", "truncated", "error_in_200", "own_412", "conflict_409", "lost_answer"),
        *("throttled", "stall", "missing", "flipped", "short"),
    }
    moments = ("begun", "verified", "registered", "found", "commit done", "put done")
    moments = (*moments, "put_stream done", "put_stream sent")
    crashes = {line.removeprefix("crash at ") for line in steps if line.startswith("crash at ")}
    assert crashes >= set(moments)


# -- planted bugs: each of them breaks one promise, and the lives above must find it ---------------


class TrustingUploader(Uploader):
    """Registers what it built, without a look at the store."""

    def _write(self, key, head, rest):
        built = [bytes(piece) for piece in (*head, *(rest or ()))]
        super()._write(key, [built[0]], None if rest is None else iter(built[1:]))
        self.built = b"".join(built)

    def _register(self, topic_id, intent):
        found = descriptor_of(footer_of(self.built), key=intent.key, size=len(self.built), etag="")
        self._catalog.register(topic_id, found)


class RegistersBeforeVerifying(World):
    """The store's answer is enough: nothing is read back."""

    uploader_class = TrustingUploader


class TwiceCatalog(ObjectCatalog):
    """Does not look after an unknown outcome, and compares nothing."""

    def _send(self, transaction):
        return super()._send(attrs.evolve(transaction, compares=()))

    def _refresh(self, topic_id):
        self._stale.discard(topic_id)

    def _landed(self, transaction):
        del transaction
        return False


class RegistersTwice(World):
    """A registration whose answer was lost is done again."""

    catalog_class = TwiceCatalog


class CheckpointFirstCatalog(ObjectCatalog):
    """Moves `uploaded` in a transaction of its own, before the descriptor is there."""

    def _commit(self, topic, state, *, add=(), **more):
        if add:
            super()._commit(topic, state, **more)
        super()._commit(topic, state, add=add, **more)


class MovesTheCheckpointFirst(World):
    """A crash between checkpoint and descriptor leaves a hole."""

    catalog_class = CheckpointFirstCatalog


class DeletingUploader(Uploader):
    """Tidies up after a registration that failed."""

    def _upload_next(self, topic_id):
        before = set(self._store.objects)
        try:
            return super()._upload_next(topic_id)
        except Unavailable as error:
            if error.details.get("outcome") == "unknown":
                self._store.delete(sorted(set(self._store.objects) - before))
            raise


class DeletesOnUnknown(World):
    """An object whose registration may have happened is deleted."""

    uploader_class = DeletingUploader

    def trouble(self, *, on):
        super().trouble(on=on)
        self.metadata.rate *= 2


class ForgetfulUploader(Uploader):
    """Does not look for what an earlier life has written."""

    def _adopt(self, topic_id):
        del topic_id
        return False


class IgnoresIntents(World):
    """After a crash everything is written again."""

    uploader_class = ForgetfulUploader


class EagerLogs(Logs):
    """Gives frames that are not durable yet."""

    def available(self, topic_id):
        return self.logs[topic_id].start, self.logs[topic_id].next


class UploadsBeyondDurable(World):
    """What a crash takes back was uploaded."""

    source_class = EagerLogs


class FenceCatalog(ObjectCatalog):
    """Registers without its owner's lease."""

    def _send(self, transaction):
        return super()._send(attrs.evolve(transaction, requires=None))


class IgnoresTheLease(World):
    """A broker of the past goes on registering."""

    catalog_class = FenceCatalog


class StaleCatalog(ObjectCatalog):
    """Builds on the picture though the outcome of a change is unknown."""

    def fresh(self, topic_id):
        return self.topic(topic_id)

    def begin(self, topic_id, intent):
        super().fresh(topic_id)
        self._change_intent(self.topic(topic_id), intent, why="begun anew")


class StaleUploader(Uploader):
    """Does not look for its last object either while the outcome is unknown."""

    def _adopt(self, topic_id):
        return not self._catalog.suspect and super()._adopt(topic_id)


class BuildsOnTheUnknown(World):
    """A topic whose rows must be read again is uploaded from where it was."""

    catalog_class = StaleCatalog
    uploader_class = StaleUploader

    def trouble(self, *, on):
        super().trouble(on=on)
        self.metadata.rate *= 3


PLANTED = (
    RegistersBeforeVerifying,
    RegistersTwice,
    MovesTheCheckpointFirst,
    DeletesOnUnknown,
    IgnoresIntents,
    UploadsBeyondDurable,
    IgnoresTheLease,
    BuildsOnTheUnknown,
)


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.__name__)
def test_a_planted_bug_is_found(planted):
    """The lives find each of these bugs within a few hundred seeds."""
    for seed in range(PLANTED_SEEDS_MAX):
        _world, error = failure(seed, planted)
        if error is not None:
            return
    pytest.fail(f"{planted.__name__} is not found in {PLANTED_SEEDS_MAX} lives")
