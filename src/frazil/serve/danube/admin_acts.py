"""Who changed what: one event, `admin_act`, for each act of administration, whatever came of it.

An act is done to its end when its caller has gone, and told with its outcome then. What only reads
is not told; who may not act at all never comes so far, and is told by the guard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from frazil.errors import FrazilError
from frazil.serve.danube.completing import to_its_end
from frazil.serve.danube.statuses import status_of
from frazil.serve.grpc.codec import CallFailed, Code
from frazil.telemetry import event

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from frazil.serve.auth.guard import Caller

__all__ = ["Acts"]

_Result = TypeVar("_Result")


def _anybody(_caller: Caller) -> object:
    return "anonymous"


class Acts:
    """Does acts and tells them. All methods belong to the event loop's thread."""

    def __init__(self) -> None:
        self.principal_of: Callable[[Caller], object] = _anybody
        """Names whoever calls, None if that is no longer known; set where callers are known."""

    async def do(
        self, caller: Caller, work: Coroutine[Any, Any, _Result], **names: object
    ) -> _Result:
        """Do what changes something; `names` are of what it changes."""
        who = {"path": caller.path, "principal": self.principal_of(caller), "peer": caller.peer}
        return await to_its_end(_told(work, {**who, **names}))


async def _told(work: Coroutine[Any, Any, _Result], facts: dict[str, Any]) -> _Result:
    status = Code.INTERNAL
    try:
        found = await work
        status = Code.OK
    except CallFailed as error:
        status = error.code
        raise
    except FrazilError as error:
        status = status_of(error).code
        raise
    finally:
        event("admin_act", **facts, status=status.name)
    return found
