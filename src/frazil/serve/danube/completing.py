"""Work that is done to its end though its caller has gone: half of it would be worse than none.

What comes of it concerns nobody then, and asyncio would tell each refusal as a bug of ours. So it is
taken here, and only what is a bug is told.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from frazil.errors import FrazilError
from frazil.serve.grpc.codec import CallFailed

if TYPE_CHECKING:
    from collections.abc import Coroutine

__all__ = ["outcome", "to_its_end"]

_Result = TypeVar("_Result")

_running: set[asyncio.Task[Any]] = set()
"""The loop itself keeps no reference to a task that waits."""


async def to_its_end(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Return what work comes to; it goes on when its caller is cancelled."""
    task = asyncio.get_running_loop().create_task(work)
    _running.add(task)
    task.add_done_callback(_running.discard)
    return await outcome(task)


async def outcome(work: asyncio.Future[_Result]) -> _Result:
    """Return what others' work comes to; it goes on when its caller is cancelled."""
    try:
        return await asyncio.shield(work)
    except asyncio.CancelledError:
        work.add_done_callback(_take)
        raise


def _take(work: asyncio.Future[Any]) -> None:
    if work.cancelled():
        return
    error = work.exception()
    if error is not None and not isinstance(error, FrazilError | CallFailed):
        work.get_loop().call_exception_handler(
            {"message": "work failed whose caller has gone", "exception": error, "future": work}
        )
