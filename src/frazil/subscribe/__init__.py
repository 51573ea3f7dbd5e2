"""Subscriptions as pure state machines: cursors, policies, dispatch."""

from __future__ import annotations

from frazil.log.cursor import Cursor
from frazil.subscribe.actions import Action, Cause, Change, DeadLetter, Deliver, Notice, NoticeKind
from frazil.subscribe.administration import (
    UNRELIABLE,
    UNRELIABLE_MAKING,
    change_settings,
    check_dead_letters,
    check_stored,
    is_stored,
    kind_of,
    policy_facts,
    policy_of,
    type_name_of,
)
from frazil.subscribe.alarms import Alarms
from frazil.subscribe.api import PREFETCH, PREFETCH_BYTES, Subscriptions
from frazil.subscribe.burials import Burials
from frazil.subscribe.consumer import Consumer
from frazil.subscribe.cursors import HOLD_PREFIX, NAME_BYTES_MAX, Cursors
from frazil.subscribe.dead_letters import DeadLetters
from frazil.subscribe.deliveries import CACHE_BYTES, Deliveries
from frazil.subscribe.dispatch import Dispatch, Status
from frazil.subscribe.facts import subscription_facts
from frazil.subscribe.feed import FeedCache, TopicFeed
from frazil.subscribe.flights import Flights, taken_by
from frazil.subscribe.held import Held
from frazil.subscribe.inbox import Delivery, Inbox, Part
from frazil.subscribe.journalling import Journalling
from frazil.subscribe.key_owners import KeyOwners
from frazil.subscribe.key_shared import KeyLines
from frazil.subscribe.line import Line
from frazil.subscribe.orphans import Orphans
from frazil.subscribe.outbox import Outbox
from frazil.subscribe.pace import Pace
from frazil.subscribe.places import Flight, State
from frazil.subscribe.policy import Backoff, FailurePolicy, Limits, Poison, SubscriptionType
from frazil.subscribe.record import RECORD_OVERHEAD_BYTES, Record, key_of_row, size_of
from frazil.subscribe.records import Records
from frazil.subscribe.reserve import Reserve
from frazil.subscribe.returning import Returning
from frazil.subscribe.ring import Ring
from frazil.subscribe.runtime import Subscribing
from frazil.subscribe.settings import Stored, SubscriptionSettings
from frazil.subscribe.stream import Request, Stream, ack_all, attach, checked_wait, detach, let_go
from frazil.subscribe.subscription import HELD_BYTES_MAX, Subscription
from frazil.subscribe.suspects import Suspects

__all__ = [
    "CACHE_BYTES",
    "HELD_BYTES_MAX",
    "HOLD_PREFIX",
    "NAME_BYTES_MAX",
    "PREFETCH",
    "PREFETCH_BYTES",
    "RECORD_OVERHEAD_BYTES",
    "UNRELIABLE",
    "UNRELIABLE_MAKING",
    "Action",
    "Alarms",
    "Backoff",
    "Burials",
    "Cause",
    "Change",
    "Consumer",
    "Cursor",
    "Cursors",
    "DeadLetter",
    "DeadLetters",
    "Deliver",
    "Deliveries",
    "Delivery",
    "Dispatch",
    "FailurePolicy",
    "FeedCache",
    "Flight",
    "Flights",
    "Held",
    "Inbox",
    "Journalling",
    "KeyLines",
    "KeyOwners",
    "Limits",
    "Line",
    "Notice",
    "NoticeKind",
    "Orphans",
    "Outbox",
    "Pace",
    "Part",
    "Poison",
    "Record",
    "Records",
    "Request",
    "Reserve",
    "Returning",
    "Ring",
    "State",
    "Status",
    "Stored",
    "Stream",
    "Subscribing",
    "Subscription",
    "SubscriptionSettings",
    "SubscriptionType",
    "Subscriptions",
    "Suspects",
    "TopicFeed",
    "ack_all",
    "attach",
    "change_settings",
    "check_dead_letters",
    "check_stored",
    "checked_wait",
    "detach",
    "is_stored",
    "key_of_row",
    "kind_of",
    "let_go",
    "policy_facts",
    "policy_of",
    "size_of",
    "subscription_facts",
    "taken_by",
    "type_name_of",
]
