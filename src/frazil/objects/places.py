"""Where a store lies: `objects.root` and the endpoints, read and checked before anything is asked."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from frazil.config import resolve
from frazil.errors import InvalidRequest

if TYPE_CHECKING:
    from frazil.config.objects import ObjectsSettings

__all__ = ["Place", "credentials_setting", "endpoint_of", "place_of"]

_SCHEMES: Final = {
    "s3": ("s3", "s3a"),
    "gcs": ("gcs", "gs"),
    "azblob": ("azblob", "az", "azure", "abfs"),
    "fs": ("file", "fs"),
    "memory": ("memory",),
}
_ROOT: Final = "objects.root"


class Place(NamedTuple):
    """A bucket or container with a prefix; a directory or name is a prefix without a bucket."""

    bucket: str
    prefix: str


def place_of(settings: ObjectsSettings) -> Place:
    """Return where the store of the settings lies, with references looked up.

    Raises:
        InvalidRequest: if there is no store, or its root is not one.
    """
    if settings.store == "none":
        raise InvalidRequest("no object store is set", setting="objects.store")
    root = resolve(settings.root, setting=_ROOT).strip()
    scheme, sign, rest = root.partition("://")
    if not sign:
        rest = root
    elif scheme.lower() not in _SCHEMES[settings.store]:
        raise InvalidRequest(
            "root has the scheme of another store", setting=_ROOT, root=root, store=settings.store
        )
    if not rest or "\0" in rest:
        raise InvalidRequest("root names no place", setting=_ROOT, root=root)
    if settings.store == "fs":
        return Place("", os.path.abspath(os.path.expanduser(rest)))
    if settings.store == "memory":
        return Place("", rest.strip("/"))
    bucket, _, prefix = rest.partition("/")
    steps = [step for step in prefix.split("/") if step]
    if not bucket or {".", ".."} & set(steps):
        raise InvalidRequest("root must be bucket/prefix", setting=_ROOT, root=root)
    return Place(bucket, "/".join(steps))


def credentials_setting(settings: ObjectsSettings) -> str:
    """Return the setting that the store's credentials come from, or would: the one to blame."""
    if settings.store == "s3":
        used = "role_arn" if settings.s3.role_arn else "profile" if settings.s3.profile else ""
        return f"objects.s3.{used or 'access_key'}"
    if settings.store == "gcs":
        used = "credentials_json" if settings.gcs.credentials_json else "credentials_path"
        return f"objects.gcs.{used}"
    return "objects.azblob.account_key" if settings.store == "azblob" else _ROOT


def endpoint_of(given: str, *, setting: str, allow_http: bool) -> str:
    """Return the URL of a store's section, with references looked up; empty if there is none.

    Raises:
        InvalidRequest: if it is no URL of a server, or has no TLS and may not be without.
    """
    name = f"objects.{setting}.endpoint"
    text = resolve(given, setting=name).strip().rstrip("/")
    if not text:
        return ""
    try:
        parts = urlsplit(text)
        usable = bool(parts.hostname) and parts.port != 0 and not parts.username
    except ValueError:
        usable = False
    if not usable or parts.scheme not in {"http", "https"} or not text.isprintable() or " " in text:
        raise InvalidRequest("endpoint must be http(s)://host[:port]", setting=name)
    if parts.query or parts.fragment:
        raise InvalidRequest("endpoint must have no ? or #", setting=name)
    if parts.scheme == "http" and not allow_http:
        raise InvalidRequest(
            "endpoint has no TLS: use https, or set allow_http",
            setting=f"objects.{setting}.allow_http",
            endpoint=text,
        )
    return text
