"""How the calls of the admin port are answered: parsed, awaited, and their errors put as statuses.

None of them is in a hurry. They wait for the journal in threads and never hold up the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from frazil.errors import FrazilError
from frazil.serve.danube.messages import parse_request
from frazil.serve.danube.statuses import Refused, status_of
from frazil.serve.grpc.coroutines import awaited
from frazil.serve.grpc.router import Unary

if TYPE_CHECKING:
    from frazil.serve.danube.services import WireMessage
    from frazil.serve.grpc.calls import Call
    from frazil.serve.grpc.router import Route

__all__ = ["admin_call", "to_its_end"]

_Request = TypeVar("_Request", bound="WireMessage")
_Result = TypeVar("_Result")

_running: set[asyncio.Task[Any]] = set()
"""The loop itself keeps no reference to a task that waits."""


def admin_call(kind: type[_Request], answer: Callable[[_Request], Awaitable[WireMessage]]) -> Route:
    """Return the route of a call that takes a request of this kind."""

    async def run(_call: Call, message: bytes) -> bytes:
        request = parse_request(kind, message)
        try:
            return (await answer(request)).SerializeToString()
        except FrazilError as error:
            raise Refused(status_of(error)) from error

    return Unary(awaited(run))


async def to_its_end(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Wait for work that goes on when its caller has gone: half of it would be worse than none."""
    task = asyncio.get_running_loop().create_task(work)
    _running.add(task)
    task.add_done_callback(_forget)
    return await asyncio.shield(task)


def _forget(task: asyncio.Task[Any]) -> None:
    _running.discard(task)
    if not task.cancelled():
        # Taken here: a caller that has gone does not ask for it.
        task.exception()
