"""The objects tier: frames in an object store, for durability beyond one disk and for replay."""

from __future__ import annotations

from frazil.objects.backup import backup_keys, brokers_in, listed
from frazil.objects.catalog import LEASE_NAME, ObjectCatalog
from frazil.objects.descriptor import (
    Descriptor,
    Garbage,
    Hint,
    Intent,
    ObjectsState,
    TopicObjects,
    decode_row,
)
from frazil.objects.facts import unreadable
from frazil.objects.failures import is_throttled
from frazil.objects.fetch import Fetcher
from frazil.objects.format import TRAILER_BYTES, parse_key, topic_key
from frazil.objects.frame_run import Tally, Topic
from frazil.objects.frames import JournalFrames
from frazil.objects.looking import read_tail
from frazil.objects.obstores import open_store
from frazil.objects.patience import Patient
from frazil.objects.place import PLACE_KEY
from frazil.objects.reader import ObjectsSource
from frazil.objects.reframe import Reframer, Runs
from frazil.objects.restoring import RestoreReport, restore
from frazil.objects.rewriting import ObjectRun, Rewriter
from frazil.objects.runtime import Objects
from frazil.objects.shared import SharedUploader
from frazil.objects.store import LIST_KEYS_MAX, PIECE_BYTES_MAX, ObjectMeta, ObjectStore
from frazil.objects.topics import OBJECTS_HOLD
from frazil.objects.uploader import Uploader

__all__ = [
    "LEASE_NAME",
    "LIST_KEYS_MAX",
    "OBJECTS_HOLD",
    "PIECE_BYTES_MAX",
    "PLACE_KEY",
    "TRAILER_BYTES",
    "Descriptor",
    "Fetcher",
    "Garbage",
    "Hint",
    "Intent",
    "JournalFrames",
    "ObjectCatalog",
    "ObjectMeta",
    "ObjectRun",
    "ObjectStore",
    "Objects",
    "ObjectsSource",
    "ObjectsState",
    "Patient",
    "Reframer",
    "RestoreReport",
    "Rewriter",
    "Runs",
    "SharedUploader",
    "Tally",
    "Topic",
    "TopicObjects",
    "Uploader",
    "backup_keys",
    "brokers_in",
    "decode_row",
    "is_throttled",
    "listed",
    "open_store",
    "parse_key",
    "read_tail",
    "restore",
    "topic_key",
    "unreadable",
]
