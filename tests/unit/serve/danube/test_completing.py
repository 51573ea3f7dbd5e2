"""Work goes on without its caller; then a refusal is dropped, and a bug is reported."""

from __future__ import annotations

import asyncio
import gc

import pytest

from frazil.errors import NotFound
from frazil.serve.danube.statuses import Refused, Status
from frazil.serve.grpc.codec import Code
from frazil.serve.grpc.router import outcome, to_its_end

REFUSALS = [NotFound("no such topic"), Refused(Status(Code.ALREADY_EXISTS, "there is one"))]


def reports_of(scene):
    """Run a scene; return the loop's reports of errors that nobody took."""
    reports = []

    async def main():
        asyncio.get_running_loop().set_exception_handler(
            lambda _loop, context: reports.append(context)
        )
        await scene()
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(main())
    gc.collect()
    return reports


async def left(waiting, may_end):
    """Cancel the waiting caller, then let the work end."""
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
def test_only_a_bug_is_reported_when_the_caller_has_gone(error, is_task):
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

    reports = reports_of(scene)
    assert done == [True]
    assert [context["exception"] for context in reports] == ([] if error in REFUSALS else [error])


@pytest.mark.parametrize("error", [*REFUSALS, KeyError("a bug")])
def test_a_waiting_caller_gets_the_result(error):
    """A result is returned and an error raised, and the loop reports neither."""

    async def fails():
        raise error

    async def works():
        return 5

    async def scene():
        assert await to_its_end(works()) == 5
        with pytest.raises(type(error)) as caught:
            await to_its_end(fails())
        assert caught.value is error

    assert reports_of(scene) == []
