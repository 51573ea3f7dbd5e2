"""What files are kept for, and where the rows lay that changes superseded."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.integration.engine.opening import open_small


@pytest.mark.parametrize(("small", "kind"), [(1, "staging"), (1 << 20, "compaction")])
def test_a_file_is_described_by_the_purpose_that_its_bytes_count_for(tmp_path, small, kind):
    """The bytes by purpose of all files are those that the engine's stats tell."""
    with open_small(tmp_path, tiers={"small_file_bytes": small}) as engine:
        # Nobody joins the files meanwhile.
        engine.tiers.stop()
        topic = engine.create_topic("t", {"id": "long", "v": "long"}, primary_key="id")
        for turn in range(3):
            topic.append_many([{"id": turn // 2 * 100 + number, "v": 1} for number in range(50)])
            engine.tiers.flush()
        engine.tiers.disk.set_committed(topic.runtime.state.id, 50)
        files = engine.tiers.describe_files("t")
        assert [file["purpose"] for file in files] == ["query_cache", kind, kind]
        totals = Counter()
        for file in files:
            totals[file["purpose"]] += file["bytes"]
        purposes = engine.stats()["tiers"]["disk"]["purposes"]
        assert {name: size for name, size in purposes.items() if size} == dict(totals)


def test_the_routes_of_changes_have_one_for_each_tier(engine):
    """Changes are counted by where their base lay; none waits for a base in Iceberg."""
    topic = engine.create_topic("t", {"id": "long"}, primary_key="id")
    topic.append(id=1)
    topic.append(id=1)
    engine.tiers.flush()
    topic.append(id=1)
    # A scan folds what was written; a look-up leaves that to the thread that folds.
    assert engine.query("SELECT count(*) FROM t").rows() == [(1,)]
    routes = engine.topic_stats("t")["tiers"]["routes"]
    assert routes == {"new": 1, "memory": 1, "delta": 1, "queued": 0}
