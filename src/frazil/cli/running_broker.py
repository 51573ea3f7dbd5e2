"""Calls of commands: on the data directory, or over HTTP to the broker that has it open."""

from __future__ import annotations

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

if TYPE_CHECKING:
    from frazil.cli.session import Session
    from frazil.engine import Call
    from frazil.serve.announcing import Announced

__all__ = ["RunningBroker", "Token", "perform"]

Token = Annotated[
    str | None,
    typer.Option(
        "--token", envvar="FRAZIL_TOKEN", help="The token of a broker with authentication."
    ),
]
TIMEOUT_S: Final = 60.0
ANSWER_BYTES_MAX: Final = 64 << 20
_ANY: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - recognised, not listened on
_CLASSES: Final = {cls.code: cls for cls in CODES}


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
    return RunningBroker(found).call(call, token=token)


class RunningBroker:
    """A broker in another process of this machine."""

    def __init__(self, found: Announced) -> None:
        self._found = found
        parts = urlsplit(found.http_url)
        host = parts.hostname or ""
        self._host = _ANY.get(host, host)
        self._port = parts.port or 0
        self._tls = parts.scheme == "https"

    def call(self, call: Call, *, token: str | None) -> Any:
        """Send a call to the broker and return its answer.

        Raises:
            Unavailable: if the broker cannot be reached; the outcome is then unknown.
            InvalidRequest: if credentials are missing or wrong.
            FrazilError: the error that the broker answered with.
        """
        fields = {"Content-Type": "application/json"}
        if token:
            if not token.isascii() or not token.isprintable():
                raise InvalidRequest("the token has characters that no token has")
            if not self._tls and not is_loopback(self._host):
                raise InvalidRequest(
                    "the broker has no TLS, and others could read the token on its way",
                    url=self._found.http_url,
                )
            fields["Authorization"] = f"Bearer {token}"
        try:
            connection = self._connection()
            try:
                connection.request("POST", "/admin/subscriptions", encode_call(call), fields)
                reply = connection.getresponse()
                data = reply.read(ANSWER_BYTES_MAX)
            finally:
                connection.close()
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(
                "the broker that has the directory does not answer",
                url=self._found.http_url,
                pid=self._found.pid,
                outcome="unknown",
                error=error,
            ) from error
        return self._answer(reply.status, data)

    def _connection(self) -> http.client.HTTPConnection:
        if not self._tls:
            return http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        # The certificate itself is trusted, whatever its issuer and name: the broker that has this
        # directory open named the file.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(self._found.certificate_file)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=TIMEOUT_S, context=context
        )

    def _answer(self, status: int, data: bytes) -> Any:
        try:
            answer = msgspec.json.decode(data, type=dict[str, Any])
        except msgspec.MsgspecError:
            text = data.decode(errors="replace").strip()[:200]
            answer = {"error": {"code": "", "message": text, "details": {}}}
        if status == 200 and "result" in answer:
            return answer["result"]
        error = answer.get("error") or {}
        message = str(error.get("message") or "the broker gave no answer")
        if status == 401:
            raise InvalidRequest(
                "the broker needs credentials, give --token or FRAZIL_TOKEN", answer=message
            )
        cls = _CLASSES.get(error.get("code", ""), InvalidRequest)
        if not error.get("code") and status >= 500:
            cls = Unavailable
        if cls is Closed or cls is FrazilError:
            cls = Unavailable
        raise cls(message, **{str(key): value for key, value in error.get("details", {}).items()})
