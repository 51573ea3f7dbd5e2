"""Object stores by configuration: the one module that imports obstore.

The client's own retries are off: a repeated create-only put would find its own object and report a
conflict (F25). `RetryingStore` adds retries. The client reports a failure only as text, with a
status, a code of the store, or the cause of a failed connection. `failure_of` maps the text to an
error and to the setting that caused it (F21, F24, F25).
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import json
import os
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from frazil.clock import Clock, SystemClock
from frazil.config import SecretText, resolve
from frazil.errors import Closed, Conflict, FrazilError, InvalidRequest, NotFound, Unavailable
from frazil.fs import FileSystem, RealFileSystem
from frazil.objects.store import LIST_KEYS_MAX, PART_BYTES, PIECE_BYTES_MAX, ObjectMeta

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig
    from obstore.store import ObjectStore as Client
    from typing_extensions import Buffer

    from frazil.config.objects import ObjectsSettings
    from frazil.objects.store import ObjectStore

__all__ = ["location_of", "open_store"]

CONNECT_TIMEOUT_S: Final = 5.0
REQUEST_TIMEOUT_S: Final = 30.0
LIST_CHUNK: Final = 1_000
UNSIGNED: Final = "none"
"""Google's credentials for unsigned requests."""
_NOBODY: Final = json.dumps(
    {
        "disable_oauth": True,
        "gcs_base_url": "https://storage.googleapis.com",
        **dict.fromkeys(("client_email", "private_key", "private_key_id"), ""),
    }
)
"""A service account that does not sign requests."""
_NO_RETRIES: Final[RetryConfig] = {"max_retries": 0}

_SCHEMES: Final = {
    "s3": ("s3", "s3a"),
    "gcs": ("gcs", "gs"),
    "azblob": ("azblob", "az", "azure", "abfs"),
    "fs": ("file", "fs"),
    "memory": ("memory",),
}
_ROOT: Final = "objects.root"
_ENDPOINT: Final = re.compile(
    r"(?P<scheme>https?)://([\w.-]+|\[[\da-f:.]+\])(:(?P<port>\d{1,5}))?(/[\w./~%+-]*)?",
    re.ASCII | re.IGNORECASE,
)
PORT_MAX: Final = 65_535

_memories: Final[dict[str, Client]] = {}
"""The stores in memory by name; they exist as long as the process."""
_memories_mutex: Final = threading.Lock()


class Location(NamedTuple):
    """A bucket or container with a prefix; a directory or name is a prefix without a bucket."""

    bucket: str
    prefix: str


def location_of(settings: ObjectsSettings) -> Location:
    """Return the location of the store, with references looked up.

    Raises:
        InvalidRequest: if no store is set, or its root is not valid.
    """
    if settings.store == "none":
        raise InvalidRequest("no object store is set", setting="objects.store")
    root = resolve(settings.root, setting=_ROOT).strip()
    scheme, sign, rest = root.rpartition("://")
    if sign and scheme.lower() not in _SCHEMES[settings.store]:
        raise InvalidRequest(
            "root has the scheme of another store", setting=_ROOT, root=root, store=settings.store
        )
    if not rest:
        raise InvalidRequest("root is empty", setting=_ROOT, root=root)
    if settings.store == "fs":
        return Location("", os.path.abspath(os.path.expanduser(rest)))
    if settings.store == "memory":
        return Location("", rest.strip("/"))
    bucket, _, prefix = rest.partition("/")
    steps = [step for step in prefix.split("/") if step]
    if not bucket or {".", ".."} & set(steps):
        raise InvalidRequest("root must be bucket/prefix", setting=_ROOT, root=root)
    return Location(bucket, "/".join(steps))


def credentials_setting(settings: ObjectsSettings) -> str:
    """Return the name of the setting of the store's credentials, for errors."""
    used = "profile" if settings.profile else "access_key"
    names = {"s3": used, "gcs": "credentials", "azblob": "account_key"}
    return f"objects.{names.get(settings.store, 'root')}"


