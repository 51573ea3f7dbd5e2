"""A wire that breaks: what goes through it may be cut, held up, or ended on one side."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading

CHUNK_BYTES = 64 << 10
ABORT = struct.pack("ii", 1, 0)
"""The linger option with which closing a socket resets its connection."""


class Line:
    """One connection through the wire: two sockets and what flows between them."""

    def __init__(self, client, server):
        self.ends = {"client": client, "server": server}
        self.ended = set()

    def reset(self):
        """Tear both sides down at once; what was on its way is lost."""
        for _, writer in self.ends.values():
            raw = writer.get_extra_info("socket")
            with contextlib.suppress(OSError):
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
            writer.transport.abort()

    def end(self, side):
        """Tell one side that the other will send no more; the way back stays open."""
        _, writer = self.ends[side]
        self.ended.add(writer)
        with contextlib.suppress(OSError):
            writer.write_eof()


class Wire:
    """Forwards connections to a port of this machine, in a thread of its own."""

    def __init__(self, port_to):
        self.port_to = port_to
        self.port = 0
        self.opened = 0
        self._lines = set()
        self._flowing = None
        self._loop = asyncio.new_event_loop()
        self._ended = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._run(),))

    def __enter__(self):
        self._thread.start()
        assert self._ready.wait(30)
        return self

    def __exit__(self, *_):
        self._call(self._ended.set)
        self._thread.join(30)
        assert not self._thread.is_alive()
        self._loop.close()

    @property
    def url(self):
        """Where clients connect to."""
        return f"http://127.0.0.1:{self.port}"

    # -- faults ----------------------------------------------------------------------------------

    def cut(self):
        """Reset every connection; return how many there were."""
        return self._call(self._cut)

    def stall(self):
        """Let nothing through, in either direction, until `flow`; connections stay open."""
        self._call(self._flowing.clear)

    def flow(self):
        """Let everything through again."""
        self._call(self._flowing.set)

    def half_close(self, side):
        """Tell one side of every connection, `client` or `server`, that the other is done."""
        return self._call(self._half_close, side)

    # -- the thread ------------------------------------------------------------------------------

    def _call(self, act, *arguments):
        """Run an act in the loop's thread and return its result."""

        async def acting():
            return act(*arguments)

        return asyncio.run_coroutine_threadsafe(acting(), self._loop).result(30)

    def _cut(self):
        for line in self._lines:
            line.reset()
        return len(self._lines)

    def _half_close(self, side):
        for line in self._lines:
            line.end(side)
        return len(self._lines)

    async def _run(self):
        self._flowing, self._ended = asyncio.Event(), asyncio.Event()
        self._flowing.set()
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._ended.wait()
        server.close()
        self._cut()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader, writer):
        await self._flowing.wait()
        try:
            onward = await asyncio.open_connection("127.0.0.1", self.port_to)
        except OSError:
            writer.transport.abort()
            return
        self.opened += 1
        line = Line((reader, writer), onward)
        self._lines.add(line)
        try:
            await asyncio.gather(
                self._forward(line, reader, onward[1]), self._forward(line, onward[0], writer)
            )
        finally:
            self._lines.discard(line)
            line.reset()

    async def _forward(self, line, reader, writer):
        """Pass on what comes, with the end of it; what comes behind a made-up end is lost."""
        with contextlib.suppress(OSError):
            while data := await reader.read(CHUNK_BYTES):
                await self._flowing.wait()
                if writer not in line.ended:
                    writer.write(data)
                    await writer.drain()
            await self._flowing.wait()
            if writer not in line.ended:
                writer.write_eof()
