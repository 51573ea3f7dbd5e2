"""Object stores by configuration: the one module that imports obstore.

The client's own retries are off: a create-only put that it repeated would find its own object and
report a conflict (F25). `RetryingStore` adds retries.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

from frazil.clock import Clock, SystemClock
from frazil.config import SecretText, resolve
from frazil.errors import Closed, Conflict, FrazilError, InvalidRequest, NotFound, Unavailable
from frazil.fs import FileSystem, RealFileSystem
from frazil.objects.failures import failure_of
from frazil.objects.store import LIST_KEYS_MAX, PIECE_BYTES_MAX, ObjectMeta

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig
    from obstore.store import ObjectStore as Client
    from typing_extensions import Buffer

    from frazil.config.objects import ObjectsSettings
    from frazil.objects.store import ObjectStore

__all__ = ["location_of", "open_store"]

CONNECT_TIMEOUT_S: Final = 5.0
LIST_CHUNK: Final = 1_000
_NOBODY: Final = json.dumps(
    {
        "disable_oauth": True,
        "gcs_base_url": "https://storage.googleapis.com",
        **dict.fromkeys(("client_email", "private_key", "private_key_id"), ""),
    }
)
"""A service account that signs nothing."""
_NO_RETRIES: Final[RetryConfig] = {"max_retries": 0}

_SCHEMES: Final = {
    "s3": ("s3", "s3a"),
    "gcs": ("gcs", "gs"),
    "azblob": ("azblob", "az", "azure", "abfs"),
    "fs": ("file", "fs"),
    "memory": ("memory",),
}
_ROOT: Final = "objects.root"

LIFETIME_S: Final = 15 * 60
"""Credentials that do not say when they end are asked for again after this time."""
SESSION_NAME: Final = "frazil"

_memories: Final[dict[str, Client]] = {}
"""The stores in memory by their names: they live as long as the process."""
_memories_mutex: Final = threading.Lock()


class Location(NamedTuple):
    """A bucket or container with a prefix; a directory or name is a prefix without a bucket."""

    bucket: str
    prefix: str


def location_of(settings: ObjectsSettings) -> Location:
    """Return the location of the store, with references looked up.

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
    """Return the setting of the store's credentials, to name in errors."""
    if settings.store == "s3":
        used = "role_arn" if settings.role_arn else "profile" if settings.profile else "access_key"
        return f"objects.{used}"
    return {"gcs": "objects.credentials", "azblob": "objects.account_key"}.get(
        settings.store, _ROOT
    )


def endpoint_of(settings: ObjectsSettings) -> str:
    """Return the URL of the store's server, with references looked up; empty if there is none.

    Raises:
        InvalidRequest: if it is no URL of a server, or has no TLS and may not be without.
    """
    name = "objects.endpoint"
    text = resolve(settings.endpoint, setting=name).strip().rstrip("/")
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
    if parts.scheme == "http" and not settings.allow_http:
        raise InvalidRequest(
            "endpoint has no TLS: use https, or set allow_http",
            setting="objects.allow_http",
            endpoint=text,
        )
    return text


def open_store(settings: ObjectsSettings, *, clock: Clock | None = None) -> ObjectStore:
    """Return the store that the settings name; nothing is asked of it yet.

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
    """Return what clients raise; the roots of their errors are several."""
    from obstore.exceptions import BaseError

    return (BaseError, OSError, ValueError)


@contextlib.contextmanager
def _panics_reported() -> Iterator[None]:
    """Raise a panic of the client as `Unavailable`: it is no `Exception` and would end threads."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ == "PanicException":
            raise Unavailable(
                "client of the store failed, which is a bug", reason=error, outcome="unknown"
            ) from error
        raise


