"""Constants of the log and of upkeep made smaller for a test, so that little reaches every limit."""

from __future__ import annotations

from frazil.engine import upkeep
from frazil.log import committer, journal
from frazil.metadata import etcd_rpc, sqlite
from frazil.topic import reading, runtime

CONSTANTS = {
    "prefill_bytes": (journal, "PREFILL_BYTES"),
    "marker_delay_s": (journal, "MARKER_DELAY_S"),
    "open_files_max": (journal, "OPEN_FILES_MAX"),
    "segment_age_max_s": (journal, "SEGMENT_AGE_MAX_S"),
    "queue_records_max": (committer, "QUEUE_RECORDS_MAX"),
    "queue_wait_s": (committer, "QUEUE_WAIT_S"),
    "rows_arrow_min": (runtime, "ROWS_ARROW_MIN"),
    "read_bytes": (reading, "READ_BYTES"),
    "free_check_s": (upkeep, "FREE_CHECK_S"),
    "retention_check_s": (upkeep, "RETENTION_CHECK_S"),
    "check_at_open": (sqlite, "CHECK_AT_OPEN"),
    "etcd_timeout_s": (etcd_rpc, "TIMEOUT_S"),
}
DEFAULTS = {name: getattr(*place) for name, place in CONSTANTS.items()}


def set_log_limits(**limits: object) -> None:
    """Set constants, by the keys of `CONSTANTS`; those that are not named get their defaults."""
    for name, value in {**DEFAULTS, **limits}.items():
        setattr(*CONSTANTS[name], value)