def endpoint_of(settings: ObjectsSettings) -> str:
    """Return the URL of the store's server, with references looked up; empty if there is none.

    Raises:
        InvalidRequest: if it is not a server's URL, or lacks TLS without `allow_http`.
    """
    name = "objects.endpoint"
    text = resolve(settings.endpoint, setting=name).strip().rstrip("/")
    if not text:
        return ""
    found = _ENDPOINT.fullmatch(text)
    if found is None or not 0 < int(found["port"] or 443) <= PORT_MAX:
        raise InvalidRequest("endpoint must be http(s)://host[:port]", setting=name)
    if found["scheme"].lower() == "http" and not settings.allow_http:
        raise InvalidRequest(
            "endpoint has no TLS: use https, or set allow_http",
            setting="objects.allow_http",
            endpoint=text,
        )
    return text


def open_store(settings: ObjectsSettings, *, clock: Clock | None = None) -> ObjectStore:
    """Return the store that the settings name; no request is sent yet.

    Raises:
        InvalidRequest: if a setting is wrong (`setting` names it), or obstore is not installed.
    """
    try:
        import obstore as _  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise InvalidRequest(
            "object stores need the extra objects: pip install 'frazil[objects]'",
            setting="objects.store",
        ) from error
    location = location_of(settings)
    credentials = credentials_setting(settings)
    try:
        client = _CLIENTS[settings.store](settings, location)
    except _client_errors() as error:
        raise failure_of(
            error, kind=settings.store, verb="open", credentials=credentials
        ) from error
    if settings.store == "fs":
        return DirectoryStore(client, location.prefix, clock=clock or SystemClock())
    return ClientStore(
        client, settings.store, clock=clock or SystemClock(), credentials=credentials
    )


def _client_errors() -> tuple[type[Exception], ...]:
    """Return the base classes of the client's errors; it has several."""
    from obstore.exceptions import BaseError

    return (BaseError, OSError, ValueError)


