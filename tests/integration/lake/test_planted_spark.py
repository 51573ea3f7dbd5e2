"""Bugs planted into commits by real Spark are found; without them the same scenes are good."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from frazil.errors import CommitUnknown, CorruptionError
from frazil.lake.commit import CommitAttempt, commit
from frazil.lake.connection import connect
from frazil.lake.spark_table import SparkTables
from frazil.lake.worker_spark import Spark
from tests.crash.lake_plants import marker_only_in_the_summary, no_fence
from tests.integration.lake.catalog_proxy import CatalogProxy
from tests.integration.lake.spark_engine import session_at
from tests.integration.lake.spark_world import MARKS
from tests.integration.lake.test_kills_spark import EXHAUSTIVE, Story

pytestmark = MARKS


class Scene:
    """A topic whose commits go through a proxy."""

    def __init__(self, world, proxy):
        self.story = Story(world)
        self.proxy = proxy
        session = session_at(world, proxy.address)
        settings = world.spark.settings
        self.spark = Spark.of_session(session, settings, connect(proxy.address), "")
        self.commit()

    @property
    def name(self):
        return self.story.topic.table.name

    def commit(self, plan=None, *, progress=lambda _step: None, **options):
        topic = self.story.topic
        request = topic.request(plan or self.story.next_plan(), **options)
        tables, stages = self.spark.tables, self.spark.stages
        done = commit(tables, stages, request, pause=time.sleep, progress=progress)
        assert done.state in {"committed", "already"}, done
        topic.ends |= done.ends


# -- what happens; nothing of it does harm to the honest protocol --


def another_commits_meanwhile(scene):
    """Another worker commits the same plan while this one is about to."""
    plan = scene.story.next_plan()
    begun = []

    def progress(step):
        if step == "committing" and not begun:
            begun.append(step)
            scene.commit(plan)

    scene.commit(plan, progress=progress)
    assert begun == ["committing"]


def the_answer_is_lost(scene):
    scene.proxy.arm(scene.name, "drop_reply")
    scene.commit()
    assert scene.proxy.armed == 0


def the_second_write_is_lost(scene):
    """Of a commit that writes twice only the first arrives; one that writes once meets nothing."""
    scene.proxy.arm(scene.name, "pass", "drop_request")
    scene.commit()
    scene.proxy.arm(scene.name)


def the_rejects_are_lost(scene):
    scene.proxy.arm(f"{scene.name}__rejects", "drop_request")
    scene.commit()
    assert scene.proxy.armed == 0


def others_expire_all(scene):
    """Others compact and expire; then the last plan runs again, and nothing is remembered."""
    plan = scene.story.plans[-1]
    name = f"{scene.story.topic.table.namespace}.{scene.name}"
    for text in (
        f"rewrite_data_files(table => '{name}', options => map('rewrite-all', 'true'))",
        f"expire_snapshots(table => '{name}', older_than => TIMESTAMP '2999-01-01', retain_last => 1)",
    ):
        scene.story.topic.foreign(f"CALL frazil.system.{text}")
    scene.commit(plan, remembered={})


# -- the bugs --


def cleaned_up_after_an_unknown_outcome(patch):
    """The newest data files are removed when a write had no answer."""
    honest = SparkTables.cas_append

    def cas_append(self, table, rows, *, sid, summary):
        place = Path(self._catalog.load_table(tuple(table)).location().removeprefix("file://"))
        before = set(place.rglob("*.parquet"))
        try:
            return honest(self, table, rows, sid=sid, summary=summary)
        except CommitUnknown:
            for path in set(place.rglob("*.parquet")) - before:
                path.unlink()
            raise

    patch.setattr(SparkTables, "cas_append", cas_append)


def watermark_moved_before_the_commit(patch):
    """A snapshot with the new watermark comes first, the rows with the next."""
    honest = CommitAttempt._append

    def append(self, table, rows, sid, summary):
        sid = honest(self, table, rows.limit(0), sid, summary)
        return None if sid is None else honest(self, table, rows, sid, summary)

    patch.setattr(CommitAttempt, "_append", append)


def rejects_after_main(patch):
    """The rows are committed first, their rejects behind them."""
    honest_main, honest_rejects = CommitAttempt._commit_main, CommitAttempt._commit_rejects

    def main(self, view, decision, verdict):
        result = honest_main(self, view, decision, verdict)
        if result is not None and honest_rejects(self, decision, verdict) is not True:
            return None
        return result

    patch.setattr(CommitAttempt, "_commit_rejects", lambda *_: True)
    patch.setattr(CommitAttempt, "_commit_main", main)


PLANTS = {
    no_fence: (another_commits_meanwhile, {"doubled"}),
    cleaned_up_after_an_unknown_outcome: (the_answer_is_lost, CorruptionError),
    watermark_moved_before_the_commit: (the_second_write_is_lost, {"missing"}),
    rejects_after_main: (the_rejects_are_lost, {"missing"}),
    marker_only_in_the_summary: (others_expire_all, {"doubled"}),
}


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_a_planted_bug_is_found(world, monkeypatch, plant):
    """What is harmless to the honest protocol does damage, and `verify` names it."""
    happens, kinds = PLANTS[plant]
    proxy = CatalogProxy(world.address)
    try:
        if EXHAUSTIVE:
            # Else the tests of kills, lost answers and others' upkeep have to do for it.
            honest = Scene(world, proxy)
            happens(honest)
            honest.story.check()
        plant(monkeypatch)
        broken = Scene(world, proxy)
        happens(broken)
        if kinds is CorruptionError:
            with pytest.raises(CorruptionError, match="gone"):
                broken.story.verify()
            return
        found = broken.story.verify()
        assert kinds <= {each.kind for each in found.problems}, found.lines
        assert found.exit_code == 8
    finally:
        proxy.close()
