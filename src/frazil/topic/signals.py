"""When data moves down: pure functions from the facts of a topic to the signals that fire.

Any one that fires is enough. Nothing fires for a topic that has nothing to move, however old its
last flush or commit is. The limits are those of the settings unless the topic has its own; the
table of both is in docs/internals/tiers.md.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from pydantic import ValidationError

from frazil.config import DiskSettings, LakeWriterSettings, MemorySettings, describe
from frazil.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "LIMIT_NAMES",
    "DiskFacts",
    "DiskLimits",
    "Fired",
    "MemoryFacts",
    "MemoryLimits",
    "checked_limits",
    "disk_signals",
    "memory_signals",
]


FLUSH_USAGE_RATIO: Final = 0.8
"""Every topic is flushed above this use of the budget, where the red zone begins."""
FLUSH_CHANGES: Final = 10_000
"""A keyed topic is flushed above so many changes to flush."""
COMMIT_SMALL_FILES: Final = 10
"""A commit is due above so many small files."""
COMMIT_DELETES: Final = 10_000
"""A commit is due above so many deletes in staged files."""
COMMIT_BYTES: Final = 10**9
"""A commit is due above so many staged bytes."""
_INTERVAL: Final = "flush_interval"
"""The limit that is a setting of the lake's writer."""


class Fired(NamedTuple):
    """A signal that fired: why, what was found, and the limit it passed."""

    reason: str
    value: float
    limit: float


class MemoryFacts(NamedTuple):
    """What one topic has in memory that is not in files yet, at one instant."""

    usage_ratio: float
    """Use of the whole budget, of all topics."""
    partition_bytes_max: int
    """Bytes of the largest partition that are not flushed."""
    age_s: float
    """Age of the oldest record that is not flushed."""
    offsets_unflushed: int
    changes_unflushed: int
    """Changes of a keyed topic among them; 0 for others."""


class MemoryLimits(NamedTuple):
    """The limits of a topic for memory to disk, named like the settings."""

    flush_partition_bytes: int
    flush_age_s: float
    flush_offsets: int

    @classmethod
    def of(cls, settings: MemorySettings, own: Mapping[str, float] | None = None) -> Self:
        """Return the settings' limits with the topic's own over them; other names do not count."""
        return cls(**{name: _limit(settings, own, name) for name in cls._fields})


class DiskFacts(NamedTuple):
    """What one topic has in files that is not committed to the lake yet, at one instant."""

    partition_bytes_max: int
    """Staged bytes of the largest partition."""
    since_commit_s: float
    """Time since the last commit; since the first staged file if there was none."""
    small_files: int
    deletes_pending: int
    staged_bytes: int


class DiskLimits(NamedTuple):
    """The limits of a topic for disk to lake, named like the settings."""

    commit_partition_bytes: int
    flush_interval: float

    @classmethod
    def of(
        cls,
        settings: DiskSettings,
        own: Mapping[str, float] | None = None,
        *,
        writer: LakeWriterSettings,
    ) -> Self:
        """Return the settings' limits with the topic's own over them; other names do not count."""
        named = {name: writer if name == _INTERVAL else settings for name in cls._fields}
        return cls(**{name: _limit(section, own, name) for name, section in named.items()})


def memory_signals(facts: MemoryFacts, limits: MemoryLimits) -> tuple[Fired, ...]:
    """Return the signals that tell to flush a topic, empty if it may wait."""
    if not facts.offsets_unflushed:
        return ()
    size = facts.partition_bytes_max
    return (
        *_above("memory", facts.usage_ratio, FLUSH_USAGE_RATIO),
        *_reached("partition", size, limits.flush_partition_bytes),
        *_above("age", facts.age_s, limits.flush_age_s),
        *_above("offsets", facts.offsets_unflushed, limits.flush_offsets),
        *_above("changes", facts.changes_unflushed, FLUSH_CHANGES),
    )


def disk_signals(facts: DiskFacts, limits: DiskLimits) -> tuple[Fired, ...]:
    """Return the signals that tell to commit a topic's files, empty if they may wait."""
    if not facts.staged_bytes:
        return ()
    size = facts.partition_bytes_max
    return (
        *_reached("partition", size, limits.commit_partition_bytes),
        *_above("age", facts.since_commit_s, limits.flush_interval),
        *_above("small_files", facts.small_files, COMMIT_SMALL_FILES),
        *_above("deletes", facts.deletes_pending, COMMIT_DELETES),
        *_above("bytes", facts.staged_bytes, COMMIT_BYTES),
    )


def _above(reason: str, value: float, limit: float) -> tuple[Fired, ...]:
    return (Fired(reason, value, limit),) if value > limit else ()


def _reached(reason: str, value: float, limit: float) -> tuple[Fired, ...]:
    return (Fired(reason, value, limit),) if value >= limit else ()


def checked_limits(given: Mapping[str, object]) -> dict[str, float]:
    """Return a topic's own limits as numbers; they take the units of the settings (`5m`, `64MB`).

    Raises:
        InvalidRequest: if a name is no limit of a signal, or a value is not one of its setting.
    """
    found: dict[str, float] = {}
    for name, value in given.items():
        if name not in LIMIT_NAMES:
            raise _unknown(name)
        try:
            found[name] = getattr(_section(name).model_validate({name: value}), name)
        except ValidationError as error:
            raise _refused(name, value, error) from error
    return found


def _section(name: str) -> type[MemorySettings | DiskSettings | LakeWriterSettings]:
    if name == _INTERVAL:
        return LakeWriterSettings
    return MemorySettings if name in MemoryLimits._fields else DiskSettings


def _unknown(name: object) -> InvalidRequest:
    (nearest,) = difflib.get_close_matches(str(name), LIMIT_NAMES, n=1, cutoff=0)
    return InvalidRequest(
        "a topic has no such limit", key=name, nearest=nearest, known=", ".join(LIMIT_NAMES)
    )


def _refused(name: str, value: object, error: ValidationError) -> InvalidRequest:
    reason = str(error.errors(include_url=False)[0]["msg"]).removeprefix("Value error, ")
    info = next(each for each in describe() if each.path.rpartition(".")[2] == name)
    return InvalidRequest(
        f"a topic's limit is refused: {reason[:1].lower()}{reason[1:]}",
        key=name,
        value=info.shown(value),
        allowed=info.limits(),
    )


def _limit(
    settings: MemorySettings | DiskSettings | LakeWriterSettings,
    own: Mapping[str, float] | None,
    name: str,
) -> Any:
    default: float = getattr(settings, name)
    # A number of the setting's own kind: 10 small files, not 10.0.
    return default if own is None else type(default)(own.get(name, default))


LIMIT_NAMES: Final = (*MemoryLimits._fields, *DiskLimits._fields)
"""The limits that a topic may have for itself."""