class ClientStore:
    """An `ObjectStore` over a client of obstore."""

    def __init__(self, client: Client, kind: str, *, clock: Clock, credentials: str = "") -> None:
        """Wrap a client; errors name the setting `credentials` if credentials are refused."""
        self._client: Client | None = client
        self._credentials = credentials
        self._kind = kind
        self._clock = clock

    def put(self, key: str, data: Buffer) -> ObjectMeta:
        import obstore

        size = memoryview(data).nbytes
        _check_piece(key, size)
        try:
            with self._calling("put", key) as client:
                result = obstore.put(client, key, data, mode="create", use_multipart=False)
        except Conflict as error:
            # A 409 means that the object exists, or that another write is in progress (F25).
            if self.head(key) is None:
                raise Unavailable("another write of this key is under way", key=key) from error
            raise
        return ObjectMeta(key, size, _etag(result["e_tag"]), self._clock.now_us())

    def put_stream(self, key: str, pieces: Iterable[Buffer]) -> ObjectMeta:
        import obstore

        failures: list[BaseException] = []
        sizes: list[int] = []

        def counted() -> Iterator[Buffer]:
            try:
                for piece in pieces:
                    sizes.append(memoryview(piece).nbytes)
                    _check_piece(key, sizes[-1])
                    yield piece
            except Exception as error:
                # Raised while the client waits for more bytes, so it cannot complete the object.
                failures.append(error)
                raise

        try:
            with self._calling("put_stream", key) as client:
                result = obstore.put(
                    client, key, counted(), chunk_size=PART_BYTES, max_concurrency=1
                )
        except FrazilError:
            if failures:
                # The client hides the error of the pieces.
                raise failures[0] from None
            raise
        return ObjectMeta(key, sum(sizes), _etag(result["e_tag"]), self._clock.now_us())

    def get(self, key: str, *, start: int, length: int) -> bytes:
        import obstore

        if not length:
            meta = self.head(key)
            if meta is None or start > meta.size:
                raise NotFound("object is not there or ends before", key=key, start=start)
            return b""
        with self._calling("get", key) as client:
            found = bytes(obstore.get_range(client, key, start=start, length=length))
        if len(found) != length:
            raise NotFound("object ends before", key=key, start=start, length=length)
        return found

    def head(self, key: str) -> ObjectMeta | None:
        import obstore

        try:
            with self._calling("head", key) as client:
                return _meta(obstore.head(client, key))
        except NotFound:
            return None

    def list(self, prefix: str, *, after: str = "", limit: int = LIST_KEYS_MAX) -> list[ObjectMeta]:
        try:
            with self._calling("list") as client:
                return list(itertools.islice(self._listed(client, prefix, after), limit))
        except NotFound:
            return []

    def _listed(self, client: Client, prefix: str, after: str) -> Iterator[ObjectMeta]:
        """Yield objects in order. Stores list whole path segments, so results are filtered here."""
        import obstore

        folder = prefix.rpartition("/")[0]
        pages = obstore.list(client, folder or None, offset=after or None, chunk_size=LIST_CHUNK)
        found: Iterable[ObjectMeta] = (_meta(each) for page in pages for each in page)
        if self._kind in {"fs", "memory"}:
            found = sorted(found)
        for meta in found:
            if meta.key.startswith(prefix) and meta.key > after:
                yield meta
            elif meta.key > prefix and not meta.key.startswith(prefix):
                return

    def delete(self, keys: Sequence[str]) -> None:
        import obstore

        self._opened()
        # An absent object may abort a bulk removal: then each object is removed separately.
        for each in [list(keys)] if self._kind == "s3" else [[key] for key in keys]:
            with (
                contextlib.suppress(NotFound),
                self._calling("delete", "".join(each[:1])) as client,
            ):
                if each:
                    obstore.delete(client, each)

    def close(self) -> None:
        self._client = None

    def _opened(self) -> Client:
        if self._client is None:
            raise Closed("object store is closed")
        return self._client

    @contextlib.contextmanager
    def _calling(self, verb: str, key: str = "") -> Iterator[Client]:
        """Convert the client's errors to Frazil's errors.

        A panic of the client is not an `Exception` and would end threads: it becomes `Unavailable`.
        """
        client = self._opened()
        try:
            yield client
        except _client_errors() as error:
            raise failure_of(
                error, kind=self._kind, verb=verb, key=key, credentials=self._credentials
            ) from error
        except BaseException as error:
            if type(error).__name__ == "PanicException":
                raise Unavailable(
                    "client of the store failed, which is a bug", reason=error, outcome="unknown"
                ) from error
            raise


class DirectoryStore(ClientStore):
    """A directory as a store: an object is synced before a put returns.

    The directory may be on a disk or share that is unmounted later. The client would then create
    the directory again under the mount point, so every call checks that it is still the directory
    of the opening.
    """

    def __init__(
        self, client: Client, directory: str, *, clock: Clock, files: FileSystem | None = None
    ) -> None:
        super().__init__(client, "fs", clock=clock)
        self._directory = directory
        self._files = files or RealFileSystem()
        self._number = self._number_now()

    def _opened(self) -> Client:
        client = super()._opened()
        self._check_directory()
        return client

    def _check_directory(self, **facts: str) -> None:
        number = self._number_now()
        if not number or number != self._number:
            raise Unavailable(
                "directory of the store is not the one that it was: mount or move it back, or "
                "start again if another one is meant",
                setting="objects.root",
                path=self._directory,
                **facts,
            )

    def _number_now(self) -> str:
        """Return the directory's inode number, empty if it does not exist.

        A mount may change the disk's number, never the inode's.
        """
        try:
            found = self._files.stat(self._directory)
        except OSError:
            return ""
        if found is None or not found.is_directory:
            return ""
        return found.identity.rpartition(":")[2]

    def put(self, key: str, data: Buffer) -> ObjectMeta:
        try:
            meta = super().put(key, data)
        except Conflict:
            # The object may be from before a crash and not synced yet.
            self._sync(key)
            raise
        self._sync(key)
        return meta

    def put_stream(self, key: str, pieces: Iterable[Buffer]) -> ObjectMeta:
        meta = super().put_stream(key, pieces)
        self._sync(key)
        return meta

    def _sync(self, key: str) -> None:
        """Make a file and every directory above it durable."""
        path = os.path.join(self._directory, key)
        try:
            with contextlib.closing(self._files.open(path, "write")) as file:
                file.sync()
            for _ in range(key.count("/") + 1):
                path = os.path.dirname(path)
                self._files.sync_directory(path)
            self._files.sync_directory(os.path.dirname(self._directory))
            self._check_directory(key=key, outcome="unknown")
        except OSError as error:
            raise Unavailable(
                "object could not be synced", key=key, reason=error, outcome="unknown"
            ) from error


