"""The HTTP port: `/healthz`, `/readyz`, `/metrics`, and calls that take JSON and check the caller.

One request a connection. What is slow, large or malformed is answered with a status, or cut off,
within limits that are all here; the number of connections is one of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

import attrs

from frazil.config import is_loopback
from frazil.errors import FrazilError, codes_of
from frazil.serve.accepting import Acceptor
from frazil.serve.auth.guard import client_of
from frazil.serve.http_request import (
    HEAD_END,
    BadRequest,
    Reply,
    Request,
    encode_reply,
    parse_head,
    text_reply,
)
from frazil.serve.listening import address_of, bind
from frazil.telemetry import warn

if TYPE_CHECKING:
    import socket
    import ssl

__all__ = ["HttpLimits", "HttpServer", "Page", "Post", "health_page"]

Refusal = tuple[int, str]


@attrs.frozen
class HttpLimits:
    """What a client of the HTTP port may take."""

    connections_max: int = 64
    client_connections_max: int = 16
    """Of one address; one more takes the place of its oldest that has not asked yet."""
    head_bytes_max: int = 8 << 10
    head_s: float = 5.0
    """From the connection (and the handshake) to the end of the request's head."""
    answer_s: float = 30.0
    """From there until the client has taken the answer."""
    handshake_s: float = 5.0
    linger_s: float = 1.0
    linger_bytes: int = 256 << 10


@attrs.frozen
class Page:
    """What answers a path.

    Args:
        answer: returns the answer.
        threaded: it takes time, so it runs in a thread, one at a time.
        is_open: everybody may see it; otherwise `refusal` of the server is asked.
    """

    answer: Callable[[], Reply]
    threaded: bool = False
    is_open: bool = False


@attrs.frozen
class Post:
    """What answers JSON.

    Args:
        answer: returns the answer, from the fields, the body and the client's address.
        refusal: is asked with fields and address before the body is read; what it returns, if
            anything, is the answer then.
    """

    answer: Callable[[Mapping[str, str], bytes, str], Awaitable[Reply]]
    refusal: Callable[[Mapping[str, str], str], Reply | None] | None = None


def health_page(problem: Callable[[], str | None]) -> Page:
    """Return a page that is 200 `ok`, or 503 with the problem."""

    def answer() -> Reply:
        found = problem()
        return text_reply(200, "ok") if found is None else text_reply(503, found)

    return Page(answer, is_open=True)


@attrs.define(eq=False)
class _Visit:
    """One connection, and how far it is."""

    client: str
    protocol: asyncio.BaseProtocol | None = None
    writer: asyncio.StreamWriter | None = None
    task: asyncio.Task[None] | None = None
    has_asked: bool = False
    is_answered: bool = False
    is_over: bool = False


