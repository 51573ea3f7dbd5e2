"""What each key of Danube's storage sections becomes: a setting, several, or a reason why not.

Targets are named as Frazil calls them; whether such a setting exists yet is found out later. Keys
of `cloud` depend on the backend, because each kind of store has settings of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from frazil.errors import InvalidRequest

__all__ = ["CLOUD", "DROPPED", "ICEBERG", "RULES", "WAL_CLOUD", "Rule", "rule_of"]

WAL_CLOUD: Final = "wal_cloud"
ICEBERG: Final = "storage.iceberg_config"
CLOUD: Final = f"{WAL_CLOUD}.cloud"

Convert = Callable[[object], Mapping[str, object]]


_LEAST: Final = 1e-9
"""A nanosecond: what is less would become a text of hundreds of zeros, or 0, which may differ."""


class Rule(NamedTuple):
    """Turns the value of one key into settings by their names."""

    target: str
    """The setting that the key is about, for reports."""
    convert: Convert


def _same(target: str, *also: tuple[str, object]) -> Rule:
    return Rule(target, lambda value: {target: value, **dict(also)})


def _times(target: str, factor: float, *also: tuple[str, object]) -> Rule:
    def convert(value: object) -> Mapping[str, object]:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidRequest("is not a number that could be converted, set it by hand")
        if 0 < value * factor < _LEAST:
            raise InvalidRequest("is too small a number, set it by hand")
        return {target: value * factor, **dict(also)}

    return Rule(target, convert)


def _not(target: str) -> Rule:
    return Rule(target, lambda value: {target: not value if isinstance(value, bool) else value})


def _endpoint(section: str) -> Rule:
    """Take a server's URL; one without TLS is allowed, because it was used before."""

    def convert(value: object) -> Mapping[str, object]:
        plain = isinstance(value, str) and value.lower().startswith("http://")
        more = {f"{section}.allow_http": True} if plain else {}
        return {f"{section}.endpoint": value, **more}

    return Rule(f"{section}.endpoint", convert)


def _etcd(value: object) -> Mapping[str, object]:
    """Take the server, and a prefix: under its own keys Danube may still have metadata there."""
    bare = isinstance(value, str) and "://" not in value and not value.startswith("${")
    return {
        "metadata.backend": "etcd",
        "metadata.etcd.endpoints": f"http://{value}" if bare else value,
        "metadata.etcd.prefix": "/frazil",
    }


def _in_memory(value: object) -> Mapping[str, object]:
    return {"metadata.backend": "memory"} if value is True else {}


_SYNC_MODES: Final = {
    **dict.fromkeys(("always", "immediate", "every_write", "commit"), "commit"),
    **dict.fromkeys(("periodic", "interval", "batch"), "periodic"),
    **dict.fromkeys(("none", "never", "off"), "none"),
}


def _sync_mode(value: object) -> Mapping[str, object]:
    return {"log.sync": _SYNC_MODES.get(str(value).lower(), value)}


_MIB: Final = 1 << 20
_PERIODIC: Final = ("log.sync", "periodic")

_WAL_CLOUD: Final = {
    "wal.dir": _same("data_dir"),
    "wal.file_sync.interval_ms": _times("log.sync_interval_s", 0.001, _PERIODIC),
    "wal.file_sync.max_batch_bytes": _same("log.sync_bytes_max", _PERIODIC),
    "wal.rotation.max_bytes": _same("log.segment_bytes_max"),
    "wal.rotation.max_hours": _times("log.segment_age_max_s", 3600),
    "wal.retention.time_minutes": _times("log.retention_age_s", 60),
    "wal.retention.size_mb": _times("log.retention_bytes", _MIB),
    "wal.retention.check_interval_minutes": _times("log.retention_check_s", 60),
    "uploader.enabled": _same("objects.default"),
    "uploader.interval_seconds": _times("objects.interval_s", 1),
    "uploader.max_object_mb": _times("objects.object_bytes_max", _MIB),
    "cloud.backend": _same("objects.store"),
    "cloud.root": _same("objects.root"),
    "metadata.etcd_endpoint": Rule("metadata.etcd.endpoints", _etcd),
    "metadata.in_memory": Rule("metadata.backend", _in_memory),
}

