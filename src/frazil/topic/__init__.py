"""Topics at work: definition, state, admission, sequencing, history."""

from __future__ import annotations

from frazil.topic.admission import NotStored, pass_stop, pass_stop_async
from frazil.topic.as_of import first_held, moment, moments_of, special_ranges, wait_for
from frazil.topic.change_feed import ChangeFeed
from frazil.topic.change_frames import CHANGE_FLAGS, change_schema, plan_change_read
from frazil.topic.change_input import (
    batch_steps,
    bulk_ack,
    check_bulk,
    check_keys,
    check_refused,
    check_there,
    debezium_changes,
    is_arrow,
    no_changes,
    nothing_written,
    numbered,
    steps_of,
)
from frazil.topic.changes import ChangeCodec, completed, merged
from frazil.topic.changing import STEPS_MAX, Move, Step, TopicChanges, Written, check_stays, step_of
from frazil.topic.cursor_paths import SUBSCRIPTIONS, cursor_path
from frazil.topic.ddl_recovery import (
    missing_schemas,
    parts_options,
    schema_control,
    shared_schemas,
    topic_control,
    unfinished,
)
from frazil.topic.frames import MessageCodec, MessageTopicCodec, TableCodec
from frazil.topic.indexing import (
    SHARED_ID,
    CursorRow,
    Indexer,
    Stores,
    known_cursors,
    known_topics,
    open_stores,
)
from frazil.topic.instance import Instance
from frazil.topic.lanes import LaneRuntime
from frazil.topic.namespaces import has_namespace_for
from frazil.topic.part_acks import Answers, answer
from frazil.topic.payloads import OP_FIELD, PRESENT_FIELD, arrow_payload
from frazil.topic.reading import AsyncReader, Reader, Start, start_offset, waker
from frazil.topic.runtime import MESSAGE_OVERHEAD_BYTES, Prepared, TopicRuntime, joined_ack
from frazil.topic.sequencer import Image, Seen, Sequencer
from frazil.topic.signals import (
    LIMIT_NAMES,
    DiskFacts,
    DiskLimits,
    Fired,
    MemoryFacts,
    MemoryLimits,
    checked_limits,
    disk_signals,
    memory_signals,
)
from frazil.topic.spec import (
    PUBLISH_OPTIONS,
    TopicRequest,
    check_hold_name,
    check_hold_offset,
    check_keyed_options,
    check_options,
    column_changes,
    first_columns,
    request_topic,
    specs_of,
)
from frazil.topic.states import BYTES_MAX, VALUE_BYTES_MAX, States, StateTag
from frazil.topic.tier_acks import (
    WAITED_FOR,
    TierPending,
    TierWaits,
    wait_reached,
    wait_reached_async,
)
from frazil.topic.watched import check_watch, watching

__all__ = [
    "BYTES_MAX",
    "CHANGE_FLAGS",
    "LIMIT_NAMES",
    "MESSAGE_OVERHEAD_BYTES",
    "OP_FIELD",
    "PRESENT_FIELD",
    "PUBLISH_OPTIONS",
    "SHARED_ID",
    "STEPS_MAX",
    "SUBSCRIPTIONS",
    "VALUE_BYTES_MAX",
    "WAITED_FOR",
    "Answers",
    "AsyncReader",
    "ChangeCodec",
    "ChangeFeed",
    "CursorRow",
    "DiskFacts",
    "DiskLimits",
    "Fired",
    "Image",
    "Indexer",
    "Instance",
    "LaneRuntime",
    "MemoryFacts",
    "MemoryLimits",
    "MessageCodec",
    "MessageTopicCodec",
    "Move",
    "NotStored",
    "Prepared",
    "Reader",
    "Seen",
    "Sequencer",
    "Start",
    "StateTag",
    "States",
    "Step",
    "Stores",
    "TableCodec",
    "TierPending",
    "TierWaits",
    "TopicChanges",
    "TopicRequest",
    "TopicRuntime",
    "Written",
    "answer",
    "arrow_payload",
    "batch_steps",
    "bulk_ack",
    "change_schema",
    "check_bulk",
    "check_hold_name",
    "check_hold_offset",
    "check_keyed_options",
    "check_keys",
    "check_options",
    "check_refused",
    "check_stays",
    "check_there",
    "check_watch",
    "checked_limits",
    "column_changes",
    "completed",
    "cursor_path",
    "debezium_changes",
    "disk_signals",
    "first_columns",
    "first_held",
    "has_namespace_for",
    "is_arrow",
    "joined_ack",
    "known_cursors",
    "known_topics",
    "memory_signals",
    "merged",
    "missing_schemas",
    "moment",
    "moments_of",
    "no_changes",
    "nothing_written",
    "numbered",
    "open_stores",
    "parts_options",
    "pass_stop",
    "pass_stop_async",
    "plan_change_read",
    "request_topic",
    "schema_control",
    "shared_schemas",
    "special_ranges",
    "specs_of",
    "start_offset",
    "step_of",
    "steps_of",
    "topic_control",
    "unfinished",
    "wait_for",
    "wait_reached",
    "wait_reached_async",
    "waker",
    "watching",
]
