"""The settings: one frozen tree, checked whole before anything starts.

A value comes from the defaults below, a YAML file, the environment (`FRAZIL_LOG__SYNC`) or a flag;
each source overrides the one before. Unknown keys, wrong types and contradictions are
`InvalidRequest`, with the key, the nearest valid key, and its source. `Settings()` is the defaults
alone; only `load_settings` reads the environment.
"""

from __future__ import annotations

import copy
import difflib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import combinations
from operator import attrgetter
from typing import Any, Final, NamedTuple, Self

from pydantic import BaseModel, Field, PrivateAttr, model_validator
from pydantic import ValidationError as TreeError

from frazil.config.objects import ObjectsSettings
from frazil.config.sections import (
    DiskSettings,
    LakeSettings,
    LakeWriterSettings,
    LogSettings,
    MemorySettings,
    MetadataSettings,
    ProducerSettings,
    QuerySettings,
    TelemetrySettings,
    TopicSettings,
)
from frazil.config.serve import AuthSettings, ServeSettings
from frazil.config.sources import (
    Entry,
    environment_entries,
    environment_name,
    file_entries,
    read_bytes,
    with_variables,
)
from frazil.config.values import (
    Section,
    SettingInfo,
    parse_mapping,
    references,
    setting,
    setting_info,
)
from frazil.errors import InvalidRequest
from frazil.units import DURATION_PATTERN, SIZE_PATTERN

__all__ = [
    "AuthSettings",
    "DiskSettings",
    "LakeSettings",
    "LakeWriterSettings",
    "LogSettings",
    "MemorySettings",
    "MetadataSettings",
    "ObjectsSettings",
    "ProducerSettings",
    "QuerySettings",
    "ServeSettings",
    "SettingInfo",
    "Settings",
    "TelemetrySettings",
    "TopicSettings",
    "describe",
    "json_schema",
    "load_settings",
]

SEGMENT_OVERHEAD_BYTES: Final = 1 << 20
"""Header, checkpoint and footer of a segment, in addition to its largest write."""


class Settings(Section):
    """All settings, frozen. Build it with `load_settings`."""

    data_dir: str = setting("./data", "The directory that holds the log and its metadata.")
    log: LogSettings = Field(default=LogSettings(), description="The journal.")
    topics: TopicSettings = Field(default=TopicSettings(), description="Topics and messages.")
    producers: ProducerSettings = Field(
        default=ProducerSettings(), description="Idempotent producers."
    )
    metadata: MetadataSettings = Field(default=MetadataSettings(), description="Metadata.")
    memory: MemorySettings = Field(default=MemorySettings(), description="The memory tier.")
    disk: DiskSettings = Field(default=DiskSettings(), description="The disk tier.")
    objects: ObjectsSettings = Field(default=ObjectsSettings(), description="The objects tier.")
    lake: LakeSettings = Field(default=LakeSettings(), description="Iceberg tables.")
    query: QuerySettings = Field(default=QuerySettings(), description="SQL.")
    serve: ServeSettings = Field(default=ServeSettings(), description="The broker.")
    auth: AuthSettings = Field(default=AuthSettings(), description="Permissions.")
    telemetry: TelemetrySettings = Field(
        default=TelemetrySettings(), description="Events and metrics."
    )

    _set_at: dict[str, str] = PrivateAttr(default_factory=dict)

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        found = _contradiction(self)
        if found is not None:
            raise found
        return self

    @property
    def origins(self) -> dict[str, str]:
        """The source of each setting, by dotted path; `default` for unset ones."""
        return {info.path: self._set_at.get(info.path, "default") for info in describe()}

    def with_origins(self, origins: Mapping[str, str]) -> Self:
        """Return the same settings with their sources."""
        found = self.model_copy()
        found._set_at = dict(origins)  # noqa: SLF001 - a copy of our own class
        return found

    @property
    def secured(self) -> bool:
        """Whether addresses beyond this machine may be used: protected, or explicitly allowed."""
        return self.serve.insecure or (self.serve.tls and self.auth.enabled)

    def values(self) -> dict[str, object]:
        """Return every setting by its dotted path, in the order of `describe`."""
        return {info.path: attrgetter(info.path)(self) for info in describe()}


