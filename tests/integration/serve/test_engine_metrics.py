"""Metrics of a real engine: every layer is there, and nothing that users wrote."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

import frazil
from frazil.lake import COUNTS
from frazil.serve.grpc.calls import Counters
from frazil.serve.metrics import METRICS, metrics_text, port_facts

MARK = "xyzzymark"
TOTALS = {
    **dict.fromkeys(COUNTS, 3),
    "lag_records": 1,
    "lag_bytes": 2,
    "lag_seconds": 0.5,
    "commit_seconds": {"count": 1, "p50": 0.1, "p99": 0.2, "max": 0.3},
    "states": {"running": 1},
}
SUBSCRIPTIONS = {
    "types": {"shared": 1},
    **dict.fromkeys(
        (
            *("producers", "consumers", "unacked", "lag_records", "paused", "delivered"),
            *("redelivered", "acked", "nacked", "dead_letters", "decoded", "unacked_bytes"),
            *("damaged", "cache_bytes", "dropped", "missed", "unreliable_delivered"),
            *("unreliable_dropped", "unreliable_unheard", "unreliable_queued_bytes"),
        ),
        1,
    ),
}
SCHEMAS = dict.fromkeys(
    (
        *("subjects", "versions", "topics", "stored_bytes", "checked_total", "warned_total"),
        *("refused_total", "waiting_records", "waiting_bytes"),
    ),
    1,
)


def parsed(text):
    """Return {name: [(labels, value)]} as Prometheus reads the text."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_every_metric_has_a_value_and_none_has_what_users_wrote(tmp_path):
    """All declared metrics appear; topics, keys, attributes, payloads and paths do not."""
    root = tmp_path / f"dir-{MARK}"
    store = {"store": "memory", "root": MARK, "interval_s": 3600}
    with frazil.open(root, **{f"objects.{name}": each for name, each in store.items()}) as db:
        topic = db.create_topic(f"topic-{MARK}")
        topic.append(b"uploaded")
        db.objects.flush()
        for number in range(49):
            topic.append(
                f"payload-{MARK}".encode(), key=f"key-{MARK}", attributes={MARK: f"{number}"}
            )
        db.tiers.flush()
        db.query("SELECT 1").rows()
        stats = db.stats()
        records = 50
        while not stats["objects"]["totals"]["lag_records"]:
            # The upload that was asked for may have taken what came behind it as well.
            topic.append(b"behind")
            records += 1
            stats = db.stats()
    assert MARK in str(stats)
    stats["lake"] = {"state": "running", "worker": {"starts": 1}, "totals": TOTALS}
    stats["tiers"]["signals_fired"] = {"age": 4}
    text = metrics_text(
        {
            "engine": stats,
            "ports": {"data": port_facts(Counters()), "admin": port_facts(Counters())},
            "guard": {"unauthenticated": 1, "denied": 2, "limited": 3, "clients": 4},
            "process": {"cpu_s": 1.5, "resident_bytes_max": 1 << 20, "uptime_s": 2.0},
            "http": {"requests": 1, "refusals": 2, "cut_off": 3},
            "subscriptions": SUBSCRIPTIONS,
            "schemas": SCHEMAS,
        }
    )
    found = parsed(text)
    assert set(found) == {metric.name for metric in METRICS}
    assert MARK not in text
    assert found["frazil_records"] == [({}, float(records))]
    assert found["frazil_topics"] == [({}, 1.0)]
    assert found["frazil_memory_flushes"] == [({}, 1.0)]
    lag = stats["objects"]["totals"]["lag_records"]
    assert 0 < lag < records
    assert found["frazil_objects_lag_records"] == [({}, float(lag))]
    assert found["frazil_objects_topics"] == [({"state": "running"}, 1.0)]
    assert found["frazil_health"][0] == ({"state": "ok"}, 1.0)
    latencies = stats["latencies"]
    for name, place, quantile in (("log_ack", "ack", "p50"), ("query", "query", "p99")):
        seconds = found[f"frazil_{name}_seconds"][quantile == "p99"][1]
        assert 0 < seconds == pytest.approx(latencies[place][f"{quantile}_us"] / 1e6)
    assert found["frazil_signals_total"] == [({"signal": "age"}, 4.0)]


def test_the_page_stays_small_with_many_topics(tmp_path):
    """A hundred topics make no line more than one topic does."""
    with frazil.open(tmp_path) as db:
        db.create_topic("t")
        few = metrics_text({"engine": db.stats()}).splitlines()
        for number in range(100):
            db.create_topic(f"t{number}")
        many = metrics_text({"engine": db.stats()}).splitlines()
    assert len(many) == len(few)
