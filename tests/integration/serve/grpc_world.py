"""A gRPC server in a thread, and clients for it: grpcio, and a raw socket that speaks frames."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
import time

import grpc
from hpack import Decoder, Encoder

from frazil.serve.grpc.codec import Code
from frazil.serve.grpc.router import Router, Stream, Unary, awaited
from frazil.serve.grpc.server import Server
from frazil.serve.h2 import frames as f
from tests.unit.serve.h2.peer import REQUEST, prefixed

SECONDS_MAX = 60


class Handlers:
    """Handlers of every kind, and what they saw."""

    def __init__(self):
        self.held, self.cancelled, self.metadata = [], [], []
        self.written = 0

    def router(self):
        return Router(
            {
                "/t.T/Echo": Unary(self.echo),
                "/t.T/Run": Unary(self.echo, lambda run: run.ok_all(run.streams, run.messages)),
                "/t.T/Hold": Unary(self.hold),
                "/t.T/Bug": Unary(self.bug),
                "/t.T/Large": Unary(lambda call, message: call.ok(bytes(int(message)))),
                "/t.T/Slow": Unary(awaited(self.slow)),
                "/t.T/Feed": Stream(self.feed),
                "/t.T/Wait": Stream(self.wait),
            }
        )

    def echo(self, call, message):
        self.metadata.append(dict(call.metadata))
        call.ok(message)

    def hold(self, call, message):
        self.held.append(call)
        call.on_cancel = lambda: self.cancelled.append(message)

    def bug(self, call, message):
        raise RuntimeError(message)

    async def slow(self, call, message):
        try:
            await asyncio.sleep(float(message))
        except asyncio.CancelledError:
            self.cancelled.append(message)
            raise
        return b"slept"

    def wait(self, call, message):
        """Stream nothing, for ever."""
        call.begin()
        self.hold(call, message)

    def feed(self, call, message):
        """Stream as many numbered messages of 1 KiB as are asked for; none means for ever."""
        call.begin()
        last = int(message) if message else None
        number = 0

        def go():
            nonlocal number
            while last is None or number < last:
                number += 1
                self.written += 1
                if not call.write(prefixed(b"%010d" % number + bytes(1014))):
                    return
            call.finish(Code.OK)

        call.on_ready = go
        call.on_cancel = lambda: self.cancelled.append(message)
        go()


class World:
    """A running server; `run` runs a function or coroutine in its loop's thread."""

    def __init__(self, limits=None, tls=None):
        self.handlers = Handlers()
        self.server = Server(self.handlers.router(), limits)
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.tls = tls
        context = None
        if tls is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(*tls)
        self.host, self.port = self.run(self.server.start("127.0.0.1", 0, context))

    def run(self, work):
        async def call():
            return work()

        coroutine = work if asyncio.iscoroutine(work) else call()
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(SECONDS_MAX)

    def channel(self, *options):
        options = [("grpc.use_local_subchannel_pool", 1), *options]
        if self.tls is None:
            return grpc.insecure_channel(f"127.0.0.1:{self.port}", options)
        with open(self.tls[0], "rb") as file:
            credentials = grpc.ssl_channel_credentials(file.read())
        return grpc.secure_channel(f"localhost:{self.port}", credentials, options)

    def close(self):
        self.run(self.server.close)
        self.run(asyncio.sleep(0.02))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(SECONDS_MAX)
        self.loop.close()


@contextlib.contextmanager
def serving(limits=None, tls=None):
    world = World(limits, tls)
    try:
        yield world
    finally:
        world.close()


class RawClient:
    """A socket that speaks frames, and does with them what no library would."""

    def __init__(self, world, *, greet=True, settings=None):
        self.socket = socket.create_connection((world.host, world.port), timeout=SECONDS_MAX)
        self.encoder, self.decoder = Encoder(), Decoder()
        self._left = b""
        if greet:
            self.send(f.PREFACE, f.settings(settings or {}))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, *parts):
        self.socket.sendall(b"".join(parts))

    def call(self, sid, path, message=b"", **metadata):
        fields = [(name, path if name == ":path" else value) for name, value in REQUEST]
        fields += metadata.items()
        head = f.frame(f.HEADERS, f.END_HEADERS, sid, self.encoder.encode(fields))
        return head + f.frame(f.DATA, f.END_STREAM, sid, prefixed(message))

    def frames(self):
        """Yield frames until the server closes the connection."""
        while True:
            while len(self._left) >= 9:
                size = 9 + int.from_bytes(self._left[:3])
                if len(self._left) < size:
                    break
                frame, self._left = self._left[:size], self._left[size:]
                yield frame[3], frame[4], int.from_bytes(frame[5:9]), frame[9:]
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionResetError:
                return
            if not data:
                return
            self._left += data

    def wait(self, kind):
        """Return the payload of the next frame of a kind, None if the connection ends before."""
        return next((payload for found, _, _, payload in self.frames() if found == kind), None)

    def wait_closed(self):
        """Read until the server closes; return the code of its GOAWAY, if there was one."""
        code = None
        for kind, _, _, payload in self.frames():
            if kind == f.GOAWAY:
                code = f.ErrorCode(int.from_bytes(payload[4:8]))
        return code


def eventually(check, seconds=SECONDS_MAX):
    """Return the first true value of `check`, or its last one when the time is over."""
    last = time.monotonic() + seconds
    while not (found := check()) and time.monotonic() < last:
        time.sleep(0.01)
    return found


def assert_answers(world):
    """A new client is served: others are unaffected."""
    with world.channel() as channel:
        assert channel.unary_unary("/t.T/Echo")(b"alive", timeout=SECONDS_MAX) == b"alive"
