"""Calls of commands: on the data directory, or over HTTP to the broker that has it open."""

from __future__ import annotations

import contextlib
import http.client
import ssl
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

import msgspec
import typer

from frazil.config import is_loopback
from frazil.engine import encode_call
from frazil.errors import (
    CODES,
    Closed,
    Conflict,
    FrazilError,
    InvalidRequest,
    Unavailable,
)
from frazil.fs import RealFileSystem
from frazil.struct_types import learnt

if TYPE_CHECKING:
    from frazil.cli.session import Session
    from frazil.engine import Call
    from frazil.serve.announcing import Announced

__all__ = ["Token", "perform"]

Token = Annotated[
    str | None,
    typer.Option(
        "--token", envvar="FRAZIL_TOKEN", help="The token of a broker with authentication."
    ),
]
TIMEOUT_S: Final = 60.0
ANSWER_BYTES_MAX: Final = 64 << 20
_ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - recognised, not listened on
_CLASSES: Final = {cls.code: cls for cls in CODES} | {
    Closed.code: Unavailable,
    FrazilError.code: Unavailable,
}


class _Error(msgspec.Struct):
    code: str = ""
    message: str = "the broker gave no answer"
    details: dict[str, Any] = {}


class _Answer(msgspec.Struct):
    """An answer of the broker: a result, or an error and no result."""

    result: Any = None
    error: _Error | None = None


def perform(session: Session, call: Call, token: str | None) -> Any:
    """Perform a call on the data directory, by the broker that has it open if there is one."""
    from frazil.serve.announcing import announced

    try:
        with session.engine() as engine:
            return call.perform(engine)
    except Conflict as conflict:
        found = announced(RealFileSystem(), session.paths())
        holder = str(conflict.details.get("holder", "")).split()
        if found is None or f"pid={found.pid}" not in holder:
            raise
    return _call_broker(found, call, token)


def _call_broker(broker: Announced, call: Call, token: str | None) -> Any:
    """Send a call to the broker and return its answer.

    Raises:
        Unavailable: if the broker cannot be reached; the outcome is then unknown.
        InvalidRequest: if credentials are missing or wrong.
        FrazilError: the error that the broker answered with.
    """
    parts = urlsplit(broker.http_url)
    has_tls = parts.scheme == "https"
    host = str(parts.hostname)
    host = _ANY.get(host, host)
    fields = {"Content-Type": "application/json"}
    if token:
        _check_token(token, broker, is_private=has_tls or is_loopback(host))
        fields["Authorization"] = f"Bearer {token}"
    connection = http.client.HTTPConnection(host, parts.port, timeout=TIMEOUT_S)
    try:
        if has_tls:
            connection = http.client.HTTPSConnection(
                host, parts.port, timeout=TIMEOUT_S, context=_trust(broker)
            )
        with contextlib.closing(connection):
            connection.request("POST", "/admin/subscriptions", encode_call(call), fields)
            reply = connection.getresponse()
            return _answer(reply.status, reply.read(ANSWER_BYTES_MAX))
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(
            "the broker that has the directory does not answer",
            url=broker.http_url,
            pid=broker.pid,
            outcome="unknown",
            error=error,
        ) from error


def _check_token(token: str, broker: Announced, *, is_private: bool) -> None:
    if not token.isascii() or not token.isprintable():
        raise InvalidRequest("the token has characters that no token has")
    if not is_private:
        raise InvalidRequest(
            "the broker has no TLS, and others could read the token on its way",
            url=broker.http_url,
        )


def _trust(broker: Announced) -> ssl.SSLContext:
    # The certificate itself is trusted, whatever its issuer and name: the broker that has this
    # directory open named the file.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.load_verify_locations(broker.certificate_file)
    return context


def _answer(status: int, data: bytes) -> Any:
    try:
        answer = msgspec.json.decode(data, type=learnt(_Answer))
    except msgspec.MsgspecError:
        answer = _Answer(error=_Error(message=data.decode(errors="replace").strip()[:200]))
    error = answer.error
    if error is None:
        return answer.result
    if status == 401:
        raise InvalidRequest(
            "the broker needs credentials, give --token or FRAZIL_TOKEN", answer=error.message
        )
    unknown = Unavailable if status >= 500 else InvalidRequest
    raise _CLASSES.get(error.code, unknown)(error.message, **error.details)
