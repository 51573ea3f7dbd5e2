"""Settings: defaults, files, environment, and the import of Danube's configuration files."""

from __future__ import annotations

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

__all__ = [
    "AuthSettings",
    "DiskSettings",
    "LakeSettings",
    "LakeWriterSettings",
    "LogSettings",
    "MemorySettings",
    "MetadataSettings",
    "ObjectsSettings",
    "ProducerSettings",
    "QuerySettings",
    "ServeSettings",
    "SettingInfo",
    "Settings",
    "TelemetrySettings",
    "TopicSettings",
    "describe",
    "json_schema",
    "load_settings",
]
