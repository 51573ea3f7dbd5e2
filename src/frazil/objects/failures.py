"""Texts of the store client's errors become errors of the tree (F21, F24, F25).

The client reports a failure as a text alone: with a status, a code of the store, or the way the
connection failed. This module maps the text to an error and to the setting that caused it.
"""

from __future__ import annotations

import re
from typing import Final

from frazil.errors import FrazilError, InvalidRequest, NotFound, Unavailable

__all__ = ["THROTTLED_MS", "failure_of"]

THROTTLED_MS: Final = 1_000
"""The pause of a throttled call; no store says how long it should be."""

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>|\"code\": ?\"(\w+)\"|\"reason\": ?\"(\w+)\"")
_WORDS: Final = re.compile(
    r"<Message>([^<]*)</Message>|\"message\": ?\"([^\"]*)\"|\"error_description\": ?\"([^\"]*)\""
)
_CONNECTION: Final = re.compile(r"HttpError \{\s*kind: (\w+)")
_ASKED_FOR_KEYS: Final = re.compile(
    r"Error performing \w+ \S*(/latest/api/token|/latest/meta-data|/v2/credentials|computeMetadata"
    r"|/metadata/identity|oauth2|sts\.)"
)
_PROVIDER: Final = re.compile(r"External \w+ credential provider")
_SETTING: Final = re.compile(r"setting=(objects\.[a-z0-9_.]+)")

_RANGE: Final = re.compile(r"\bInvalidRange\w* \{|\bStartTooLarge\b|Range started after end")

_THROTTLES: Final = {"SlowDown", "Throttling", "ThrottlingException", "ServerBusy"}
_NO_BUCKET: Final = {"NoSuchBucket", "ContainerNotFound", "InvalidBucketName"}
_NO_BUCKET_WORDS: Final = ("bucket does not exist", "container does not exist")

_BLAMED: Final = {
    "InvalidAccessKeyId": ("store does not know the access key", "objects.access_key"),
    "SignatureDoesNotMatch": ("store refuses the signature", "objects.secret_key"),
    "ExpiredToken": ("credentials have expired", "objects.session_token"),
    "InvalidToken": ("store refuses the token", "objects.session_token"),
    "AuthorizationHeaderMalformed": ("store is in another region", "objects.region"),
    "PermanentRedirect": ("bucket is in another region", "objects.region"),
    "RequestTimeTooSkewed": ("the clock of this machine is wrong", "objects.access_key"),
    "AuthenticationFailed": ("store refuses the account's key", "objects.account_key"),
}
"""What the codes of stores say, and the setting that each of them blames."""


def failure_of(
    error: BaseException, *, kind: str, verb: str, key: str = "", credentials: str = ""
) -> FrazilError:
    """Return what to raise for an error of the store's client.

    Args:
        error: what the client raised.
        kind: the kind of the store, as `objects.store` names it.
        verb: the method of `ObjectStore` that was called; a `put` may have happened in spite of it.
        key: the object that it was about.
        credentials: the setting that credentials come from, to blame if they are refused.
    """
    text = str(error)
    credentials = credentials or "objects.root"
    if verb == "open":
        return _unopened(text, kind, credentials)
    status = _first(_STATUS, text)
    code = _first(_CODE, text)
    facts: dict[str, object] = {"store": kind}
    if key:
        facts["key"] = key
    if status:
        facts["status"] = int(status)
    if code:
        facts["code"] = code
    if _ASKED_FOR_KEYS.search(text) or _PROVIDER.search(text):
        facts["reason"] = _reason(text)
        return _no_credentials(text, status, credentials=credentials, facts=facts)
    if code in _NO_BUCKET or any(words in text for words in _NO_BUCKET_WORDS):
        return InvalidRequest("bucket or container does not exist", setting="objects.root", **facts)
    if isinstance(error, FileNotFoundError) or status in {"404", "416"} or _RANGE.search(text):
        return NotFound("object is not there or ends before", **facts)
    facts["reason"] = _reason(text)
    if code in _THROTTLES or status == "429":
        return Unavailable("store throttles requests", **facts, retry_after_ms=THROTTLED_MS)
    if code in _BLAMED:
        message, setting = _BLAMED[code]
        return InvalidRequest(message, setting=setting, **facts)
    if "incorrectly configured region" in text:
        return InvalidRequest("bucket is in another region", setting="objects.region", **facts)
    if status in {"401", "403"} or "Permission denied" in text or "PermissionDenied" in text:
        return InvalidRequest("store does not allow this", setting=credentials, **facts)
    return _by_status(text, status, kind=kind, verb=verb, facts=facts)


def _unopened(text: str, kind: str, credentials: str) -> FrazilError:
    """Return the error of a client that could not be made: a setting has no sense to it."""
    setting = "objects.root" if kind in {"fs", "memory"} else "objects.endpoint"
    words = ("redential", "Access Key", "service account", "pem file")
    if any(each in text for each in words):
        setting = credentials
    return InvalidRequest("store cannot be opened", setting=setting, reason=_reason(text))


def _no_credentials(
    text: str, status: str, *, credentials: str, facts: dict[str, object]
) -> FrazilError:
    """Return the error of a client that asked for credentials and got none.

    Our own providers say which setting is to blame, but the client keeps only their text.
    """
    setting = _first(_SETTING, text) or credentials
    if status.startswith("4") or _PROVIDER.search(text):
        return InvalidRequest("credentials are refused", setting=setting, **facts)
    return Unavailable("no credentials are set or found", setting=setting, **facts)


def _by_status(
    text: str, status: str, *, kind: str, verb: str, facts: dict[str, object]
) -> FrazilError:
    """Return the error of a store that gave no code that is known here."""
    writes = {"outcome": "unknown"} if verb in {"put", "put_stream", "delete"} else {}
    endpoint = "objects.root" if kind in {"fs", "memory"} else "objects.endpoint"
    if status == "503":
        return Unavailable(
            "store throttles requests", **facts, retry_after_ms=THROTTLED_MS, **writes
        )
    if status.startswith("5") or status in {"408", "409"}:
        return Unavailable("store failed", **facts, **writes)
    if status:
        return InvalidRequest("store refuses the request", setting=endpoint, **facts)
    if "BadScheme" in text:
        setting = "objects.allow_http"
        return InvalidRequest("endpoint has no TLS", setting=setting, **facts)
    if _first(_CONNECTION, text) == "Connect":
        # Nothing was sent, so nothing can have happened.
        return Unavailable("store cannot be reached", setting=endpoint, **facts)
    if _first(_CONNECTION, text) == "Timeout":
        return Unavailable("store did not answer in time", setting=endpoint, **facts, **writes)
    return Unavailable("call of the store failed", setting=endpoint, **facts, **writes)


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return "" if found is None else next(group for group in found.groups() if group is not None)


def _reason(text: str) -> str:
    """Return the store's own words, else the end of the error's first line."""
    words = _first(_WORDS, text)
    if words:
        return words
    return text.partition("\n")[0].rpartition(" - ")[2].strip()
