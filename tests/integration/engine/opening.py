"""Open an engine on real files with small numbers, so that little data reaches every limit."""

from __future__ import annotations

import time

import msgspec

from frazil.clock import SystemClock
from frazil.config import ProducerSettings, Settings, TopicSettings
from frazil.config.sections import DiskSettings, LogSettings, MemorySettings
from frazil.engine import Engine
from frazil.fs import RealFileSystem
from frazil.log import RANGE_GAP, Control, Pending
from frazil.log import format as fmt
from tests.support.log_limits import DEFAULTS, set_log_limits
from tests.support.tier_limits import set_tier_limits

LOG = {
    "segment_bytes_max": 256 << 10,
    "write_bytes_max": 64 << 10,
    "ballast_bytes": 0,
    "free_bytes_min": 0,
    "free_ratio_min": 0.0,
}
WAIT_S = 120
LOG_ALONE = {"enabled": False}
"""For `memory=`: neither memory nor files, the log keeps and serves everything itself."""


def small_settings(path, *, topics=None, producers=None, memory=None, disk=None, tiers=None, **log):
    """Return settings for a directory; `tiers` are constants of the tiers, `log` changes `LOG` and constants."""
    if tiers:
        set_tier_limits(**tiers)
    limits = {name: log.pop(name) for name in list(log) if name in DEFAULTS}
    set_log_limits(**{"prefill_bytes": 4096, **limits})
    return Settings(data_dir=str(path)).model_copy(
        update={
            "log": LogSettings(**{**LOG, **log}),
            "topics": TopicSettings(**(topics or {})),
            "producers": ProducerSettings(**(producers or {})),
            "memory": MemorySettings(**(memory or {})),
            "disk": DiskSettings(**(disk or {})),
        }
    )


def open_small(path, *, file_system=None, clock=None, **settings):
    """Open an engine with threads, as `frazil.open` does; see `small_settings`."""
    return Engine(
        small_settings(path, **settings),
        file_system=file_system or RealFileSystem(),
        clock=clock or SystemClock(),
    )


def wait_until(condition, what="it did not come to pass"):
    """Wait for a condition; machines of CI are slow."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def rows_of(topic, start="earliest", **options):
    """Read a topic as a list of records."""
    return [record for batch in topic.read(start, **options) for record in batch.records()]


def payloads_of(topic, start="earliest", **options):
    """Read a message topic as a list of payloads."""
    return [record["payload"] for record in rows_of(topic, start, **options)]


def column_of(topic, name, start="earliest", **options):
    """Read one column of a table topic."""
    return [record[name] for record in rows_of(topic, start, **options)]


def declare_gap(engine, name, end):
    """Let a topic's next record have the offset `end`; those before it have no records."""
    state = engine.topic(name).runtime.state
    payload = msgspec.msgpack.encode((end, RANGE_GAP, "declared by a test"))
    engine.log.control(Control(fmt.KIND_GAP, state.id, payload, offset=state.next))


def rotate(engine):
    """Start a new segment and seal the old one, as size or age would."""
    engine.log.queue.call(engine.log.journal.rotate)
    engine.upkeep.seal()


def apply(db, changes, waiter=None):
    """Write changes of the subscriptions of topic `t` as deliveries do; return their waiter."""
    waiter = waiter or Pending()
    db.cursors.submit(db.topic_runtime("t"), changes, waiter)
    return waiter
