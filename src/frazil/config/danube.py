"""Danube's broker file as settings of Frazil: text in, text out, and a word about every key.

A key is mapped, dropped with a reason, or `not yet`: it has a place in Frazil, which does not exist
so far. References to the environment stay references. Whatever the file says, the text that comes
out is one that Frazil accepts: a value that is refused becomes a comment with the reason.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import yaml

from frazil.config.settings import describe, load_settings
from frazil.config.values import references
from frazil.errors import InvalidRequest

if TYPE_CHECKING:
    from frazil.config.values import SettingInfo

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
    f"{WAL_CLOUD}.cloud.role_arn": "a profile of AWS's files may name a role: objects.profile",
    f"{WAL_CLOUD}.cloud.session_token": (
        "temporary keys end soon; with their token they come from the environment or a profile"
    ),
    f"{WAL_CLOUD}.cloud.anonymous": (
        "requests are signed; objects.credentials none leaves those to Google's store unsigned"
    ),
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


TEXT_CHARACTERS_MAX: Final = 1 << 20
KEYS_MAX: Final = 10_000
LEVELS_MAX: Final = 8
SECTIONS: Final = (WAL_CLOUD, ICEBERG)

_UNPRINTABLE: Final = re.compile("[\x7f-\xa0\u2028\u2029\ufeff\ud800-\udfff\ufffe\uffff]")
"""What JSON leaves as it is in a text, and YAML would not."""

_SCALAR_ERRORS: Final = (yaml.YAMLError, ValueError, KeyError, AttributeError, TypeError)


class Mapped(NamedTuple):
    """A key and the setting that it became."""

    key: str
    setting: str
    shown: str
    """The value for people: no secret, and `default` if the key sets nothing."""


class Left(NamedTuple):
    """A key that became no setting, and why."""

    key: str
    reason: str


class Imported(NamedTuple):
    """What came of one document."""

    text: str
    """A settings file that `frazil config check` accepts."""
    mapped: tuple[Mapped, ...]
    dropped: tuple[Left, ...]
    not_yet: tuple[Left, ...]


class _Wish(NamedTuple):
    """A setting that a key asks for."""

    key: str
    value: object


def read_documents(text: str) -> list[Mapping[str, object]]:
    """Return the documents of a Danube file, each a flat mapping from dotted keys to values.

    Raises:
        InvalidRequest: if it is not YAML, too large, or has no storage section at all.
    """
    if len(text) > TEXT_CHARACTERS_MAX:
        raise InvalidRequest("file is too large", characters_max=TEXT_CHARACTERS_MAX)
    try:
        roots = [root for root in yaml.safe_load_all(text) if root is not None]
    except RecursionError as error:
        raise InvalidRequest("file is nested too deeply") from error
    except _SCALAR_ERRORS as error:
        mark = getattr(error, "problem_mark", None)
        reason = getattr(error, "problem", None) or str(error)
        line = {} if mark is None else {"line": mark.line + 1}
        raise InvalidRequest("file is not valid YAML", reason=reason, **line) from error
    documents: list[Mapping[str, object]] = []
    for number, root in enumerate(roots, start=1):
        if not isinstance(root, dict):
            raise InvalidRequest("document is not a mapping", document=number)
        flat: dict[str, object] = {}
        for key, value in _leaves(root, "", 1):
            flat[key] = value
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


def import_danube(document: Mapping[str, object], *, source: str) -> Imported:
    """Return the settings that say what one document of a Danube file said.

    Args:
        document: the keys of the document, from `read_documents`.
        source: the file's name, for the heading.
    """
    backend = str(document.get(f"{CLOUD}.backend") or "")
    draft = _Draft()
    for key, value in document.items():
        rule = rule_of(key, backend=backend)
        if isinstance(rule, str):
            draft.dropped.append(Left(key, rule))
        elif value is None:
            draft.unset.append(Mapped(key, rule.target, "default"))
        else:
            try:
                draft.ask(key, rule.target, rule.convert(value))
            except InvalidRequest as error:
                draft.dropped.append(Left(key, f"{error.message} (setting {rule.target})"))
    draft.settle()
    return Imported(_text(draft, source), draft.mapped(), tuple(draft.dropped), tuple(draft.yet))


def _leaves(node: Mapping[object, object], above: str, level: int) -> Iterator[tuple[str, object]]:
    if level > LEVELS_MAX:
        raise InvalidRequest("file is nested too deeply", levels_max=LEVELS_MAX)
    for name, value in node.items():
        key = f"{above}{name}"
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{key}.", level + 1)
        else:
            yield key, value


class _Ask(NamedTuple):
    """What one key asks for: its own setting, and others that this one needs beside it."""

    key: str
    target: str
    wanted: Mapping[str, object]


class _Draft:
    """The settings as they are put together; each belongs to the key that asked for it first."""

    def __init__(self) -> None:
        self.wishes: dict[str, _Wish] = {}
        self.unset: list[Mapped] = []
        self.dropped: list[Left] = []
        self.yet: list[Left] = []
        self.comments: list[str] = []
        self._asks: dict[str, _Ask] = {}
        self._targets: dict[str, str] = {}

    def ask(self, key: str, target: str, wanted: Mapping[str, object]) -> None:
        """Take what a key asks for, if there are such settings."""
        absent = [name for name in wanted if name not in _INFOS]
        if absent:
            self._postpone(key, wanted, absent)
        else:
            self._asks[key] = _Ask(key, target, wanted)

    def settle(self) -> None:
        """Take out the keys that Frazil refuses, with all they ask for, until it accepts the rest.

        What a refused key asked for first may be another's then, so the rest is laid out again.
        """
        while True:
            doubled = self._lay_out()
            overrides = {
                name: _plain(wish.value)
                for name, wish in self.wishes.items()
                if _INFOS[name].kind in {"text", "secret"} or not references(wish.value)
            }
            try:
                load_settings(environment={}, overrides=overrides)
            except InvalidRequest as error:
                names = [str(error.details.get(name)) for name in ("key", "against")]
                found = next((name for name in names if name in self.wishes), None)
                if found is None:
                    raise
                self._refuse(found, error)
            else:
                self.dropped += doubled
                return

    def mapped(self) -> tuple[Mapped, ...]:
        """Return what became of the keys that are settings now."""
        found = []
        for key, target in self._targets.items():
            wish = self.wishes.get(target)
            shown = "default" if wish is None else _shown(_INFOS[target], wish.value)
            found.append(Mapped(key, target, shown))
        return (*found, *self.unset)

    def _lay_out(self) -> list[Left]:
        """Give each setting to its key; returns the keys whose setting is another's.

        `memory` for metadata goes over the etcd named beside it.
        """
        self.wishes, self._targets = {}, {}
        doubled = []
        for key, target, wanted in self._asks.values():
            taken = self.wishes.get(target)
            if taken is not None and target in wanted and target != "metadata.backend":
                doubled.append(Left(key, f"{target} is already set by {taken.key}"))
                continue
            self._targets[key] = target
            for name, value in wanted.items():
                if name not in self.wishes or name == target:
                    self.wishes[name] = _Wish(key, value)
        return doubled

    def _postpone(self, key: str, wanted: Mapping[str, object], absent: Iterable[str]) -> None:
        self.yet.append(Left(key, f"there is no setting {', '.join(absent)} yet"))
        self.comments += [f"not yet: {name}: {_scalar(wanted[name])}" for name in wanted]

    def _refuse(self, name: str, error: InvalidRequest) -> None:
        wish = self.wishes[name]
        info = _INFOS[name]
        if info.kind == "choice":
            self.yet.append(Left(wish.key, f"{name} has no choice {_shown(info, wish.value)} yet"))
            self.comments.append(f"not yet: {name}: {_scalar(wish.value)}")
        else:
            allowed = error.details.get("allowed") or error.details.get("against") or ""
            reason = f"{error.message} (setting {name}" + (f", {allowed})" if allowed else ")")
            self.dropped.append(Left(wish.key, reason))
        del self._asks[wish.key]


def _plain(value: object) -> object:
    """Return a whole number as one: `0.001 * 5000` is 5."""
    if isinstance(value, float) and math.isfinite(value) and value == int(value):
        return int(value)
    return value


def _shown(info: SettingInfo, value: object) -> str:
    try:
        settings = load_settings(environment={}, overrides={info.path: _plain(value)})
    except InvalidRequest:
        # Alone it may contradict a default; the value itself was accepted or is reported.
        return info.shown(_plain(value))
    return info.shown(settings.values()[info.path])


def _text(draft: _Draft, source: str) -> str:
    lines = [f"# Settings of Frazil, made from {json.dumps(source)} by `frazil config import`."]
    open_sections: tuple[str, ...] = ()
    for info in describe():
        if info.path not in draft.wishes:
            continue
        *sections, name = info.path.split(".")
        for depth, section in enumerate(sections):
            if tuple(sections[: depth + 1]) != open_sections[: depth + 1]:
                lines.append(f"{'  ' * depth}{section}:")
        open_sections = tuple(sections)
        indent = "  " * len(sections)
        lines.append(f"{indent}{name}: {_written(info, draft.wishes[info.path].value)}")
    lines += [f"# {comment}" for comment in draft.comments]
    lines += [f"# dropped: {_line(left.key)}: {_line(left.reason)}" for left in draft.dropped]
    return "\n".join(lines) + "\n"


def _written(info: SettingInfo, value: object) -> str:
    """Write a value as YAML: with its unit, or quoted."""
    if info.kind in {"size", "duration"} and not isinstance(value, str):
        return _shown(info, value)
    return _scalar(value)


def _scalar(value: object) -> str:
    text = json.dumps(_plain(value), ensure_ascii=False, default=str)
    return _UNPRINTABLE.sub(lambda match: f"\\U{ord(match[0]):08X}", text)


def _line(text: str) -> str:
    """Return a text that cannot leave its comment."""
    return text if text.isprintable() else ascii(text)[1:-1]


_INFOS: Final = {info.path: info for info in describe()}
