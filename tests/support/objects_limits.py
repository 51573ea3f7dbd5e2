"""Constants of the objects tier made smaller for a test, so that it waits for nothing."""

from __future__ import annotations

from frazil.objects import backup, obstores, runtime, store

DEFAULTS = {
    (backup, "INTERVAL_S"): backup.INTERVAL_S,
    (obstores, "REQUEST_TIMEOUT_S"): obstores.REQUEST_TIMEOUT_S,
    (runtime, "ACK_TIMEOUT_S"): runtime.ACK_TIMEOUT_S,
    (runtime, "READ_TIMEOUT_S"): runtime.READ_TIMEOUT_S,
    (store, "RETRY_TIMEOUT_S"): store.RETRY_TIMEOUT_S,
}


def set_objects_limits(*, retry_s=None, ack_s=None, request_s=None, backup_s=None):
    """Set constants for engines that are opened from now on; others get their defaults."""
    for (module, name), default in DEFAULTS.items():
        setattr(module, name, default)
    if retry_s is not None:
        store.RETRY_TIMEOUT_S = retry_s
        runtime.READ_TIMEOUT_S = min(retry_s, runtime.READ_TIMEOUT_S)
    if ack_s is not None:
        runtime.ACK_TIMEOUT_S = ack_s
    if request_s is not None:
        obstores.REQUEST_TIMEOUT_S = request_s
    if backup_s is not None:
        backup.INTERVAL_S = backup_s