class HttpServer:
    """Serves pages. All methods belong to the event loop's thread.

    Args:
        pages: what answers each path.
        limits: what a client may take.
        refusal: tells from a request's fields, of a page that is not open, status and reason why it
            may not be seen, None if it may.
        posts: what answers each path that takes JSON.
    """

    def __init__(
        self,
        pages: Mapping[str, Page],
        *,
        limits: HttpLimits | None = None,
        refusal: Callable[[Mapping[str, str]], Refusal | None] | None = None,
        posts: Mapping[str, Post] | None = None,
    ) -> None:
        self._pages = dict(pages)
        self._posts = dict(posts or {})
        self._limits = HttpLimits() if limits is None else limits
        self._refusal = refusal
        self._loopback_only = True
        self._acceptor: Acceptor | None = None
        self._visits: dict[asyncio.BaseProtocol, _Visit] = {}
        """All connections, the oldest first."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._one_at_a_time = asyncio.Lock()
        self.requests = 0
        self.refusals = 0
        self.cut_off = 0

    async def start(
        self, host: str, port: int, ssl_context: ssl.SSLContext | None = None
    ) -> tuple[str, int]:
        """Listen; return the address and port that are really used."""
        listener = bind(host, port, setting="serve.http_port")
        return await self.start_on(listener, ssl_context)

    async def start_on(
        self, listener: socket.socket, ssl_context: ssl.SSLContext | None = None
    ) -> tuple[str, int]:
        """Listen on a socket that has its address already; it is the server's from now on."""
        assert self._acceptor is None
        address = address_of(listener)
        self._loopback_only = is_loopback(address.host)
        self._acceptor = Acceptor(
            listener,
            make=self._arrive,
            failed=self._give_up,
            ssl_context=ssl_context,
            handshake_s=self._limits.handshake_s,
        )
        return address

    async def close(self) -> None:
        """Stop listening and cut off whoever is still connected."""
        if self._acceptor is not None:
            self._acceptor.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _arrive(self, peer: str) -> asyncio.BaseProtocol | None:
        """Count a connection from its first packet on; None if there are too many."""
        visit = _Visit(client_of(peer))
        if not self._make_room(visit.client):
            self.refusals += 1
            return None
        loop = asyncio.get_running_loop()

        def made(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if visit.is_over:
                writer.transport.abort()
                return
            visit.writer = writer
            visit.task = loop.create_task(self._serve(reader, writer, visit))
            self._tasks.add(visit.task)
            visit.task.add_done_callback(lambda task: self._ended(task, protocol))

        reader = asyncio.StreamReader(limit=self._limits.head_bytes_max, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, made, loop=loop)
        visit.protocol = protocol
        self._visits[protocol] = visit
        return protocol

    def _make_room(self, client: str) -> bool:
        """Return whether one more of an address may come; who keeps others waiting makes way."""
        limits = self._limits
        rivals = [visit for visit in self._visits.values() if visit.client == client]
        if len(rivals) < limits.client_connections_max:
            rivals = list(self._visits.values())
            if len(rivals) < limits.connections_max:
                return True
        # Those that have not asked yet, then those that do not take their answer.
        idle = next((visit for visit in rivals if not visit.has_asked), None)
        idle = idle or next((visit for visit in rivals if visit.is_answered), None)
        if idle is None:
            return False
        self._cut_off(idle)
        return True

    def _cut_off(self, visit: _Visit) -> None:
        assert visit.protocol is not None
        self.cut_off += 1
        visit.is_over = True
        del self._visits[visit.protocol]
        if visit.task is not None and visit.writer is not None:
            visit.writer.transport.abort()
            visit.task.cancel()
        elif self._acceptor is not None:
            self._acceptor.give_up(visit.protocol)

    def _give_up(self, protocol: asyncio.BaseProtocol) -> None:
        self._visits.pop(protocol, None)

    def _ended(self, task: asyncio.Task[None], protocol: asyncio.BaseProtocol) -> None:
        self._tasks.discard(task)
        self._give_up(protocol)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            # A bug: its connection is cut off, the others go on.
            self.cut_off += 1
            warn("http_connection_failed", error=type(error).__name__)

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, visit: _Visit
    ) -> None:
        # Bytes that the client does not take are then seen by `drain`, from the first one on.
        writer.transport.set_write_buffer_limits(0)
        try:
            peer = writer.get_extra_info("peername")
            reply = await self._answer(reader, str(peer[0]) if peer else "", visit)
            visit.has_asked = visit.is_answered = True
            if reply is not None:
                async with asyncio.timeout(self._limits.answer_s):
                    writer.write(encode_reply(reply))
                    await writer.drain()
                await self._linger(reader, writer)
        except (OSError, TimeoutError):
            self.cut_off += 1
        finally:
            writer.transport.abort()

    async def _linger(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a little of what still comes: closing on unread bytes could destroy the answer."""
        if not writer.can_write_eof():
            writer.close()
            async with asyncio.timeout(self._limits.linger_s):
                await writer.wait_closed()
            return
        writer.write_eof()
        left = self._limits.linger_bytes
        async with asyncio.timeout(self._limits.linger_s):
            while left > 0:
                data = await reader.read(left)
                if not data:
                    return
                left -= len(data)

    async def _answer(self, reader: asyncio.StreamReader, peer: str, visit: _Visit) -> Reply | None:
        """Return the answer to the one request of a connection, None if there is none."""
        try:
            async with asyncio.timeout(self._limits.head_s):
                head = await reader.readuntil(HEAD_END)
            request = parse_head(head, loopback_only=self._loopback_only, posts=self._posts)
            if request.length:
                return await self._posted(reader, request, peer, visit)
            visit.has_asked = True
        except asyncio.IncompleteReadError:
            return None
        except asyncio.LimitOverrunError:
            return self._refuse(431, "the fields are too large")
        except TimeoutError:
            return self._refuse(408, "the request took too long")
        except BadRequest as error:
            return self._refuse(error.status, error.reason)
        page = self._pages.get(request.path)
        if page is None:
            return self._refuse(404, "there is no such page")
        refusal = None if page.is_open or not self._refusal else self._refusal(request.fields)
        if refusal is not None:
            return self._refuse(*refusal)
        self.requests += 1
        return await self._made(request.path, page)

    async def _posted(
        self, reader: asyncio.StreamReader, request: Request, peer: str, visit: _Visit
    ) -> Reply:
        post = self._posts[request.path]
        refused = None if post.refusal is None else post.refusal(request.fields, peer)
        if refused is not None:
            self.refusals += 1
            return refused
        async with asyncio.timeout(self._limits.head_s):
            body = await reader.readexactly(request.length)
        visit.has_asked = True
        self.requests += 1
        try:
            async with asyncio.timeout(self._limits.answer_s):
                return await post.answer(request.fields, body, peer)
        except TimeoutError:
            return self._refuse(503, "the answer took too long; it may have been done")

    async def _made(self, path: str, page: Page) -> Reply:
        try:
            if not page.threaded:
                return page.answer()
            async with asyncio.timeout(self._limits.answer_s), self._one_at_a_time:
                return await asyncio.to_thread(page.answer)
        except TimeoutError:
            return self._refuse(503, "the answer took too long")
        except FrazilError as error:
            # The text may name files; the log has it.
            warn("http_page_failed", path=path, error=error)
            return self._refuse(503 if codes_of(error).http == 503 else 500, "not available")

    def _refuse(self, status: int, reason: str) -> Reply:
        self.refusals += 1
        return text_reply(status, reason)
