"""Subscriptions: cursors, policies, dispatch, and their runtime."""

from __future__ import annotations

from frazil.log.cursor import Cursor
from frazil.subscribe.api import PREFETCH, PREFETCH_BYTES, Subscriptions
from frazil.subscribe.cursors import (
    HOLD_PREFIX,
    NAME_BYTES_MAX,
    SUBSCRIPTIONS_MAX,
    Cursors,
    CursorWriter,
)
from frazil.subscribe.dead_letters import DeadLetterPublisher, PendingDeadLetters
from frazil.subscribe.deliveries import CACHE_BYTES, Deliveries
from frazil.subscribe.delivery_state import (
    Action,
    Alarms,
    Cause,
    Change,
    DeadLetter,
    Deliver,
    Notice,
    NoticeKind,
    Read,
    State,
)
from frazil.subscribe.dispatch import Dispatch, Status
from frazil.subscribe.feed import (
    RECORD_OVERHEAD_BYTES,
    FeedCache,
    Record,
    TopicFeed,
    key_of_row,
    size_of,
)
from frazil.subscribe.fifo import FifoDispatcher
from frazil.subscribe.key_shared import KeyOwners, KeySharedDispatcher
from frazil.subscribe.lag import subscription_facts
from frazil.subscribe.policy import (
    Backoff,
    FailurePolicy,
    Limits,
    Poison,
    SubscriptionType,
    kind_of,
    policy_facts,
    policy_of,
    type_name_of,
)
from frazil.subscribe.runtime import Subscribing
from frazil.subscribe.settings import (
    UNRELIABLE,
    UNRELIABLE_MAKING,
    Stored,
    SubscriptionSettings,
    change_settings,
    check_dead_letters,
    check_stored,
    is_stored,
)
from frazil.subscribe.stream import (
    Delivery,
    Inbox,
    Part,
    Request,
    Stream,
    ack_all,
    attach,
    checked_wait,
    detach,
    let_go,
)
from frazil.subscribe.subscription import HELD_BYTES_MAX, Consumer, Subscription

__all__ = [
    "CACHE_BYTES",
    "HELD_BYTES_MAX",
    "HOLD_PREFIX",
    "NAME_BYTES_MAX",
    "PREFETCH",
    "PREFETCH_BYTES",
    "RECORD_OVERHEAD_BYTES",
    "SUBSCRIPTIONS_MAX",
    "UNRELIABLE",
    "UNRELIABLE_MAKING",
    "Action",
    "Alarms",
    "Backoff",
    "Cause",
    "Change",
    "Consumer",
    "Cursor",
    "CursorWriter",
    "Cursors",
    "DeadLetter",
    "DeadLetterPublisher",
    "Deliver",
    "Deliveries",
    "Delivery",
    "Dispatch",
    "FailurePolicy",
    "FeedCache",
    "FifoDispatcher",
    "Inbox",
    "KeyOwners",
    "KeySharedDispatcher",
    "Limits",
    "Notice",
    "NoticeKind",
    "Part",
    "PendingDeadLetters",
    "Poison",
    "Read",
    "Record",
    "Request",
    "State",
    "Status",
    "Stored",
    "Stream",
    "Subscribing",
    "Subscription",
    "SubscriptionSettings",
    "SubscriptionType",
    "Subscriptions",
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
    "type_name_of",
]
