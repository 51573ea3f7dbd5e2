"""Converts Danube's broker file into settings of Frazil, with a report of every key.

A key is mapped, or dropped with the reason. References to the environment stay references. Frazil
always accepts the result: a refused value becomes a comment with the reason.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

import yaml

from frazil.config.settings import describe, load_settings
from frazil.config.sources import SCALAR_ERRORS
from frazil.config.values import references
from frazil.errors import InvalidRequest

__all__ = [
    "CLOUD",
    "DROPPED",
    "ICEBERG",
    "RULES",
    "WAL_CLOUD",
    "Imported",
    "Left",
    "Mapped",
    "Rule",
    "import_danube",
    "read_documents",
    "rule_of",
]

WAL_CLOUD: Final = "wal_cloud"
ICEBERG: Final = "storage.iceberg_config"
CLOUD: Final = f"{WAL_CLOUD}.cloud"

Convert = Callable[[object], Mapping[str, object]]


class Rule(NamedTuple):
    """Converts the value of one key into settings by name."""

    target: str
    """The setting that the key corresponds to, for reports."""
    convert: Convert


def _same(target: str, *also: tuple[str, object]) -> Rule:
    return Rule(target, lambda value: {target: value, **dict(also)})


def _times(target: str, factor: float, *also: tuple[str, object]) -> Rule:
    def convert(value: object) -> Mapping[str, object]:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidRequest("is not a number that could be converted, set it by hand")
        return {target: value * factor, **dict(also)}

    return Rule(target, convert)


def _not(target: str) -> Rule:
    return Rule(target, lambda value: {target: not value if isinstance(value, bool) else value})


def _endpoint(section: str) -> Rule:
    """Convert a server's URL; one without TLS is allowed, because it was used before."""

    def convert(value: object) -> Mapping[str, object]:
        plain = isinstance(value, str) and value.lower().startswith("http://")
        more = {f"{section}.allow_http": True} if plain else {}
        return {f"{section}.endpoint": value, **more}

    return Rule(f"{section}.endpoint", convert)


def _etcd(value: object) -> Mapping[str, object]:
    """Convert the server, and add a prefix: Danube may still have metadata under its own keys."""
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
    **dict.fromkeys(("periodic", "interval", "batch", "none", "never", "off"), "periodic"),
}


def _sync_mode(value: object) -> Mapping[str, object]:
    return {"log.sync": _SYNC_MODES.get(str(value).lower(), value)}


_MIB: Final = 1 << 20
_PERIODIC: Final = ("log.sync", "periodic")

_WAL_CLOUD: Final = {
    "wal.dir": _same("data_dir"),
    "wal.file_sync.interval_ms": _times("log.sync_interval_s", 0.001, _PERIODIC),
    "wal.rotation.max_bytes": _same("log.segment_bytes_max"),
    "wal.retention.time_minutes": _times("log.retention_age_s", 60),
    "wal.retention.size_mb": _times("log.retention_bytes", _MIB),
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
        "virtual_host_style": _not("objects.path_style"),
    },
    "gcs": {
        "credentials_json": _same("objects.credentials"),
        "credentials_path": _same("objects.credentials"),
        "endpoint": _endpoint("objects"),
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
    "catalog.warehouse": _same("lake.warehouse"),
    "wal.base_path": _same("data_dir"),
    "wal.max_file_size": _same("log.segment_bytes_max"),
    "wal.sync_mode": Rule("log.sync", _sync_mode),
    "writer.flush_interval_ms": _times("lake.writer.flush_interval", 0.001),
}


RULES: Final[Mapping[str, Rule]] = {
    **{f"{WAL_CLOUD}.{key}": rule for key, rule in _WAL_CLOUD.items()},
    **{f"{ICEBERG}.{key}": rule for key, rule in _ICEBERG.items()},
    "storage.type": Rule(
        "lake.default", lambda value: {"lake.default": True} if value == "iceberg" else {}
    ),
}
"""The keys that become settings, whatever the rest of the file says."""

