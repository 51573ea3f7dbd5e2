"""The tiers above the log, memory and files on disk, and the signals that move data."""

from __future__ import annotations

from frazil.tiers.chunk import Chunk
from frazil.tiers.disk.catalog import DiskCatalog, DiskDirectory, Span, TopicFiles, TopicMarks
from frazil.tiers.disk.format import (
    DiskFile,
    FileLabel,
    SentRun,
    file_schema,
    user_schema,
)
from frazil.tiers.disk.parquet import RowsWriter, open_parquet, read_facts
from frazil.tiers.disk.pins import FilesPin, HistoryPins
from frazil.tiers.disk.reader import DiskHistory, FileGone, LruCache, StoredRows
from frazil.tiers.disk.tier import DiskTier
from frazil.tiers.disk.writer import SetWriter, merge_once
from frazil.tiers.flush import flush_set
from frazil.tiers.keys.deletion_vectors import DeletionVectors
from frazil.tiers.keys.fold import STEP_ROWS, KeyedState
from frazil.tiers.keys.index import OP_MASK, KeyIndex
from frazil.tiers.keys.lookup import KeyLookup
from frazil.tiers.partitions import Partitioner
from frazil.tiers.pressure import RETRY_AFTER_MS
from frazil.tiers.retention import deleted_topics, on_full_of, quota_of
from frazil.tiers.runtime import Tiers
from frazil.tiers.topic_tiers import TopicTiers, check_objects_option, has_objects
from frazil.tiers.zones import RED

__all__ = [
    "OP_MASK",
    "RED",
    "RETRY_AFTER_MS",
    "STEP_ROWS",
    "Chunk",
    "DeletionVectors",
    "DiskCatalog",
    "DiskDirectory",
    "DiskFile",
    "DiskHistory",
    "DiskTier",
    "FileGone",
    "FileLabel",
    "FilesPin",
    "HistoryPins",
    "KeyIndex",
    "KeyLookup",
    "KeyedState",
    "LruCache",
    "Partitioner",
    "RowsWriter",
    "SentRun",
    "SetWriter",
    "Span",
    "StoredRows",
    "Tiers",
    "TopicFiles",
    "TopicMarks",
    "TopicTiers",
    "check_objects_option",
    "deleted_topics",
    "file_schema",
    "flush_set",
    "has_objects",
    "merge_once",
    "on_full_of",
    "open_parquet",
    "quota_of",
    "read_facts",
    "user_schema",
]