_BY_BACKEND: Final[Mapping[str, Mapping[str, Rule]]] = {
    "s3": {
        "region": _same("objects.region"),
        "endpoint": _endpoint("objects"),
        "access_key": _same("objects.access_key"),
        "secret_key": _same("objects.secret_key"),
        "profile": _same("objects.profile"),
        "role_arn": _same("objects.role_arn"),
        "session_token": _same("objects.session_token"),
        "anonymous": _same("objects.anonymous"),
        "virtual_host_style": _not("objects.path_style"),
    },
    "gcs": {
        "credentials_json": _same("objects.credentials"),
        "credentials_path": _same("objects.credentials"),
        "endpoint": _endpoint("objects"),
        "anonymous": _same("objects.anonymous"),
    },
    "azblob": {
        "account_name": _same("objects.account_name"),
        "account_key": _same("objects.account_key"),
        "endpoint": _endpoint("objects"),
    },
    "fs": {},
    "memory": {},
}

_ICEBERG: Final = {
    "catalog.type": _same("lake.catalog.kind"),
    "catalog.uri": _same("lake.catalog.uri"),
    "catalog.warehouse": _same("lake.warehouse"),
    "object_store.type": _same("lake.object_store.type"),
    "object_store.bucket": _same("lake.object_store.bucket"),
    "object_store.region": _same("lake.object_store.region"),
    "object_store.endpoint": _same("lake.object_store.endpoint"),
    "object_store.access_key": _same("lake.object_store.access_key"),
    "object_store.secret_key": _same("lake.object_store.secret_key"),
    "wal.base_path": _same("data_dir"),
    "wal.max_file_size": _same("log.segment_bytes_max"),
    "wal.sync_mode": Rule("log.sync", _sync_mode),
    "writer.batch_size": _same("lake.writer.batch_size"),
    "writer.flush_interval_ms": _times("lake.writer.flush_interval", 0.001),
    "writer.max_memory_bytes": _same("lake.writer.max_memory_bytes"),
}


def _namespaces(value: object) -> Mapping[str, object]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise InvalidRequest("is not a list of names, set it by hand")
    return {"serve.bootstrap_namespaces": ",".join(value)}


RULES: Final[Mapping[str, Rule]] = {
    **{f"{WAL_CLOUD}.{key}": rule for key, rule in _WAL_CLOUD.items()},
    **{f"{ICEBERG}.{key}": rule for key, rule in _ICEBERG.items()},
    "bootstrap_namespaces": Rule("serve.bootstrap_namespaces", _namespaces),
    "storage.type": Rule(
        "lake.default", lambda value: {"lake.default": True} if value == "iceberg" else {}
    ),
}
"""The keys that become settings, whatever else the file says."""

DROPPED: Final[Mapping[str, str]] = {
    f"{WAL_CLOUD}.wal.file_name": "segments of the log are named by their numbers",
    f"{WAL_CLOUD}.wal.cache_capacity": (
        "counts messages of each topic; memory.budget_bytes bounds the bytes of all topics"
    ),
    f"{WAL_CLOUD}.cloud.project": "a bucket is found without its project",
    f"{WAL_CLOUD}.uploader.root_prefix": (
        "where Danube's metadata lies; objects lie under objects.root, metadata in etcd under "
        "metadata.etcd.prefix"
    ),
    f"{ICEBERG}.reader.poll_interval_ms": "readers are told of new records, nothing is polled",
    f"{ICEBERG}.reader.max_concurrent_reads": ("requests to a store are bounded together, at 16"),
    f"{ICEBERG}.reader.prefetch_size": (
        "counts files; reads ahead are bounded in bytes, at 16 MiB"
    ),
}
"""The keys that nothing in Frazil is like, with the reason."""


def rule_of(key: str, *, backend: str) -> Rule | str:
    """Return what becomes of a key, or the reason why nothing does."""
    if key in RULES:
        return RULES[key]
    if key in DROPPED:
        return DROPPED[key]
    name = key.removeprefix(f"{CLOUD}.")
    if name != key:
        rule = _BY_BACKEND.get(backend, {}).get(name)
        if rule is not None:
            return rule
        if any(name in rules for rules in _BY_BACKEND.values()):
            return f"is not a setting of the store {backend or 'that is not named'}"
    if key.startswith((f"{WAL_CLOUD}.", "storage.")):
        return "is not known, perhaps it is misspelt"
    return "is not about storage; docs/broker.md says how a broker is set up"
