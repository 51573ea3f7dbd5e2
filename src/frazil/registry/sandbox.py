"""The event loop's client of the schema worker: requests with a deadline.

There is one process. It starts with the first request and ends with the broker. A request that
exceeds a limit of `worker` ends the process and fails with an error; the next request starts a
new one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from frazil.errors import InvalidRequest, Unavailable
from frazil.registry.worker import Answer, Request, encode, receive
from frazil.telemetry import warn

__all__ = ["TOO_MUCH_TO_COMPARE", "TOO_MUCH_WORK", "Sandbox", "closed"]

DEADLINE_S: Final = 30.0
"""From a request to its last answer; on an idle machine the CPU time limits come first."""
ENDING_S: Final = 1.0
_INHERITED: Final = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH")
"""The environment variables of the process: no credentials."""

TOO_MUCH_WORK: Final = "schema needs too much work for this payload"
TOO_MUCH_TO_COMPARE: Final = (
    "there is too much to compare: split the schema into smaller ones, or set the subject's mode to"
    " 'none' if you know that it is compatible"
)


class Sandbox:
    """The worker process. All methods belong to the event loop's thread."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._asking: set[asyncio.Task[Any]] = set()
        self._is_closed = False

    async def fingerprint(self, kind: str, definition: bytes) -> str:
        """Parse a definition.

        Raises:
            InvalidRequest: if it is invalid or too expensive to parse.
            Unavailable: if the worker cannot be started, was killed, or is closed.
        """
        answers, _ = await self._ask(Request(op="read", type=kind, definition=definition))
        if not answers:
            raise InvalidRequest(
                "the schema definition needs too much work or memory to be read, make it smaller"
            )
        if answers[0].refusal is not None:
            raise InvalidRequest(answers[0].refusal)
        return answers[0].fingerprint

    async def incompatibilities(
        self, kind: str, *, latest: bytes, new: bytes, mode: str
    ) -> tuple[str, ...]:
        """Return why a definition may not follow another one of its type in a mode."""
        request = Request(op="compare", type=kind, definition=new, latest=latest, mode=mode)
        answers, _ = await self._ask(request)
        if not answers:
            return (TOO_MUCH_TO_COMPARE,)
        refusal = answers[0].refusal
        return answers[0].reasons if refusal is None else (refusal,)

    async def refusals(
        self, kind: str, definition: bytes, payloads: Sequence[bytes]
    ) -> list[str | None]:
        """Return why each payload does not fit a definition, None for each that fits."""
        found: list[str | None] = []
        while len(found) < len(payloads):
            left = tuple(payloads[len(found) :])
            request = Request(op="check", type=kind, definition=definition, payloads=left)
            answers, has_overrun = await self._ask(request)
            found += [answer.refusal for answer in answers]
            if has_overrun:
                # The payload after the last answer ended the process; the others go to a new one.
                found.append(TOO_MUCH_WORK)
        return found

    async def close(self) -> None:
        """End the process; pending requests are refused."""
        self._is_closed = True
        if self._process is not None:
            await self._end(self._process)
        if self._asking:
            await asyncio.wait(self._asking)

    # -- inside ----------------------------------------------------------------------------------

    async def _ask(self, request: Request) -> tuple[list[Answer], bool]:
        """Return the answers, and whether the request ended the process before the last one."""
        task = asyncio.get_running_loop().create_task(self._exchange(request))
        self._asking.add(task)
        task.add_done_callback(self._asked)
        # A cancelled caller must not leave its answers in the pipe.
        return await asyncio.shield(task)

    def _asked(self, task: asyncio.Task[tuple[list[Answer], bool]]) -> None:
        self._asking.discard(task)
        if not task.cancelled():
            task.exception()  # Its caller may have gone.

    async def _exchange(self, request: Request) -> tuple[list[Answer], bool]:
        async with self._turn:
            process = await self._started()
            assert process.stdin is not None
            answers: list[Answer] = []
            code = None
            try:
                async with asyncio.timeout(DEADLINE_S):
                    process.stdin.write(encode(request))
                    await process.stdin.drain()
                    await _receive(process, answers, len(request.payloads) or 1)
            except TimeoutError:
                await self._end(process)
            except (OSError, EOFError) as error:
                with suppress(TimeoutError):
                    async with asyncio.timeout(ENDING_S):
                        await process.wait()
                code = process.returncode
                await self._end(process)
                if self._is_closed:
                    raise closed() from error
                if code == -signal.SIGKILL:
                    raise Unavailable("the schema worker was killed, try again") from error
            else:
                return answers, False
            warn("schema_worker_overran", op=request.op, type=request.type, code=code)
            return answers, True

    async def _started(self) -> asyncio.subprocess.Process:
        """Return the process, started if there is none."""
        if self._is_closed:
            raise closed()
        if self._process is not None and self._process.returncode is None:
            return self._process
        try:
            process = self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "frazil.registry.worker"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env=_environment(),
                start_new_session=True,
            )
            answers: list[Answer] = []
            async with asyncio.timeout(DEADLINE_S):
                await _receive(process, answers, 1)
        except (OSError, EOFError, TimeoutError) as error:
            if self._process is not None:
                await self._end(self._process)
            raise Unavailable("the schema worker cannot be started", error=error) from error
        if answers[0].refusal is not None:
            await self._end(process)
            raise Unavailable(
                'the schema worker lacks a library, install "frazil[serve]"',
                error=answers[0].refusal,
            )
        return process

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        if self._process is process:
            self._process = None
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _environment() -> dict[str, str]:
    found = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    found["PYTHONPATH"] = os.pathsep.join(os.path.abspath(each) for each in sys.path if each)
    return found


def closed() -> Unavailable:
    """Return the error of a request after the end of the registry."""
    return Unavailable("the schema registry is closed")


async def _receive(
    process: asyncio.subprocess.Process, answers: list[Answer], count_max: int
) -> None:
    """Add the answers of one request, at most `count_max`, including those before an error."""
    assert process.stdout is not None
    while not (answers and answers[-1].is_last):
        if len(answers) >= count_max:
            raise EOFError("the schema worker gave more answers than were asked for")
        answers.append(await receive(process.stdout))