class _CheckedPieces:
    """Pieces on their way to the client, checked and counted.

    Attributes:
        size: bytes so far.
        failure: the error of the pieces' iterator: the client hides it.
    """

    def __init__(self, pieces: Iterable[Buffer], key: str) -> None:
        self._pieces = pieces
        self._key = key
        self.size = 0
        self.failure: BaseException | None = None

    def __iter__(self) -> Iterator[Buffer]:
        try:
            for piece in self._pieces:
                self._check(piece)
                yield piece
        except GeneratorExit:
            raise
        except BaseException as error:
            # Raised while the client waits for more: it cannot complete the object.
            self.failure = error
            raise

    def _check(self, piece: Buffer) -> None:
        length = memoryview(piece).nbytes
        if length > PIECE_BYTES_MAX:
            raise InvalidRequest("piece is too large", key=self._key, size=length)
        self.size += length


class ClientStore:
    """An `ObjectStore` over a client of obstore."""

    def __init__(self, client: Client, kind: str, *, clock: Clock, credentials: str = "") -> None:
        """Wrap a client; `credentials` is the setting to blame if they are refused."""
        self._client: Client | None = client
        self._credentials = credentials
        self._kind = kind
        self._clock = clock

    @_panics_reported()
    def put(self, key: str, data: Buffer) -> ObjectMeta:
        import obstore

        size = memoryview(data).nbytes
        if size > PIECE_BYTES_MAX:
            raise InvalidRequest("object is too large for one request", key=key, size=size)
        client = self._open()
        try:
            result = obstore.put(client, key, data, mode="create", use_multipart=False)
        except _client_errors() as error:
            raise self._put_failure(error, key) from error
        return ObjectMeta(key, size, _etag(result["e_tag"]), self._clock.now_us())

    @_panics_reported()
    def put_stream(self, key: str, pieces: Iterable[Buffer]) -> ObjectMeta:
        import obstore

        client = self._open()
        checked = _CheckedPieces(pieces, key)
        try:
            result = obstore.put(
                client, key, iter(checked), chunk_size=PIECE_BYTES_MAX, max_concurrency=1
            )
        except _client_errors() as error:
            if checked.failure is not None:
                raise checked.failure from None
            raise self._failure(error, "put_stream", key) from error
        return ObjectMeta(key, checked.size, _etag(result["e_tag"]), self._clock.now_us())

    @_panics_reported()
    def get(self, key: str, *, start: int, length: int) -> bytes:
        import obstore

        client = self._open()
        if not length:
            meta = self.head(key)
            if meta is None or start > meta.size:
                raise NotFound("object is not there or ends before", key=key, start=start)
            return b""
        try:
            found = bytes(obstore.get_range(client, key, start=start, length=length))
        except _client_errors() as error:
            raise self._failure(error, "get", key) from error
        if len(found) != length:
            raise NotFound("object ends before", key=key, start=start, length=length)
        return found

    @_panics_reported()
    def head(self, key: str) -> ObjectMeta | None:
        import obstore

        client = self._open()
        try:
            return _meta(obstore.head(client, key))
        except _client_errors() as error:
            failure = self._failure(error, "head", key)
            if isinstance(failure, NotFound):
                return None
            raise failure from error

    @_panics_reported()
    def list(self, prefix: str, *, after: str = "", limit: int = LIST_KEYS_MAX) -> list[ObjectMeta]:
        client = self._open()
        try:
            return list(itertools.islice(self._listed(client, prefix, after), limit))
        except _client_errors() as error:
            failure = self._failure(error, "list")
            if isinstance(failure, NotFound):
                return []
            raise failure from error

    def _listed(self, client: Client, prefix: str, after: str) -> Iterator[ObjectMeta]:
        """Yield objects in order. Stores list by whole steps of the path, and so by more."""
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

    @_panics_reported()
    def delete(self, keys: Sequence[str]) -> None:
        import obstore

        client = self._open()
        # In bulk, an absent object may stop the rest: then each is removed on its own.
        for each in [list(keys)] if self._kind == "s3" else [[key] for key in keys]:
            try:
                if each:
                    obstore.delete(client, each)
            except _client_errors() as error:
                failure = self._failure(error, "delete", each[0])
                if not isinstance(failure, NotFound):
                    raise failure from error

    def close(self) -> None:
        self._client = None

    def _open(self) -> Client:
        if self._client is None:
            raise Closed("object store is closed")
        return self._client

    def _failure(self, error: Exception, verb: str, key: str = "") -> FrazilError:
        return failure_of(error, kind=self._kind, verb=verb, key=key, credentials=self._credentials)

    def _put_failure(self, error: Exception, key: str) -> FrazilError:
        """Tell an object that is there from another write that is under way (409, F25)."""
        if type(error).__name__ != "AlreadyExistsError":
            failure = self._failure(error, "put", key)
            if isinstance(failure, NotFound):
                return InvalidRequest(
                    "store has no such bucket or directory", setting="objects.root", key=key
                )
            return failure
        if self.head(key) is None:
            return Unavailable("another write of this key is under way", key=key, store=self._kind)
        return Conflict("object exists", key=key, store=self._kind)