def _check_piece(key: str, size: int) -> None:
    if size > PIECE_BYTES_MAX:
        raise InvalidRequest("piece is too large for one request", key=key, size=size)


def _etag(given: str | None) -> str:
    """Return an ETag without quotes: some stores quote it in one answer and not in another."""
    return (given or "").strip('"')


def _meta(found: Any) -> ObjectMeta:
    modified_us = round(found["last_modified"].timestamp() * 1_000_000)
    return ObjectMeta(found["path"], found["size"], _etag(found["e_tag"]), modified_us)


# -- failures -----------------------------------------------------------------------------------

THROTTLED_MS: Final = 1_000
"""The pause of a throttled call; no store returns how long it should be."""

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
_RANGE: Final = re.compile(r"\bInvalidRange\w* \{|\bStartTooLarge\b|Range started after end")
_NO_BUCKET: Final = re.compile(
    r"\b(NoSuchBucket|ContainerNotFound|InvalidBucketName|(bucket|container) does not exist)\b"
)
_REGION: Final = "incorrectly configured region"
_DENIED: Final = re.compile(r"status code: 40[13]|Permission ?[dD]enied")
_OPENED_WITH: Final = re.compile(r"redential|Access Key|service account|pem file")

_THROTTLES: Final = {"SlowDown", "Throttling", "ThrottlingException", "ServerBusy"}
_BLAMED: Final = {
    "InvalidAccessKeyId": "objects.access_key",
    "SignatureDoesNotMatch": "objects.secret_key",
    "ExpiredToken": "objects.access_key",
    "InvalidToken": "objects.access_key",
    "AuthorizationHeaderMalformed": "objects.region",
    "PermanentRedirect": "objects.region",
    "RequestTimeTooSkewed": "objects.access_key",
    "AuthenticationFailed": "objects.account_key",
}
"""The setting that causes each error code of a store."""


def failure_of(
    error: BaseException, *, kind: str, verb: str, key: str = "", credentials: str = ""
) -> FrazilError:
    """Return the Frazil error for an error of the store's client.

    Args:
        error: the client's error.
        kind: the kind of the store, as `objects.store` names it.
        verb: the method of `ObjectStore` that was called, or `open`; a write may have succeeded
            despite the error.
        key: the key of the call.
        credentials: the setting of the credentials, named in the error if they are refused.
    """
    text = str(error)
    credentials = credentials or _ROOT
    endpoint = _ROOT if kind in {"fs", "memory"} else "objects.endpoint"
    status, code = _first(_STATUS, text), _first(_CODE, text)
    known = {"key": key, "status": int(status or 0), "code": code}
    facts = {"store": kind, **{name: value for name, value in known.items() if value}}
    facts["reason"] = _first(_WORDS, text) or text.partition("\n")[0].rpartition(" - ")[2].strip()
    if verb == "open":
        setting = credentials if _OPENED_WITH.search(text) else endpoint
        return InvalidRequest("store cannot be opened", setting=setting, reason=facts["reason"])
    if type(error).__name__ == "AlreadyExistsError":
        return Conflict("object exists", key=key, store=kind)
    is_missing = isinstance(error, FileNotFoundError) or status in {"404", "416"}
    return (
        _without_keys(text, status, credentials, facts)
        or _missing(text, verb, facts, is_missing=is_missing)
        or _by_code(text, status, code, credentials, facts)
        or _by_status(text, status, verb, endpoint, facts)
    )


