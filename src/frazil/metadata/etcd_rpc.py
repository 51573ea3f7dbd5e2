"""Calls to etcd's servers: the choice of server, deadlines, and the meaning of errors.

The one module that imports grpc. An error says whether the call may have had an effect. A call
that changes data is sent once; it is sent to another server only if the first one surely did not
take it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit

import grpc

from frazil.config import resolve
from frazil.errors import Closed, InvalidRequest, Overloaded, Unavailable
from frazil.fs import read_file
from frazil.metadata.proto import etcd_pb2 as wire

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from frazil.clock import Clock
    from frazil.config import EtcdSettings

__all__ = ["Compacted", "EtcdServers", "LeaseGone", "TooLarge"]

RECEIVE_BYTES_MAX: Final = 48 << 20
FILE_BYTES_MAX: Final = 1 << 20
PORT_DEFAULT: Final = 2379
TIMEOUT_S: Final = 5.0
"""The deadline of a call."""
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX),
    # A server that returns, and a connection that died, are noticed soon.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Setting up a connection gets at least this time: a busy machine may need a second.
    ("grpc.min_reconnect_backoff_ms", 2000),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)
# These answers mean that nothing was done. After a broken connection the outcome is unknown.
_NOT_DONE: Final = (
    "failed to connect",
    "connection refused",
    "no leader",
    "not capable",
    "is a learner",
    "too many requests",
)
_USER_ERRORS: Final = ("auth", "user name", "permission denied")


R = TypeVar("R", bound="Message")
T = TypeVar("T")


class Compacted(Exception):
    """The requested revision is older than the servers keep."""


class LeaseGone(Exception):
    """The servers do not know the lease, or not any more."""


class TooLarge(Exception):
    """The answer is larger than the limit for one answer."""


class _Server(NamedTuple):
    url: str
    channel: grpc.Channel


class EtcdServers:
    """The servers of one etcd cluster. All methods may be called from any thread."""

    def __init__(self, settings: EtcdSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._current = 0
        self._token = ""
        self._closed = False
        self._password = resolve(settings.password, setting="metadata.etcd.password")
        urls = [url for text in settings.endpoints.split(",") if (url := text.strip())]
        if not urls:
            raise InvalidRequest("etcd needs a server", setting="metadata.etcd.endpoints")
        secure = any(url.startswith("https://") for url in urls)
        credentials = _credentials(settings) if secure else None
        self._servers = [_Server(url, _channel(url, credentials)) for url in urls]

    def check_open(self) -> None:
        """Raise `Closed` after `close`."""
        if self._closed:
            raise Closed("metadata store is closed")

    def close(self) -> None:
        """End all calls and connections."""
        self._closed = True
        for server in self._servers:
            server.channel.close()

    def read(self, method: str, request: Message, response: type[R]) -> R:
        """Make a call without effects; try one server after another until the deadline."""
        return self._each(method, request, response, changes=False, timeout_s=TIMEOUT_S)

    def change(
        self, method: str, request: Message, response: type[R], *, timeout_s: float | None = None
    ) -> R:
        """Make a call that changes data.

        Raises:
            Unavailable: with `outcome="unknown"` if the change may have been made.
        """
        limit_s = TIMEOUT_S if timeout_s is None else timeout_s
        return self._each(method, request, response, changes=True, timeout_s=limit_s)

    def keep_alive(self, lease_id: int, *, timeout_s: float) -> int:
        """Extend a lease; return its new duration in seconds, 0 if it is gone."""
        request = wire.LeaseKeepAliveRequest(id=lease_id)

        def call(server: _Server, timeout_s: float) -> int:
            stream = server.channel.stream_stream(
                "/etcdserverpb.Lease/LeaseKeepAlive",
                request_serializer=wire.LeaseKeepAliveRequest.SerializeToString,
                response_deserializer=wire.LeaseKeepAliveResponse.FromString,
            )(iter([request]), timeout=timeout_s, metadata=self._metadata())
            try:
                answer: wire.LeaseKeepAliveResponse = next(stream)
                return answer.ttl
            finally:
                stream.cancel()

        # Extending a lease twice does no harm.
        limit_s = min(TIMEOUT_S, timeout_s)
        return self._tries(call, what="LeaseKeepAlive", changes=False, timeout_s=limit_s)

    def _each(
        self, method: str, request: Message, response: type[R], *, changes: bool, timeout_s: float
    ) -> R:
        def call(server: _Server, limit_s: float) -> R:
            answer: R = server.channel.unary_unary(
                f"/etcdserverpb.{method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=response.FromString,
            )(request, timeout=limit_s, metadata=self._metadata())
            return answer

        return self._tries(call, what=method, changes=changes, timeout_s=timeout_s)

    def _tries(
        self, call: Callable[[_Server, float], T], *, what: str, changes: bool, timeout_s: float
    ) -> T:
        self.check_open()
        deadline = self._clock.monotonic() + timeout_s
        tries = max(2, len(self._servers))
        for left in range(tries - 1, -1, -1):
            index = self._current
            server = self._servers[index]
            rest_s = max(deadline - self._clock.monotonic(), 0.01)
            # A hanging server must leave time for the others, unless it has taken a change.
            limit_s = rest_s if changes or len(self._servers) == 1 else rest_s / (left + 1)
            try:
                self._log_in(server, limit_s)
                return call(server, limit_s)
            except ValueError:
                # grpc raises this for a connection that another thread has closed.
                self.check_open()
                raise
            except grpc.RpcError as error:
                if not left or not self._may_go_on(error, index, changes=changes):
                    raise _meaning(error, what=what, url=server.url, changes=changes) from error
        raise AssertionError("the last try returns or raises")

    def _may_go_on(self, error: grpc.RpcError, index: int, *, changes: bool) -> bool:
        code = error.code()
        if code is grpc.StatusCode.UNAUTHENTICATED:
            self._token = ""
            return True
        if code not in (
            grpc.StatusCode.UNAVAILABLE,
            grpc.StatusCode.DEADLINE_EXCEEDED,
            grpc.StatusCode.UNKNOWN,
        ):
            return False
        if index == self._current:
            # Later calls start at the next server, unless another thread has switched already.
            self._current = (index + 1) % len(self._servers)
        return not changes or _is_not_done(error)

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (("token", self._token),) if self._token else ()

    def _log_in(self, server: _Server, timeout_s: float) -> None:
        if not self._settings.user or self._token:
            return
        answer: wire.AuthenticateResponse = server.channel.unary_unary(
            "/etcdserverpb.Auth/Authenticate",
            request_serializer=wire.AuthenticateRequest.SerializeToString,
            response_deserializer=wire.AuthenticateResponse.FromString,
        )(
            wire.AuthenticateRequest(name=self._settings.user, password=self._password),
            timeout=timeout_s,
        )
        self._token = answer.token


def _is_not_done(error: grpc.RpcError) -> bool:
    return any(map(str(error.details()).lower().__contains__, _NOT_DONE))


def _meaning(error: grpc.RpcError, *, what: str, url: str, changes: bool) -> Exception:
    """Convert an error of a call into one of ours."""
    code, text = error.code(), str(error.details())
    facts: dict[str, object] = {"call": what, "endpoint": url, "error": text}
    status = grpc.StatusCode
    if "lease not found" in text:
        return LeaseGone(text)
    if code is status.OUT_OF_RANGE and "compacted" in text:
        return Compacted(text)
    if "database space exceeded" in text:
        return Overloaded("etcd is full: compact and defragment it", **facts)
    if code is status.RESOURCE_EXHAUSTED and "larger than max" in text:
        return TooLarge(text)
    if code in (status.UNAUTHENTICATED, status.PERMISSION_DENIED) or any(
        map(text.__contains__, _USER_ERRORS)
    ):
        return InvalidRequest(
            "etcd refuses the user, look at metadata.etcd.user and metadata.etcd.password", **facts
        )
    if code is status.INVALID_ARGUMENT:
        return InvalidRequest("etcd refuses the request", **facts)
    if changes and not _is_not_done(error):
        facts["outcome"] = "unknown"
    return Unavailable(
        "etcd does not answer, look at metadata.etcd.endpoints", retry_after_ms=1000, **facts
    )


def _credentials(settings: EtcdSettings) -> grpc.ChannelCredentials:
    if bool(settings.cert_file) != bool(settings.key_file):
        raise InvalidRequest(
            "a certificate needs its key", setting="metadata.etcd.cert_file, metadata.etcd.key_file"
        )
    return grpc.ssl_channel_credentials(
        root_certificates=_content(settings.ca_file, "metadata.etcd.ca_file"),
        private_key=_content(settings.key_file, "metadata.etcd.key_file"),
        certificate_chain=_content(settings.cert_file, "metadata.etcd.cert_file"),
    )


def _content(path: str, setting: str) -> bytes | None:
    if not path:
        return None
    try:
        return read_file(path, FILE_BYTES_MAX)
    except OSError as error:
        raise InvalidRequest(
            "file of a setting cannot be read", setting=setting, path=path, error=error
        ) from error


def _channel(url: str, credentials: grpc.ChannelCredentials | None) -> grpc.Channel:
    parts = urlsplit(url if "://" in url else f"http://{url}")
    try:
        port = parts.port or PORT_DEFAULT
    except ValueError:
        port = 0
    if parts.scheme not in {"http", "https"} or not parts.hostname or not port:
        raise InvalidRequest(
            "an endpoint of etcd is a URL such as http://host:2379",
            setting="metadata.etcd.endpoints",
            endpoint=url,
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    if parts.scheme == "https":
        assert credentials is not None
        return grpc.secure_channel(f"{host}:{port}", credentials, options=_OPTIONS)
    return grpc.insecure_channel(f"{host}:{port}", options=_OPTIONS)
