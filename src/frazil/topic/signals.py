"""Signals: pure functions from the state of a topic to the signals that fire.

One signal is enough to move data to the next tier. No signal fires for a topic without data to
move, however old its last flush or commit is. The limits are those of the settings unless the topic
has its own; the table of both is in docs/internals/tiers.md.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from pydantic import ValidationError

from frazil.config import DiskSettings, LakeWriterSettings, MemorySettings, describe
from frazil.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from frazil.config import Settings

__all__ = [
    "LIMIT_NAMES",
    "DiskFacts",
    "Fired",
    "Limits",
    "MemoryFacts",
    "checked_limits",
    "disk_signals",
    "memory_signals",
]


FLUSH_USAGE_RATIO: Final = 0.8
"""Every topic is flushed above this use of the budget, where the red zone begins."""
FLUSH_CHANGES: Final = 10_000
"""A keyed topic is flushed above this number of unflushed changes."""
COMMIT_SMALL_FILES: Final = 10
"""A commit is due above this number of small files."""
COMMIT_DELETES: Final = 10_000
"""A commit is due above this number of deletes in staged files."""
COMMIT_BYTES: Final = 10**9
"""A commit is due above this number of staged bytes."""


class Fired(NamedTuple):
    """A signal that fired: its name, the measured value, and the limit that it passed."""

    reason: str
    value: float
    limit: float


class MemoryFacts(NamedTuple):
    """The data of one topic in memory that is not in files yet, at one instant."""

    usage_ratio: float
    """The used share of the whole budget, by all topics."""
    partition_bytes_max: int
    """Bytes of the largest partition that are not flushed."""
    age_s: float
    """Age of the oldest record that is not flushed."""
    offsets_unflushed: int
    changes_unflushed: int
    """Unflushed changes of a keyed topic; 0 for other topics."""


class Limits(NamedTuple):
    """The limits of a topic's signals, named like the settings."""

    flush_partition_bytes: int
    flush_age_s: float
    flush_offsets: int
    commit_partition_bytes: int
    flush_interval: float

    @classmethod
    def of(cls, settings: Settings, own: Mapping[str, float] | None = None) -> Self:
        """Return the settings' limits, replaced by the topic's own where it has one."""
        sections = (settings.memory, settings.disk, settings.lake.writer)
        found: dict[str, Any] = {}
        for name in cls._fields:
            default = next(getattr(each, name) for each in sections if hasattr(each, name))
            # A number of the setting's type: 10 offsets, not 10.0.
            found[name] = default if own is None else type(default)(own.get(name, default))
        return cls(**found)


class DiskFacts(NamedTuple):
    """The data of one topic in files that is not committed to the lake yet, at one instant."""

    partition_bytes_max: int
    """Staged bytes of the largest partition."""
    since_commit_s: float
    """Time since the last commit; since the first staged file if there was none."""
    small_files: int
    deletes_pending: int
    staged_bytes: int


def memory_signals(facts: MemoryFacts, limits: Limits) -> tuple[Fired, ...]:
    """Return the signals to flush a topic, empty if it may wait."""
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


def disk_signals(facts: DiskFacts, limits: Limits) -> tuple[Fired, ...]:
    """Return the signals to commit a topic's files, empty if they may wait."""
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
        InvalidRequest: if a name is no limit of a signal, or a value does not fit its setting.
    """
    found: dict[str, float] = {}
    for name, value in given.items():
        if name not in LIMIT_NAMES:
            (nearest,) = difflib.get_close_matches(str(name), LIMIT_NAMES, n=1, cutoff=0)
            raise InvalidRequest(
                "a topic has no such limit", key=name, nearest=nearest, known=", ".join(LIMIT_NAMES)
            )
        section = next(each for each in _SECTIONS if name in each.model_fields)
        try:
            found[name] = getattr(section.model_validate({name: value}), name)
        except ValidationError as error:
            raise _refused(name, value, error) from error
    return found


def _refused(name: str, value: object, error: ValidationError) -> InvalidRequest:
    reason = str(error.errors(include_url=False)[0]["msg"]).removeprefix("Value error, ")
    info = next(each for each in describe() if each.path.rpartition(".")[2] == name)
    return InvalidRequest(
        f"a topic's limit is refused: {reason[:1].lower()}{reason[1:]}",
        key=name,
        value=info.shown(value),
        allowed=info.limits(),
    )


_SECTIONS: Final = (MemorySettings, DiskSettings, LakeWriterSettings)
LIMIT_NAMES: Final = Limits._fields
"""The limits that a topic may override."""
