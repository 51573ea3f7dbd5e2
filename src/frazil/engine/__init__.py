"""The engine: journal, topics, metadata and tiers of one data directory, embedded in a program."""

from __future__ import annotations

from frazil.engine.async_api import (
    AsyncDelivery,
    AsyncEngine,
    AsyncPartitionedTopic,
    AsyncTopic,
    open_async,
)
from frazil.engine.doctor import Report, examine
from frazil.engine.doctor_objects import Step, examine_store
from frazil.engine.engine import Engine, open_engine
from frazil.engine.inspection import (
    FrameFacts,
    JournalFacts,
    LostRange,
    frames_of,
    inspect_journal,
    locked_for_reading,
    verify_segment,
)
from frazil.engine.partitioned import PartitionedTopic
from frazil.engine.requests import Call, decode_call, encode_call
from frazil.engine.stats import oldest_kept_by, remove_run_file, replace_run_file
from frazil.engine.topic import Topic
from frazil.subscribe import Delivery

__all__ = [
    "AsyncDelivery",
    "AsyncEngine",
    "AsyncPartitionedTopic",
    "AsyncTopic",
    "Call",
    "Delivery",
    "Engine",
    "FrameFacts",
    "JournalFacts",
    "LostRange",
    "PartitionedTopic",
    "Report",
    "Step",
    "Topic",
    "decode_call",
    "encode_call",
    "examine",
    "examine_store",
    "frames_of",
    "inspect_journal",
    "locked_for_reading",
    "oldest_kept_by",
    "open_async",
    "open_engine",
    "remove_run_file",
    "replace_run_file",
    "verify_segment",
]