def load_settings(
    *,
    file: str | None = None,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, object] | None = None,
    look_up: bool = True,
) -> Settings:
    """Return the settings from defaults < YAML file < environment < overrides by dotted path.

    Args:
        file: the YAML file; without it `FRAZIL_CONFIG` may name one.
        environment: the variables to read; by default the process's own.
        overrides: values by dotted path, e.g. `{"log.sync": "periodic"}`.
        look_up: whether the variables in the file (`${NAME}`) are looked up; without it they
            need not be set, and settings other than texts that use them keep their defaults.

    Raises:
        InvalidRequest: if a key is unknown, a value is wrong, or values contradict each other.
        NotFound: if the file does not exist.
    """
    variables = os.environ if environment is None else environment
    path = file if file is not None else variables.get("FRAZIL_CONFIG")
    entries = []
    if path:
        entries = _looked_up(file_entries(read_bytes(path), file=path), variables, look_up=look_up)
    entries += environment_entries(variables)
    flags = (overrides or {}).items()
    entries += [Entry(tuple(key.split(".")), value, "flag") for key, value in flags]
    return _settled(entries)


def describe() -> tuple[SettingInfo, ...]:
    """Return every setting with its limits and one sentence about it, in the tree's order."""
    return _INFOS


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of the YAML file, human units included."""
    schema: dict[str, Any] = copy.deepcopy(Settings.model_json_schema(mode="validation"))
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "Frazil settings"
    for info in _INFOS:
        section, _, name = info.path.rpartition(".")
        node = schema if not section else schema["$defs"][_SECTIONS[section].__name__]
        pattern = {"size": SIZE_PATTERN, "duration": DURATION_PATTERN}.get(info.kind)
        if pattern is not None:
            node["properties"][name] = _either(node["properties"][name], pattern)
    return schema


def _either(number: dict[str, Any], pattern: str) -> dict[str, Any]:
    limits = {key: number.pop(key) for key in ("type", "minimum", "maximum") if key in number}
    known = number.pop("anyOf", [limits])
    if {"type": "null"} in known:
        pattern = f"({pattern})|(^ *none *$)"
    return {**number, "anyOf": [*known, {"type": "string", "pattern": pattern}]}


def _settled(entries: Iterable[Entry]) -> Settings:
    tree: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for given in entries:
        if given.value is None and _is_section(given):
            continue  # An empty section of a YAML file.
        known = given.key in _BY_PATH and len(given.path) == given.key.count(".") + 1
        entry = given if known else _within_mapping(given, tree)
        *sections, name = entry.path
        _node(tree, sections)[name] = entry.value
        origins[entry.key] = entry.origin
    try:
        settings = Settings(**tree)
    except TreeError as error:
        raise _refused(error, origins) from error
    except InvalidRequest as error:
        raise _located(error, origins) from error
    return settings.with_origins(origins)


def _looked_up(
    entries: Iterable[Entry], variables: Mapping[str, str], *, look_up: bool
) -> list[Entry]:
    """Return a file's entries without references, except those that are resolved on use."""
    found = []
    for entry in entries:
        info = _BY_PATH.get(entry.key)
        kind = info.kind if info is not None else "text"
        if kind == "secret" or (entry.path[0] == "objects" and kind == "text"):
            found.append(entry)
        elif look_up:
            found.append(with_variables(entry, variables))
        elif kind in {"text", "mapping"} or not references(entry.value):
            found.append(entry)
    return found


def _node(tree: dict[str, Any], sections: Iterable[str]) -> dict[str, Any]:
    for section in sections:
        tree = tree.setdefault(section, {})
    return tree


def _is_section(entry: Entry) -> bool:
    return entry.key in _SECTIONS and len(entry.path) == entry.key.count(".") + 1


