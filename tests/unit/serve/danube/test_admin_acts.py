"""Acts of administration are done to their end and logged with their result."""

from __future__ import annotations

import asyncio
import logging

import pytest

from frazil.errors import NotFound
from frazil.serve.danube.admin import Acts
from frazil.serve.danube.statuses import Refused, Status
from frazil.serve.grpc.codec import Code
from tests.unit.serve.auth.world import FakeCall

CALL = FakeCall("/danube_admin.TopicAdmin/DeleteTopic")


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (NotFound("unable to find the topic"), "NOT_FOUND"),
        (Refused(Status(Code.ALREADY_EXISTS, "there is one")), "ALREADY_EXISTS"),
        (KeyError("a bug's own text"), "INTERNAL"),
    ],
)
def test_an_act_that_fails_is_logged_with_its_status(caplog, error, status):
    """The error is the caller's, the event has the status and nothing of the error's text."""

    async def work():
        raise error

    with (
        caplog.at_level(logging.INFO, logger="frazil"),
        pytest.raises(type(error)) as caught,
    ):
        asyncio.run(Acts().do(CALL, work(), topic="/default/t"))
    assert caught.value is error
    [record] = caplog.records
    assert (record.message, record.facts) == (
        "admin_act",
        {
            "path": CALL.path,
            "principal": "anonymous",
            "peer": CALL.peer,
            "topic": "/default/t",
            "status": status,
        },
    )


def test_an_act_whose_caller_has_gone_is_logged_when_it_is_done(caplog):
    """It goes on; the event names the principal of its beginning."""

    async def scene():
        acts, may_end = Acts(), asyncio.Event()
        acts.principal_of = lambda call: f"user:{call.peer}"

        async def work():
            await may_end.wait()
            doing_it.append(asyncio.current_task())

        doing_it = []
        doing = asyncio.create_task(acts.do(CALL, work(), topic="/default/t"))
        await asyncio.sleep(0)
        doing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await doing
        assert not caplog.records
        may_end.set()
        await asyncio.sleep(0)
        await asyncio.gather(*doing_it)

    with caplog.at_level(logging.INFO, logger="frazil"):
        asyncio.run(scene())
    [record] = caplog.records
    assert record.facts["principal"] == f"user:{CALL.peer}"
    assert record.facts["status"] == "OK"
