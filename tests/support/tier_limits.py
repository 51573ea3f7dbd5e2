"""Constants of the tiers made smaller for a test, so that little data reaches every limit."""

from __future__ import annotations

from frazil.tiers import memory, pressure, retention, runtime
from frazil.tiers.disk.tier import DiskLimits
from frazil.topic import signals

DEFAULTS = {
    "index_share": runtime.INDEX_SHARE,
    "vectors_share": retention.VECTORS_SHARE,
    "merge_rows": memory.MERGE_ROWS,
    "rss_base_bytes": pressure.RSS_BASE_BYTES,
    "flush_changes": signals.FLUSH_CHANGES,
}


def set_tier_limits(**limits):
    """Set constants for engines that are opened from now on; others get their defaults.

    Args:
        limits: fields of `DiskLimits`, and the names of `DEFAULTS`.
    """
    shares = {name: limits.pop(name, default) for name, default in DEFAULTS.items()}
    runtime.DISK_LIMITS = DiskLimits(**limits)
    runtime.INDEX_SHARE = shares["index_share"]
    retention.VECTORS_SHARE = shares["vectors_share"]
    memory.MERGE_ROWS = shares["merge_rows"]
    pressure.RSS_BASE_BYTES = shares["rss_base_bytes"]
    signals.FLUSH_CHANGES = shares["flush_changes"]
