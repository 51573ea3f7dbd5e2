"""Settings: defaults, files, environment, and the import of Danube's configuration files."""

from __future__ import annotations

from frazil.config.danube import Imported, import_danube, read_documents
from frazil.config.sections import EtcdSettings, LakeSparkSettings, LakeWorkerSettings
from frazil.config.serve import is_loopback
from frazil.config.settings import (
    AuthSettings,
    DiskSettings,
    LakeSettings,
    LakeWriterSettings,
    LogSettings,
    MemorySettings,
    MetadataSettings,
    ObjectsSettings,
    ProducerSettings,
    QuerySettings,
    ServeSettings,
    SettingInfo,
    Settings,
    TelemetrySettings,
    TopicSettings,
    describe,
    json_schema,
    load_settings,
)
from frazil.config.sources import (
    environment_entries,
    file_entries,
    parse_assignments,
    read_bytes,
    text_of,
)
from frazil.config.values import SecretText, resolve

__all__ = [
    "AuthSettings",
    "DiskSettings",
    "EtcdSettings",
    "Imported",
    "LakeSettings",
    "LakeSparkSettings",
    "LakeWorkerSettings",
    "LakeWriterSettings",
    "LogSettings",
    "MemorySettings",
    "MetadataSettings",
    "ObjectsSettings",
    "ProducerSettings",
    "QuerySettings",
    "SecretText",
    "ServeSettings",
    "SettingInfo",
    "Settings",
    "TelemetrySettings",
    "TopicSettings",
    "describe",
    "environment_entries",
    "file_entries",
    "import_danube",
    "is_loopback",
    "json_schema",
    "load_settings",
    "parse_assignments",
    "read_bytes",
    "read_documents",
    "resolve",
    "text_of",
]
