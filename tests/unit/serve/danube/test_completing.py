"""Work goes on without its caller; then a refusal is nobody's, and a bug is told."""

from __future__ import annotations

import asyncio
import gc

import pytest

from frazil.errors import NotFound
from frazil.serve.danube.statuses import Refused, Status
from frazil.serve.grpc.codec import Code
from frazil.serve.grpc.router import outcome, to_its_end

REFUSALS = [NotFound("no such topic"), Refused(Status(Code.ALREADY_EXISTS, "there is one"))]


def told_of(scene):
    """Run a scene; return what the loop was told of errors that nobody took."""
    told = []

    async def main():
        asyncio.get_running_loop().set_exception_handler(
            lambda _loop, context: told.append(context)
        )
        await scene()
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(main())
    gc.collect()
    return told


async def left(waiting, may_end):
    """Cancel who waits, then let the work end."""
    caller = asyncio.create_task(waiting)
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    may_end.set()
    for _ in range(3):
        await asyncio.sleep(0)


@pytest.mark.parametrize("is_task", [True, False])
@pytest.mark.parametrize("error", [*REFUSALS, KeyError("a bug")])
def test_only_a_bug_is_told_when_the_caller_has_gone(error, is_task):
    """The work is done to its end; its refusal is not taken for an error that nobody handled."""
    done = []

    async def scene():
        may_end = asyncio.Event()

        async def work():
            await may_end.wait()
            done.append(True)
            raise error

        waiting = to_its_end(work()) if is_task else outcome(asyncio.ensure_future(work()))
        await left(waiting, may_end)

    told = told_of(scene)
    assert done == [True]
    assert [context["exception"] for context in told] == ([] if error in REFUSALS else [error])


@pytest.mark.parametrize("error", [*REFUSALS, KeyError("a bug")])
def test_who_waits_gets_what_came_of_it(error):
    """A result is returned and an error raised, and the loop is told of neither."""

    async def fails():
        raise error

    async def works():
        return 5

    async def scene():
        assert await to_its_end(works()) == 5
        with pytest.raises(type(error)) as caught:
            await to_its_end(fails())
        assert caught.value is error

    assert told_of(scene) == []