class DirectoryStore(ClientStore):
    """A directory as a store: what the client wrote is synced before a put returns.

    It may lie on a disk or share that is taken away. The client would make the directory anew
    where that was; so it has to stay the one that it was at the opening.
    """

    def __init__(
        self, client: Client, directory: str, *, clock: Clock, files: FileSystem | None = None
    ) -> None:
        super().__init__(client, "fs", clock=clock)
        self._directory = directory
        self._files = files or RealFileSystem()
        self._number = self._number_now()

    def _open(self) -> Client:
        client = super()._open()
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
            # It may be ours, from before a crash, and not on the disk yet.
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


def _etag(given: str | None) -> str:
    """Return a mark without its quotes: some stores have them in one answer and not in another."""
    return (given or "").strip('"')


def _meta(found: Any) -> ObjectMeta:
    modified_us = round(found["last_modified"].timestamp() * 1_000_000)
    return ObjectMeta(found["path"], found["size"], _etag(found["e_tag"]), modified_us)


# -- clients of each kind -----------------------------------------------------------------------


def _options(settings: ObjectsSettings) -> ClientConfig:
    return {
        "allow_http": settings.allow_http,
        "connect_timeout": dt.timedelta(seconds=CONNECT_TIMEOUT_S),
        "timeout": dt.timedelta(seconds=settings.request_timeout_s),
    }


def _text(value: str | SecretText, setting: str) -> str:
    return resolve(value, setting=f"objects.{setting}")


def _word(value: str | SecretText, setting: str) -> str:
    """Return a setting that goes into the head of requests.

    Raises:
        InvalidRequest: if it cannot: a line's end that came with a secret, or a letter beyond ASCII.
    """
    text = _text(value, setting)
    if not _is_word(text):
        raise InvalidRequest(
            "setting has a space, a line's end or a letter that no request can have",
            setting=f"objects.{setting}",
        )
    return text


def _is_word(text: str) -> bool:
    return text.isascii() and text.isprintable() and " " not in text


def _check_environment() -> None:
    """Refuse credentials of the environment that no request can have; the client would panic."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION"):
        if not _is_word(os.environ.get(name, "")):
            raise InvalidRequest(
                "variable has a space, a line's end or a letter that no request can have",
                setting="objects.region" if "REGION" in name else "objects.access_key",
                variable=name,
            )


def _s3(settings: ObjectsSettings, location: Location) -> Client:
    from obstore.store import S3Store

    config: dict[str, Any] = {"virtual_hosted_style_request": not settings.path_style}
    endpoint = endpoint_of(settings)
    if endpoint:
        scheme, _, host = endpoint.partition("://")
        config["endpoint"] = (
            endpoint if settings.path_style else f"{scheme}://{location.bucket}.{host}"
        )
    region = _word(settings.region, "region")
    if region:
        config["region"] = region
    elif not {"AWS_REGION", "AWS_DEFAULT_REGION"} & os.environ.keys():
        config["region"] = "us-east-1"
    if settings.anonymous:
        config["skip_signature"] = True
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

    Keys that are written out do not go through the client's own settings: there they would be
    mixed with a token of the environment that belongs to other keys.
    """
    access_key = _word(settings.access_key, "access_key")
    secret_key = _word(settings.secret_key, "secret_key")
    token = _word(settings.session_token, "session_token")
    profile = _text(settings.profile, "profile")
    role = _text(settings.role_arn, "role_arn")
    if settings.anonymous:
        return None
    if profile or role:
        return _boto_credentials(
            access_key=access_key, secret_key=secret_key, token=token, profile=profile, role=role
        )
    if not access_key:
        _check_environment()
        return None

    def static() -> dict[str, Any]:
        return {
            "access_key_id": access_key,
            "secret_access_key": secret_key,
            "token": token or None,
            "expires_at": None,
        }

    return static


