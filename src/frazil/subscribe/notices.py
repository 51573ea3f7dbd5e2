"""What a subscription does of itself, as events: blocked, dropped, paused, promoted, skipped.

And how often something is told that goes wrong again and again.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from frazil.subscribe.actions import NoticeKind
from frazil.telemetry import event

if TYPE_CHECKING:
    from collections.abc import Callable

    from frazil.subscribe.actions import Notice

__all__ = ["Seldom", "tell_notice"]

AGAIN_S: Final = 60.0
"""So long something that was told is not told again."""
TOLD_MAX: Final = 64
"""So many different things are remembered."""
BAD: Final = frozenset({NoticeKind.BLOCKED, NoticeKind.DROPPED, NoticeKind.PAUSED})


def tell_notice(notice: Notice, *, seldom: Seldom, topic: str, subscription: str) -> None:
    """Log a notice of a subscription; that a stream was displaced is told by its end.

    That records were passed over is told at once, and then each minute with their number.
    """
    if notice.kind is NoticeKind.DISPLACED:
        return
    facts: dict[str, object] = {}
    if notice.kind is NoticeKind.SKIPPED:
        facts["records"] = seldom.times(notice.kind.value, notice.records)
        if not facts["records"]:
            return
    if notice.offset >= 0:
        facts["offset"] = notice.offset
    if notice.reason:
        facts["reason"] = notice.reason
    level = logging.WARNING if notice.kind in BAD else logging.INFO
    name = f"subscription_{notice.kind.value}"
    event(name, level=level, **facts, topic=topic, subscription=subscription)


class Seldom:
    """Has the same thing told at once, and after that once in a while."""

    def __init__(self, time_s: Callable[[], float]) -> None:
        self._time_s = time_s
        self._told_s: dict[str, float] = {}
        self._times: dict[str, int] = {}

    def times(self, what: str, count: int = 1) -> int:
        """Note that something happened; return how often since it was told, 0 not to tell it."""
        now_s = self._time_s()
        times = self._times.get(what, 0) + count
        if now_s - self._told_s.get(what, -AGAIN_S) < AGAIN_S:
            self._times[what] = times
            return 0
        if len(self._told_s) >= TOLD_MAX:
            self._told_s.clear()
            self._times.clear()
        self._told_s[what] = now_s
        self._times[what] = 0
        return times
