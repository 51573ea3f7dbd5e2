"""The section of the objects tier: the store, uploads, retention and backups.

Texts may have `${NAME}` references to the environment (`frazil.config.values`); secrets are never
shown. The location of a store is its `root`: `s3://bucket/prefix`, `gcs://bucket/prefix`,
`azblob://container/prefix`, a directory, or the name of a store in memory; the scheme is
optional.
"""

from __future__ import annotations

from typing import Final, Literal

from frazil.config.values import (
    DAY,
    GIB,
    KIB,
    MINUTE,
    Bytes,
    BytesOrNone,
    Seconds,
    SecondsOrNone,
    SecretText,
    Section,
    Switch,
    setting,
)

__all__ = ["ObjectsSettings", "StoreKind"]

StoreKind = Literal["none", "s3", "gcs", "azblob", "fs", "memory"]

_NO_SECRET: Final = SecretText("")


class ObjectsSettings(Section):
    """The objects tier: frames in an object store, against disk failures and for long history."""

    store: StoreKind = setting("none", "The kind of object store for uploaded data.")
    root: str = setting("", "The location: bucket or container with a prefix, or a directory.")
    default: Switch = setting(True, "Topics are uploaded unless they say otherwise.")
    endpoint: str = setting("", "The server's URL; empty is that of Amazon, Google or Azure.")
    allow_http: Switch = setting(False, "An endpoint without TLS may be used.")
    region: str = setting("", "The bucket's region on S3; empty is the environment's or us-east-1.")
    path_style: Switch = setting(
        True, "The bucket is in the path of S3 requests, not in the name of the host."
    )
    access_key: SecretText = setting(
        _NO_SECRET, "S3's access key; empty takes credentials of the environment or machine."
    )
    secret_key: SecretText = setting(_NO_SECRET, "The secret of the access key.")
    profile: str = setting(
        "", "S3 credentials are those of this profile of AWS's files; needs boto3."
    )
    credentials: SecretText = setting(
        _NO_SECRET,
        "Google's key of a service account, as JSON or its file; empty is the machine's, `none` "
        "signs nothing.",
    )
    account_name: str = setting("", "Azure's storage account.")
    account_key: SecretText = setting(
        _NO_SECRET, "The account's key; empty takes credentials of the environment or machine."
    )
    interval_s: Seconds = setting(
        MINUTE, "The interval between uploads of each topic.", low=0.01, high=DAY
    )
    object_bytes_max: Bytes = setting(
        GIB, "An object has about this many bytes at most.", low=64 * KIB, high=8 * GIB
    )
    retention_age_s: SecondsOrNone = setting(
        None, "Objects are kept for this long; none is for ever.", low=0, high=36_500 * DAY
    )
    retention_bytes: BytesOrNone = setting(
        None, "A topic's objects are kept up to this size; none is any.", low=0, high=1 << 60
    )
