"""How the calls of the admin port are answered: parsed, awaited, and their errors put as statuses.

None of them is in a hurry. They wait for the journal in threads and never hold up the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from frazil.errors import FrazilError
from frazil.serve.danube.messages import parse_request
from frazil.serve.danube.statuses import Refused, status_of
from frazil.serve.grpc.router import Unary, awaited

if TYPE_CHECKING:
    from frazil.serve.danube.admin_acts import Acts
    from frazil.serve.danube.services import WireMessage
    from frazil.serve.grpc.calls import Call
    from frazil.serve.grpc.router import Route

__all__ = ["admin_act", "admin_call"]

_Request = TypeVar("_Request", bound="WireMessage")
_Answer = Callable[[_Request], Coroutine[Any, Any, "WireMessage"]]


def admin_call(kind: type[_Request], answer: _Answer[_Request]) -> Route:
    """Return the route of a call that changes nothing and takes a request of this kind."""

    async def run(_call: Call, message: bytes) -> bytes:
        return await _reply(answer, parse_request(kind, message))

    return Unary(awaited(run))


def admin_act(acts: Acts, kind: type[_Request], answer: _Answer[_Request], **fields: str) -> Route:
    """Return the route of a call that changes something: it is done to its end, and told.

    `fields` are those of the request that name what is changed, by what they name.
    """

    async def run(call: Call, message: bytes) -> bytes:
        request = parse_request(kind, message)
        names = {name: getattr(request, field) for name, field in fields.items()}
        return await acts.do(call, _reply(answer, request), **names)

    return Unary(awaited(run))


async def _reply(answer: _Answer[_Request], request: _Request) -> bytes:
    try:
        return (await answer(request)).SerializeToString()
    except FrazilError as error:
        raise Refused(status_of(error)) from error
