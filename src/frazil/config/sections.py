"""The sections of the settings: every field with its default, limits and one sentence."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from frazil.config.values import (
    DAY,
    GIB,
    HOUR,
    KIB,
    MIB,
    MINUTE,
    TIB,
    Bytes,
    Count,
    Ratio,
    Seconds,
    SecretText,
    Section,
    Switch,
    Texts,
    setting,
)
from frazil.model import OnFull, SyncMode

__all__ = [
    "DiskSettings",
    "EtcdSettings",
    "LakeCatalogSettings",
    "LakeSettings",
    "LakeSparkSettings",
    "LakeWorkerSettings",
    "LakeWriterSettings",
    "LogSettings",
    "MemorySettings",
    "MetadataSettings",
    "ProducerSettings",
    "QuerySettings",
    "TelemetrySettings",
    "TopicSettings",
]

MESSAGE_BYTES_CAP: Final = 16 * MIB


class LogSettings(Section):
    """The journal: segments, syncing, admission, retention, disk space."""

    segment_bytes_max: Bytes = setting(
        128 * MIB, "A segment is sealed when it has this many bytes.", low=64 * KIB, high=16 * GIB
    )
    sync: SyncMode = setting(
        "commit", "When a publish is acked: after its sync, or before a periodic one."
    )
    sync_interval_s: Seconds = setting(
        1.0, "In periodic mode the log is synced at least this often.", low=0, high=HOUR
    )
    queue_bytes_max: Bytes = setting(
        64 * MIB, "The limit of bytes queued for the writer.", low=KIB, high=64 * GIB
    )
    write_bytes_max: Bytes = setting(
        10 * MIB,
        "One frame has at most this many bytes; larger calls become several frames.",
        low=KIB,
        high=128 * MIB,
    )
    compression: Literal["none", "lz4", "zstd"] = setting(
        "none", "The compression of frame bodies."
    )
    retention_age_s: Seconds = setting(
        48 * HOUR, "Data that no hold needs is kept for this long.", low=0, high=36_500 * DAY
    )
    retention_bytes: Bytes = setting(
        20 * GIB, "Data that no hold needs is kept up to this size.", low=0, high=1 << 60
    )
    journal_bytes_max: Bytes = setting(
        64 * GIB,
        "A larger journal frees its oldest segments before their time, unless a hold needs them.",
        low=MIB,
        high=1 << 60,
    )
    on_full: OnFull = setting(
        "block",
        "At a topic's quota of held data its publishers are refused, or its oldest data expires.",
    )
    ballast_bytes: Bytes = setting(
        64 * MIB,
        "A reserved file of this size is deleted to finish work on a full disk.",
        low=0,
        high=TIB,
    )
    free_bytes_min: Bytes = setting(
        GIB, "Publishing stops when the disk has less free space than this.", low=0, high=1 << 50
    )
    free_ratio_min: Ratio = setting(
        0.05, "Publishing stops when a smaller share of the disk is free.", low=0, high=0.9
    )
    allow_network_fs: Switch = setting(
        False, "Allow a data directory on a network file system, whose syncs may be unreliable."
    )


class TopicSettings(Section):
    """Limits of topics and messages."""

    auto_create: Switch = setting(True, "A publish to an absent topic creates it.")
    topics_max: Count = setting(10_000, "The limit of topics.", low=1, high=10_000_000)
    message_bytes_max: Bytes = setting(
        MIB, "A message has at most this many bytes.", low=1, high=MESSAGE_BYTES_CAP
    )
    delete_grace_s: Seconds = setting(
        DAY, "The data of a deleted topic is kept for this time.", low=0, high=365 * DAY
    )


class ProducerSettings(Section):
    """Idempotent producers: the detection of repeats."""

    window_age_s: Seconds = setting(
        DAY, "A silent producer is forgotten after this time.", low=1, high=365 * DAY
    )


class EtcdSettings(Section):
    """The etcd servers that share metadata with other machines."""

    endpoints: str = setting(
        "http://127.0.0.1:2379", "URLs of the servers, separated by commas; any may serve a call."
    )
    prefix: str = setting(
        "", "The prefix of all keys; brokers that share servers need different ones."
    )
    user: str = setting("", "The user to log in as; empty is none.")
    password: SecretText = setting(SecretText(""), "The password of the user.")
    ca_file: str = setting("", "A file of the authorities that sign the servers' certificates.")
    cert_file: str = setting("", "A file with the broker's client certificate.")
    key_file: str = setting("", "A file with the key of that certificate.")
    lease_ttl_s: Seconds = setting(
        10.0,
        "A silent broker loses its lease, and its data to the next owner, after this time.",
        low=1,
        high=HOUR,
    )


class MetadataSettings(Section):
    """The metadata store next to the log."""

    backend: Literal["sqlite", "memory", "etcd"] = setting(
        "sqlite",
        "Where metadata is kept; memory is rebuilt from the log at each start, etcd shares "
        "metadata with other machines.",
    )
    etcd: EtcdSettings = Field(default=EtcdSettings(), description="The backend etcd.")


class MemorySettings(Section):
    """The memory tier: its budget, and when it flushes to disk."""

    enabled: Switch = setting(
        True, "Records are kept in memory and moved to files; otherwise the log serves alone."
    )
    budget_bytes: Bytes = setting(
        2 * GIB,
        "Batches, indexes, queued requests and buffers share this many bytes.",
        low=MIB,
        high=16 * TIB,
    )
    retention_s: Seconds = setting(
        15 * MINUTE, "Flushed records stay in memory this long if there is room.", low=1, high=DAY
    )
    wait_s: Seconds = setting(
        5.0, "A publish waits this long in the red zone before it is refused.", low=0, high=HOUR
    )
    flush_partition_bytes: Bytes = setting(
        128 * MIB, "A topic is flushed when a partition has this much to flush.", low=1, high=TIB
    )
    flush_age_s: Seconds = setting(
        5 * MINUTE, "A topic is flushed when a record has waited longer.", low=0.01, high=DAY
    )
    flush_offsets: Count = setting(
        100_000, "A topic is flushed above this many offsets to flush.", low=1, high=1 << 40
    )


class DiskSettings(Section):
    """The disk tier: its cap, and when its files are committed to the lake."""

    bytes_max: Bytes = setting(
        100 * 10**9, "Files take at most this many bytes.", low=MIB, high=1 << 60
    )
    log_keep_s: Seconds = setting(
        MINUTE,
        "The log keeps flushed records for this time, so that a damaged file can be rewritten.",
        low=0,
        high=365 * DAY,
    )
    commit_partition_bytes: Bytes = setting(
        128 * MIB, "A commit is due when a partition has this much staged.", low=1, high=TIB
    )


class LakeCatalogSettings(Section):
    """The Iceberg catalog of the tables."""

    port: Count = setting(
        8181, "The embedded catalog listens here, or on the next free port.", low=0, high=65535
    )


class LakeWriterSettings(Section):
    """The writing of records to table files."""

    flush_interval: Seconds = setting(
        MINUTE, "A commit is due this long after the last one.", low=0.1, high=DAY
    )
    target_file_bytes: Bytes = setting(
        128 * MIB, "The approximate size of a table's files.", low=MIB, high=64 * GIB
    )


class LakeSparkSettings(Section):
    """Spark, the writer of the tables."""

    conf: Texts = setting({}, "Settings of Spark by their own names; they override all others.")
    jars_dir: str = setting("", "The directory of the jars; empty is the user's cache directory.")


class LakeWorkerSettings(Section):
    """The process that runs Spark."""

    heap_bytes: Bytes = setting(
        GIB, "The worker's Java heap has at most this size.", low=256 * MIB, high=TIB
    )


class LakeSettings(Section):
    """Iceberg: which topics become tables, in which directory, and how often."""

    default: Switch = setting(False, "A topic becomes a table unless it says otherwise.")
    warehouse: str = setting("", "The directory of the tables; empty is warehouse in data_dir.")
    ack_timeout_s: Seconds = setting(
        MINUTE, "A publish with ack level `committed` waits this long.", low=0.001, high=DAY
    )
    catalog: LakeCatalogSettings = Field(
        default=LakeCatalogSettings(), description="The catalog of the tables."
    )
    writer: LakeWriterSettings = Field(
        default=LakeWriterSettings(), description="The writing of records to table files."
    )
    spark: LakeSparkSettings = Field(default=LakeSparkSettings(), description="Spark.")
    worker: LakeWorkerSettings = Field(
        default=LakeWorkerSettings(), description="The process that runs Spark."
    )


class QuerySettings(Section):
    """SQL: the resources that queries share."""

    threads: Count = setting(0, "The number of query threads; 0 is one a core.", low=0, high=1024)
    memory_bytes: Bytes = setting(
        512 * MIB, "Queries use at most this much memory together.", low=MIB, high=16 * TIB
    )
    timeout_s: Seconds = setting(
        MINUTE, "A query is cancelled after this time.", low=0.001, high=DAY
    )
    concurrency_max: Count = setting(4, "The limit of concurrent queries.", low=1, high=1000)


class TelemetrySettings(Section):
    """Events and metrics."""

    log_level: Literal["debug", "info", "warning", "error"] = setting(
        "warning", "Events below this level are not written."
    )
    log_format: Literal["text", "json"] = setting("text", "The format of events.")
