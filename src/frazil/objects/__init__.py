"""The objects tier: frames in an object store, for durability beyond one disk and for replay."""

from __future__ import annotations

from frazil.objects.backup import backup_keys, brokers_in, listed
from frazil.objects.catalog import LEASE_NAME, ObjectCatalog
from frazil.objects.descriptor import (
    Descriptor,
    Garbage,
    Intent,
    ObjectsState,
    TopicObjects,
    decode_row,
)
from frazil.objects.format import TRAILER_BYTES, KeyParts, object_key, parse_key
from frazil.objects.frames import TopicFrames
from frazil.objects.obstores import open_store
from frazil.objects.reader import Fetcher, ObjectsSource
from frazil.objects.reframe import Reframer, Runs
from frazil.objects.restore import OFFSET_MARGIN, restore
from frazil.objects.restore_find import frames_of
from frazil.objects.retention import OBJECTS_HOLD
from frazil.objects.runtime import LOCATION_KEY, Objects, unreadable
from frazil.objects.store import (
    LIST_KEYS_MAX,
    PART_BYTES,
    PIECE_BYTES_MAX,
    ObjectMeta,
    ObjectStore,
    RetryingStore,
)
from frazil.objects.writer import Uploader, read_tail

__all__ = [
    "LEASE_NAME",
    "LIST_KEYS_MAX",
    "LOCATION_KEY",
    "OBJECTS_HOLD",
    "OFFSET_MARGIN",
    "PART_BYTES",
    "PIECE_BYTES_MAX",
    "TRAILER_BYTES",
    "Descriptor",
    "Fetcher",
    "Garbage",
    "Intent",
    "KeyParts",
    "ObjectCatalog",
    "ObjectMeta",
    "ObjectStore",
    "Objects",
    "ObjectsSource",
    "ObjectsState",
    "Reframer",
    "RetryingStore",
    "Runs",
    "TopicFrames",
    "TopicObjects",
    "Uploader",
    "backup_keys",
    "brokers_in",
    "decode_row",
    "frames_of",
    "listed",
    "object_key",
    "open_store",
    "parse_key",
    "read_tail",
    "restore",
    "unreadable",
]
