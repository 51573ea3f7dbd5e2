"""What a subscription does of itself, as events: blocked, dropped, paused, promoted, resumed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from frazil.subscribe import NoticeKind
from frazil.telemetry import event

if TYPE_CHECKING:
    from frazil.subscribe import Notice

__all__ = ["tell_notice"]

BAD: Final = frozenset({NoticeKind.BLOCKED, NoticeKind.DROPPED, NoticeKind.PAUSED})


def tell_notice(notice: Notice, *, topic: str, subscription: str) -> None:
    """Log a notice of a subscription; that a stream was displaced is told by its end."""
    if notice.kind is NoticeKind.DISPLACED:
        return
    facts: dict[str, object] = {}
    if notice.offset >= 0:
        facts["offset"] = notice.offset
    if notice.reason:
        facts["reason"] = notice.reason
    level = logging.WARNING if notice.kind in BAD else logging.INFO
    name = f"subscription_{notice.kind.value}"
    event(name, level=level, **facts, topic=topic, subscription=subscription)