def _without_keys(
    text: str, status: str, credentials: str, facts: dict[str, Any]
) -> FrazilError | None:
    """Return the error of a client without credentials."""
    is_provided = _PROVIDER.search(text)
    if is_provided is None and _ASKED_FOR_KEYS.search(text) is None:
        return None
    if is_provided or status.startswith("4"):
        return InvalidRequest("credentials are refused", setting=credentials, **facts)
    return Unavailable("no credentials are set or found", setting=credentials, **facts)


def _missing(
    text: str, verb: str, facts: dict[str, Any], *, is_missing: bool
) -> FrazilError | None:
    """Return the error of a bucket or an object that does not exist."""
    if _NO_BUCKET.search(text) or (is_missing and verb.startswith("put")):
        return InvalidRequest(
            "bucket, container or directory does not exist", setting=_ROOT, **facts
        )
    if is_missing or _RANGE.search(text):
        return NotFound("object is not there or ends before", **facts)
    return None


def _by_code(
    text: str, status: str, code: str, credentials: str, facts: dict[str, Any]
) -> FrazilError | None:
    """Return the error of a known code."""
    if code in _THROTTLES or status == "429":
        return Unavailable("store throttles requests", **facts, retry_after_ms=THROTTLED_MS)
    blamed = _BLAMED.get(code, "objects.region" if _REGION in text else "")
    if blamed or _DENIED.search(text):
        return InvalidRequest("store refuses the request", setting=blamed or credentials, **facts)
    return None


def _by_status(
    text: str, status: str, verb: str, endpoint: str, facts: dict[str, Any]
) -> FrazilError:
    """Return the error of a failure without a known code."""
    writes: dict[str, Any] = (
        {"outcome": "unknown"} if verb in {"put", "put_stream", "delete"} else {}
    )
    if status == "503":
        writes["retry_after_ms"] = THROTTLED_MS
    if status.startswith("5") or status in {"408", "409"}:
        return Unavailable("store failed", **facts, **writes)
    if status:
        return InvalidRequest("store refuses the request", setting=endpoint, **facts)
    if "BadScheme" in text:
        return InvalidRequest("endpoint has no TLS", setting="objects.allow_http", **facts)
    if _first(_CONNECTION, text) == "Connect":
        # No request was sent, so no write can have happened.
        writes = {}
    return Unavailable("store does not answer", setting=endpoint, **facts, **writes)