def _boto_credentials(
    *, access_key: str, secret_key: str, token: str, profile: str, role: str
) -> Callable[[], dict[str, Any]]:
    """Return a function that gives credentials with their end, asked again before that.

    Raises:
        InvalidRequest: if boto3 is not installed or there is no such profile; the function raises
            it if the role cannot be assumed.
    """
    setting = "objects.role_arn" if role else "objects.profile"
    try:
        import boto3
        import botocore.exceptions
    except ImportError as error:
        raise InvalidRequest(
            "profiles and roles need boto3: pip install boto3", setting=setting
        ) from error
    try:
        session = boto3.Session(
            aws_access_key_id=access_key or None,
            aws_secret_access_key=secret_key or None,
            aws_session_token=token or None,
            profile_name=profile or None,
        )
        own = session.get_credentials()
    except botocore.exceptions.BotoCoreError as error:
        raise InvalidRequest(
            "credentials of the profile cannot be had", setting="objects.profile", reason=error
        ) from error
    if own is None:
        raise InvalidRequest("there are no credentials to start from", setting=setting)

    def of_profile() -> dict[str, Any]:
        frozen = own.get_frozen_credentials()
        end = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=LIFETIME_S)
        return _credential(frozen.access_key, frozen.secret_key, frozen.token, end)

    def of_role() -> dict[str, Any]:
        try:
            answer = session.client("sts", region_name=session.region_name or "us-east-1")
            found = answer.assume_role(RoleArn=role, RoleSessionName=SESSION_NAME)["Credentials"]
        except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as error:
            raise InvalidRequest(
                "role cannot be assumed", setting="objects.role_arn", reason=error
            ) from error
        return _credential(
            found["AccessKeyId"],
            found["SecretAccessKey"],
            found["SessionToken"],
            found["Expiration"].astimezone(dt.UTC),
        )

    return of_role if role else of_profile


def _credential(
    access_key: str, secret_key: str, token: str | None, end: dt.datetime
) -> dict[str, Any]:
    return {
        "access_key_id": access_key,
        "secret_access_key": secret_key,
        "token": token,
        "expires_at": end,
    }


def _gcs(settings: ObjectsSettings, location: Location) -> Client:
    from obstore.store import GCSStore

    config: dict[str, Any] = {}
    endpoint = endpoint_of(settings)
    if endpoint:
        config["base_url"] = endpoint
    credentials = _text(settings.credentials, "credentials").strip()
    if credentials:
        is_json = credentials.startswith("{")
        config["service_account_key" if is_json else "service_account"] = credentials
    if settings.anonymous:
        # Some requests of the client ask the machine for a token in spite of the first.
        config |= {"skip_signature": True, "service_account_key": _NOBODY}
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


def _fs(settings: ObjectsSettings, location: Location) -> Client:
    from obstore.store import LocalStore

    del settings
    return LocalStore(location.prefix, mkdir=True)


def _memory(settings: ObjectsSettings, location: Location) -> Client:
    from obstore.store import MemoryStore

    del settings
    with _memories_mutex:
        return _memories.setdefault(location.prefix, MemoryStore())


_CLIENTS: Final = {"s3": _s3, "gcs": _gcs, "azblob": _azblob, "fs": _fs, "memory": _memory}