def _within_mapping(entry: Entry, tree: dict[str, Any]) -> Entry:
    """Return the whole mapping with one name set: `lake.spark.conf.spark.ui.enabled=true`.

    Raises:
        InvalidRequest: if the entry names no setting.
    """
    for info in _INFOS:
        name = entry.key.removeprefix(f"{info.path}.")
        if info.kind == "mapping" and name != entry.key and name and entry.origin == "flag":
            path = tuple(info.path.split("."))
            before = parse_mapping(_node(tree, path[:-1]).get(path[-1], {}))
            return Entry(path, {**before, name: entry.value}, entry.origin)
    raise _unknown(entry)


def _unknown(entry: Entry) -> InvalidRequest:
    if _is_section(entry):
        nearest = ", ".join(path for path in _BY_PATH if path.startswith(f"{entry.key}."))
        message = "a section takes no value, set one of its keys"
    else:
        nearest = _nearest(entry.key)
        message = f"unknown setting, did you mean {nearest}?" if nearest else "unknown setting"
    if entry.origin.startswith("environment ") and nearest in _BY_PATH:
        nearest = environment_name(nearest)
    return InvalidRequest(message, key=entry.key, nearest=nearest, set_at=entry.origin)


def _nearest(key: str) -> str:
    """Return the valid key most similar to `key`, by the whole path or by its last word."""
    found = difflib.get_close_matches(key, _BY_PATH, n=1, cutoff=0.6)
    if found:
        return found[0]
    by_name = {path.rpartition(".")[2]: path for path in _BY_PATH}
    found = difflib.get_close_matches(key.rpartition(".")[2], by_name, n=1, cutoff=0.6)
    return by_name[found[0]] if found else ""


def _refused(error: TreeError, origins: Mapping[str, str]) -> InvalidRequest:
    first = error.errors(include_url=False)[0]
    key = ".".join(str(step) for step in first["loc"])
    facts: dict[str, object] = {"key": key, "value": first["input"]}
    info = _BY_PATH.get(key)
    if info is not None:
        shown = facts["value"] = info.shown(first["input"])
        if info.choices:
            near = difflib.get_close_matches(shown.lower(), info.choices, n=1)
            facts["nearest"] = near[0] if near else "|".join(info.choices)
        if info.limits():
            facts["allowed"] = info.limits()
    reason = str(first["msg"]).removeprefix("Value error, ")
    reason = reason[:1].lower() + reason[1:]
    facts["set_at"] = origins.get(key, "default")
    return InvalidRequest(f"setting is refused: {reason}", **facts)


def _located(error: InvalidRequest, origins: Mapping[str, str]) -> InvalidRequest:
    keys = [str(error.details[name]) for name in ("key", "against") if name in error.details]
    places = [f"{key} {origins.get(key, 'default')}" for key in keys]
    return InvalidRequest(error.message, **{**error.details, "set_at": "; ".join(places)})


class _Rule(NamedTuple):
    """A relation between two settings: `wrong` returns whether they contradict each other."""

    message: str
    key: str
    against: str
    wrong: Callable[[Settings], bool]


def _exposed_unsafely(name: str) -> Callable[[Settings], bool]:
    """Return the test of one of the broker's addresses."""
    return lambda s: getattr(s.serve, name) in s.serve.exposed and not s.secured


def _share_a_port(one: str, other: str) -> Callable[[Settings], bool]:
    """Return the test of two of the broker's listeners."""
    return lambda s: s.serve.share_a_port(one, other)


