"""Subscriptions as pure state machines: cursors, policies, dispatch."""

from __future__ import annotations

from frazil.log.cursor import Cursor
from frazil.subscribe.actions import (
    Action,
    Cause,
    Change,
    DeadLetter,
    Deliver,
    Notice,
    NoticeKind,
)
from frazil.subscribe.dispatch import Dispatch, Status
from frazil.subscribe.flights import taken_by
from frazil.subscribe.policy import Backoff, FailurePolicy, Limits, Poison, SubscriptionType

__all__ = [
    "Action",
    "Backoff",
    "Cause",
    "Change",
    "Cursor",
    "DeadLetter",
    "Deliver",
    "Dispatch",
    "FailurePolicy",
    "Limits",
    "Notice",
    "NoticeKind",
    "Poison",
    "Status",
    "SubscriptionType",
    "taken_by",
]
