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

# After the names above, which these modules import from this package.
from frazil.subscribe.consumer import Consumer  # isort: skip
from frazil.subscribe.deliveries import Deliveries  # isort: skip
from frazil.subscribe.record import Record  # isort: skip
from frazil.subscribe.subscription import Subscription  # isort: skip

__all__ = [
    "Action",
    "Backoff",
    "Cause",
    "Change",
    "Consumer",
    "Cursor",
    "DeadLetter",
    "Deliver",
    "Deliveries",
    "Dispatch",
    "FailurePolicy",
    "Limits",
    "Notice",
    "NoticeKind",
    "Poison",
    "Record",
    "Status",
    "Subscription",
    "SubscriptionType",
    "taken_by",
]
