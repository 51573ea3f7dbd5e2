"""Handlers that are coroutines: for calls that wait for something and are not in a hurry."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from frazil.serve.grpc.codec import CallFailed, Code

if TYPE_CHECKING:
    from frazil.serve.grpc.calls import Call
    from frazil.serve.grpc.router import Handler

_running: set[asyncio.Task[bytes]] = set()
"""The loop itself keeps no reference to a task that waits."""


def awaited(answer: Callable[[Call, bytes], Awaitable[bytes]]) -> Handler:
    """Return a handler that answers with what a coroutine returns, or the status it raises.

    The coroutine is cancelled when nobody waits for it any more.
    """

    async def run(call: Call, message: bytes) -> bytes:
        return await answer(call, message)

    def handler(call: Call, message: bytes) -> None:
        task = asyncio.get_running_loop().create_task(run(call, message))
        _running.add(task)
        call.on_cancel = lambda: _cancel(task)
        task.add_done_callback(lambda done: _settle(call, done))

    return handler


def _cancel(task: asyncio.Task[bytes]) -> None:
    task.cancel()


def _settle(call: Call, task: asyncio.Task[bytes]) -> None:
    _running.discard(task)
    if task.cancelled():
        call.fail(Code.CANCELLED, "cancelled")
        return
    error = task.exception()
    if error is None:
        call.ok(task.result())
    elif isinstance(error, CallFailed):
        call.fail(error.code, error.text)
    else:
        call.break_off(error)
