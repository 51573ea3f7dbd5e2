"""Danube's broker file as settings of Frazil: text in, text out, and a word about every key.

A key is mapped, dropped with a reason, or `not yet`: it has a place in Frazil, which does not exist
so far. References to the environment stay references. Whatever the file says, the text that comes
out is one that Frazil accepts: a value that is refused becomes a comment with the reason.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import yaml

from frazil.config.danube_rules import CLOUD, ICEBERG, WAL_CLOUD, rule_of
from frazil.config.secret import references
from frazil.config.settings import describe, load_settings
from frazil.errors import InvalidRequest

if TYPE_CHECKING:
    from frazil.config.values import SettingInfo

__all__ = ["Imported", "Left", "Mapped", "import_danube", "read_documents"]

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