def _first(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return "" if found is None else next(group for group in found.groups() if group is not None)


# -- clients of each kind -----------------------------------------------------------------------


def _options(settings: ObjectsSettings) -> ClientConfig:
    return {
        "allow_http": settings.allow_http,
        "connect_timeout": dt.timedelta(seconds=CONNECT_TIMEOUT_S),
        "timeout": dt.timedelta(seconds=REQUEST_TIMEOUT_S),
    }


def _word(value: str | SecretText, setting: str) -> str:
    """Return a setting that is sent in a request's header.

    Raises:
        InvalidRequest: if a header cannot have it: a line end from a secret's file, or a character
            that is not ASCII.
    """
    text = resolve(value, setting=f"objects.{setting}")
    if not _is_word(text):
        raise InvalidRequest(
            "setting has a space, a line end or a character that no request can have",
            setting=f"objects.{setting}",
        )
    return text


def _is_word(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


def _s3(settings: ObjectsSettings, location: Location) -> Client:
    from obstore.store import S3Store

    config: dict[str, Any] = {"virtual_hosted_style_request": not settings.path_style}
    endpoint = endpoint_of(settings)
    if endpoint and not settings.path_style:
        endpoint = endpoint.replace("://", f"://{location.bucket}.")
    if endpoint:
        config["endpoint"] = endpoint
    region = _word(settings.region, "region")
    if region or not {"AWS_REGION", "AWS_DEFAULT_REGION"} & os.environ.keys():
        config["region"] = region or "us-east-1"
    return S3Store(
        location.bucket,
        prefix=location.prefix or None,
        config=config,  # type: ignore[arg-type]  # built key by key
        client_options=_options(settings),
        retry_config=_NO_RETRIES,
        credential_provider=_s3_credentials(settings),
    )


def _s3_credentials(settings: ObjectsSettings) -> Any:
    """Return the provider of credentials; None uses the environment and the machine.

    Keys from the settings are not passed as the client's settings: the client would combine them
    with a token of the environment that belongs to other keys.
    """
    access_key = _word(settings.access_key, "access_key")
    secret_key = _word(settings.secret_key, "secret_key")
    profile = resolve(settings.profile, setting="objects.profile")
    if profile:
        return _profile_credentials(profile)
    if not access_key:
        return None
    keys = {"access_key_id": access_key, "secret_access_key": secret_key}
    return lambda: {**keys, "token": None, "expires_at": None}


def _profile_credentials(profile: str) -> Any:
    """Return the provider of a profile's credentials; a profile may assume a role.

    Raises:
        InvalidRequest: if boto3 is not installed or there is no such profile.
    """
    try:
        import botocore.exceptions
        from boto3 import Session
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError as error:
        raise InvalidRequest(
            "profiles need boto3: pip install boto3", setting="objects.profile"
        ) from error
    try:
        return Boto3CredentialProvider(Session(profile_name=profile))
    except (botocore.exceptions.BotoCoreError, ValueError) as error:
        raise InvalidRequest(
            "credentials of the profile are not available", setting="objects.profile", reason=error
        ) from error


def _gcs(settings: ObjectsSettings, location: Location) -> Client:
    from obstore.store import GCSStore

    config: dict[str, Any] = {}
    endpoint = endpoint_of(settings)
    if endpoint:
        config["base_url"] = endpoint
    credentials = resolve(settings.credentials, setting="objects.credentials").strip()
    if credentials == UNSIGNED:
        # Without this option some requests still fetch a token from the machine.
        config |= {"skip_signature": True, "service_account_key": _NOBODY}
    elif credentials:
        is_json = credentials.startswith("{")
        config["service_account_key" if is_json else "service_account"] = credentials
    return GCSStore(
        location.bucket,
        prefix=location.prefix or None,
        config=config,  # type: ignore[arg-type]  # built key by key
        client_options=_options(settings),
        retry_config=_NO_RETRIES,
    )


def _azblob(settings: ObjectsSettings, location: Location) -> Client:
    from obstore.store import AzureStore

    config: dict[str, Any] = {}
    for name in ("account_name", "account_key"):
        value = _word(getattr(settings, name), name)
        if value:
            config[name] = value
    endpoint = endpoint_of(settings)
    if endpoint:
        config["endpoint"] = endpoint
    return AzureStore(
        location.bucket,
        prefix=location.prefix or None,
        config=config,  # type: ignore[arg-type]  # built key by key
        client_options=_options(settings),
        retry_config=_NO_RETRIES,
    )


def _fs(_settings: ObjectsSettings, location: Location) -> Client:
    from obstore.store import LocalStore

    return LocalStore(location.prefix, mkdir=True)


def _memory(_settings: ObjectsSettings, location: Location) -> Client:
    from obstore.store import MemoryStore

    with _memories_mutex:
        return _memories.setdefault(location.prefix, MemoryStore())


_CLIENTS: Final = {"s3": _s3, "gcs": _gcs, "azblob": _azblob, "fs": _fs, "memory": _memory}