DROPPED: Final[Mapping[str, str]] = {
    "bootstrap_namespaces": (
        "namespaces are made with CreateNamespace; default and system are always there"
    ),
    f"{WAL_CLOUD}.wal.file_name": "segments of the log are named by their numbers",
    f"{WAL_CLOUD}.wal.cache_capacity": (
        "counts messages of each topic; memory.budget_bytes bounds the bytes of all topics"
    ),
    f"{WAL_CLOUD}.wal.file_sync.max_batch_bytes": (
        "the periodic mode also syncs after each 10 MB that were written"
    ),
    f"{WAL_CLOUD}.wal.rotation.max_hours": "a segment of the log is rotated after an hour",
    f"{WAL_CLOUD}.wal.retention.check_interval_minutes": "retention is checked once a minute",
    f"{WAL_CLOUD}.cloud.project": "a bucket is found without its project",
    f"{WAL_CLOUD}.cloud.role_arn": "a profile of AWS's files may name a role: objects.profile",
    f"{WAL_CLOUD}.cloud.session_token": (
        "temporary keys end soon; with their token they come from the environment or a profile"
    ),
    f"{WAL_CLOUD}.cloud.anonymous": (
        "requests are signed; objects.credentials none leaves those to Google's store unsigned"
    ),
    f"{WAL_CLOUD}.uploader.root_prefix": (
        "the root of Danube's metadata; objects are under objects.root, metadata in etcd under "
        "metadata.etcd.prefix"
    ),
    f"{ICEBERG}.catalog.type": "Frazil has an embedded catalog",
    f"{ICEBERG}.catalog.uri": "Frazil has an embedded catalog",
    **{
        f"{ICEBERG}.object_store.{name}": "tables are in the directory lake.warehouse"
        for name in ("type", "bucket", "region", "endpoint", "access_key", "secret_key")
    },
    f"{ICEBERG}.writer.batch_size": "Spark reads 10,000 rows at a time",
    f"{ICEBERG}.writer.max_memory_bytes": "writers take a quarter of lake.worker.heap_bytes",
    f"{ICEBERG}.reader.poll_interval_ms": "new records wake readers, nothing is polled",
    f"{ICEBERG}.reader.max_concurrent_reads": ("requests to a store are bounded together, at 16"),
    f"{ICEBERG}.reader.prefetch_size": (
        "counts files; reads ahead are bounded in bytes, at 16 MiB"
    ),
}
"""The keys without a counterpart in Frazil, with the reason."""


def rule_of(key: str, *, backend: str) -> Rule | str:
    """Return the rule of a key, or the reason why it has none."""
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


KEYS_MAX: Final = 10_000
LEVELS_MAX: Final = 8
SECTIONS: Final = (WAL_CLOUD, ICEBERG)
UNIT_CHARACTERS_MAX: Final = 20
"""A longer text with a unit is written as a number: a tiny value would have hundreds of zeros."""


class Mapped(NamedTuple):
    """A key and the setting that it became."""

    key: str
    setting: str
    shown: str
    """The displayed value: no secret, and `default` if the key sets nothing."""


class Left(NamedTuple):
    """A key that became no setting, and the reason."""

    key: str
    reason: str


class Imported(NamedTuple):
    """One document as settings."""

    text: str
    """A settings file that `frazil config check` accepts."""
    mapped: tuple[Mapped, ...]
    dropped: tuple[Left, ...]


def read_documents(text: str) -> list[Mapping[str, object]]:
    """Return the documents of a Danube file, each a flat mapping from dotted keys to values.

    Raises:
        InvalidRequest: if it is not YAML, too large, or has no storage section at all.
    """
    try:
        roots = [root for root in yaml.safe_load_all(text) if root is not None]
    except RecursionError as error:
        raise InvalidRequest("file is nested too deeply") from error
    except SCALAR_ERRORS as error:
        raise InvalidRequest("file is not valid YAML", reason=error) from error
    documents: list[Mapping[str, object]] = []
    for number, root in enumerate(roots, start=1):
        if not isinstance(root, dict):
            raise InvalidRequest("document is not a mapping", document=number)
        flat = dict(islice(_leaves(root, "", 1), KEYS_MAX + 1))
        if len(flat) > KEYS_MAX:
            raise InvalidRequest("document has too many keys", keys_max=KEYS_MAX)
        if not any(key.startswith(f"{name}.") for key in flat for name in SECTIONS):
            raise InvalidRequest(
                "document has neither wal_cloud nor storage.iceberg_config", document=number
            )
        documents.append(flat)
    if not documents:
        raise InvalidRequest("file is empty")
    return documents


def _leaves(node: Mapping[object, object], above: str, level: int) -> Iterator[tuple[str, object]]:
    if level > LEVELS_MAX:
        raise InvalidRequest("file is nested too deeply", levels_max=LEVELS_MAX)
    for name, value in node.items():
        key = f"{above}{name}"
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{key}.", level + 1)
        else:
            yield key, value