_RULES: Final = (
    _Rule(
        "a segment must hold the largest write and 1MiB in addition",
        "log.segment_bytes_max",
        "log.write_bytes_max",
        lambda s: s.log.segment_bytes_max < s.log.write_bytes_max + SEGMENT_OVERHEAD_BYTES,
    ),
    _Rule(
        "the queue must hold the largest write",
        "log.queue_bytes_max",
        "log.write_bytes_max",
        lambda s: s.log.queue_bytes_max < s.log.write_bytes_max,
    ),
    _Rule(
        "a message must fit into one write",
        "topics.message_bytes_max",
        "log.write_bytes_max",
        lambda s: s.topics.message_bytes_max > s.log.write_bytes_max,
    ),
    _Rule(
        "periodic syncing needs an interval above zero",
        "log.sync_interval_s",
        "log.sync",
        lambda s: s.log.sync_interval_s <= 0,
    ),
    _Rule(
        "the budget must hold the largest write",
        "memory.budget_bytes",
        "log.write_bytes_max",
        lambda s: s.memory.budget_bytes < s.log.write_bytes_max,
    ),
    _Rule(
        "a store needs a location: a bucket or container, a directory, or a name",
        "objects.root",
        "objects.store",
        lambda s: s.objects.store != "none" and not s.objects.root.strip(),
    ),
    _Rule(
        "an access key and its secret are set together",
        "objects.access_key",
        "objects.secret_key",
        lambda s: bool(s.objects.access_key) != bool(s.objects.secret_key),
    ),
    _Rule(
        "the warehouse must have a name without zero bytes",
        "lake.warehouse",
        "lake.warehouse",
        lambda s: "\0" in s.lake.warehouse,
    ),
    *(
        _Rule(
            "an address beyond this machine needs TLS and authentication, or serve.insecure=true",
            f"serve.{name}",
            "serve.insecure",
            _exposed_unsafely(name),
        )
        for name in ("host", "admin_host")
    ),
    _Rule(
        "a certificate and its key are set together",
        "serve.tls_certificate_file",
        "serve.tls_key_file",
        lambda s: bool(s.serve.tls_certificate_file) != bool(s.serve.tls_key_file),
    ),
    _Rule(
        "client certificates need TLS",
        "serve.tls_client_ca_file",
        "serve.tls_certificate_file",
        lambda s: bool(s.serve.tls_client_ca_file) and not s.serve.tls,
    ),
    *(
        _Rule(
            "two listeners cannot share an address and port",
            f"serve.{one}",
            f"serve.{other}",
            _share_a_port(one, other),
        )
        for one, other in combinations(("port", "admin_port", "http_port"), 2)
    ),
    _Rule(
        "authentication needs keys or the secret of tokens, or every call would be refused",
        "auth.enabled",
        "auth.access_file",
        lambda s: s.auth.enabled and not (s.auth.access_file or s.auth.jwt_secret_file),
    ),
    _Rule(
        "tokens need an issuer for their check",
        "auth.jwt_secret_file",
        "auth.jwt_issuer",
        lambda s: bool(s.auth.jwt_secret_file) and not s.auth.jwt_issuer,
    ),
    _Rule(
        "the directory must have a name without zero bytes",
        "data_dir",
        "data_dir",
        lambda s: not s.data_dir.strip() or "\0" in s.data_dir,
    ),
)


def _contradiction(settings: Settings) -> InvalidRequest | None:
    for rule in _RULES:
        if not rule.wrong(settings):
            continue
        key, against = (
            _BY_PATH[path].shown(attrgetter(path)(settings)) for path in (rule.key, rule.against)
        )
        facts = {"key": rule.key, "value": key}
        if rule.against != rule.key:
            facts |= {"against": rule.against, "against_value": against}
        return InvalidRequest(f"settings contradict each other: {rule.message}", **facts)
    return None


def _infos(model: type[BaseModel], above: str = "") -> Iterator[SettingInfo]:
    for name, field in model.model_fields.items():
        path = f"{above}{name}"
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            _SECTIONS[path] = field.annotation
            yield from _infos(field.annotation, f"{path}.")
        else:
            yield setting_info(path, field)


_SECTIONS: Final[dict[str, type[Section]]] = {}
"""The sections by their dotted paths."""
_INFOS: Final = tuple(_infos(Settings))
_BY_PATH: Final = {info.path: info for info in _INFOS}