def import_danube(document: Mapping[str, object], *, source: str) -> Imported:
    """Convert one document of a Danube file into settings.

    Args:
        document: the keys of the document, from `read_documents`.
        source: the file's name, for the heading.
    """
    backend = str(document.get(f"{CLOUD}.backend") or "")
    targets: dict[str, str] = {}
    asked: dict[str, Mapping[str, object]] = {}
    dropped: list[Left] = []
    for key, value in document.items():
        rule = rule_of(key, backend=backend)
        if isinstance(rule, str):
            dropped.append(Left(key, rule))
            continue
        try:
            asked[key] = {} if value is None else rule.convert(value)
            targets[key] = rule.target
        except (InvalidRequest, OverflowError) as error:
            dropped.append(Left(key, f"{error} (setting {rule.target})"))
    chosen = _settled(asked, targets, dropped)
    mapped = tuple(
        Mapped(key, targets[key], _shown(targets[key], chosen)) for key in document if key in asked
    )
    return Imported(_text(chosen, dropped, source), mapped, tuple(dropped))


def _settled(
    asked: dict[str, Mapping[str, object]], targets: Mapping[str, str], dropped: list[Left]
) -> dict[str, object]:
    """Return the settings; keys that Frazil refuses are dropped until it accepts the rest.

    A setting belongs to the first key that sets it. If that key is refused, the rest is assigned
    again. `memory` for metadata overrides an etcd that the file names as well.
    """
    while True:
        owners: dict[str, str] = {}
        chosen: dict[str, object] = {}
        doubled = []
        for key, wanted in asked.items():
            target = targets[key]
            if target in wanted and target in chosen and target != "metadata.backend":
                doubled.append(Left(key, f"{target} is already set by {owners[target]}"))
                continue
            for name, value in wanted.items():
                if name == target or name not in chosen:
                    owners[name], chosen[name] = key, _plain(value)
        found = _refused(chosen)
        if found is None:
            break
        setting, reason = found
        dropped.append(Left(owners[setting], reason))
        del asked[owners[setting]]
    for left in doubled:
        del asked[left.key]
    dropped += doubled
    return chosen


def _refused(chosen: Mapping[str, object]) -> tuple[str, str] | None:
    """Return a setting that Frazil refuses and why; None if it accepts all of them."""
    overrides = {
        name: value
        for name, value in chosen.items()
        if _INFOS[name].kind in {"text", "secret"} or not references(value)
    }
    try:
        load_settings(environment={}, overrides=overrides)
    except InvalidRequest as error:
        details = error.details
        setting = next(str(details[n]) for n in ("key", "against") if details.get(n) in chosen)
        limits = (details.get(name) for name in ("allowed", "nearest", "against"))
        allowed = next((f", {each}" for each in limits if each), "")
        return setting, f"{error.message} (setting {setting}{allowed})"
    return None


def _plain(value: object) -> object:
    """Return a whole number as an int: `0.001 * 5000` is 5."""
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return int(value)
    return value


def _shown(setting: str, chosen: Mapping[str, object]) -> str:
    if setting not in chosen:
        return "default"
    value, info = chosen[setting], _INFOS[setting]
    return info.shown(float(value) if info.kind == "duration" and type(value) is int else value)


def _text(chosen: Mapping[str, object], dropped: list[Left], source: str) -> str:
    tree: dict[str, Any] = {}
    for path in _INFOS:
        if path in chosen:
            *sections, name = path.split(".")
            node = tree
            for section in sections:
                node = node.setdefault(section, {})
            shown = _shown(path, chosen)
            has_unit = (
                _INFOS[path].kind in {"size", "duration"} and len(shown) < UNIT_CHARACTERS_MAX
            )
            node[name] = shown if has_unit else chosen[path]
    lines = [f"# Settings of Frazil, made from {json.dumps(source)} by `frazil config import`."]
    if tree:
        lines.append(yaml.safe_dump(tree, sort_keys=False, width=math.inf).rstrip())
    lines += [f"# dropped: {_line(left.key)}: {_line(left.reason)}" for left in dropped]
    return "\n".join(lines) + "\n"


def _line(text: str) -> str:
    """Return a text that stays within its comment."""
    return text if text.isprintable() else ascii(text)[1:-1]


_INFOS: Final = {info.path: info for info in describe()}
