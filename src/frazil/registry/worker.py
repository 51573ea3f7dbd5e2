"""The process that runs the schema libraries: one request after the other, within limits.

A hostile definition or payload can end this process, nothing else: the kernel limits its address
space and the CPU time of each request, and `sandbox` gives each request a deadline and starts a
new process after this one ends.

In both directions a message on the pipes is a length and MessagePack:

    0        4
    +--------+------------------+
    |length  | Request / Answer |
    |u32, BE |                  |
    +--------+------------------+

The first answer comes without a request: the libraries are loaded. Each request has one answer,
except `check`, which has one for each payload; it may end before the last payload.
"""

from __future__ import annotations

import os
import resource
import signal
import struct
import sys
from typing import TYPE_CHECKING, BinaryIO, Final, Literal

import msgspec

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator, Sequence

    from frazil.registry.definitions import Definition

    _Cache = dict[tuple[str, bytes], Definition]

__all__ = ["Answer", "Request", "encode", "receive"]

_LENGTH: Final = struct.Struct(">I")
MEMORY_BYTES_MAX: Final = 1 << 30
READ_CPU_S: Final = 4.0
"""CPU time to parse a definition, or to compare two."""
CHECK_CPU_S: Final = 1.0
"""CPU time to check one payload; its definition may have to be parsed first."""
TURN_CPU_S: Final = 0.1
"""After this time the next request takes a request's remaining payloads: others get a turn."""
FILE_BYTES_MAX: Final = 64 << 20
"""protoc writes its descriptors into a file in memory."""
OPEN_FILES_MAX: Final = 64
ANSWER_BYTES_MAX: Final = 1 << 20
"""The broker does not trust the worker."""
CACHED_MAX: Final = 256
CACHED_BYTES_MAX: Final = 2 << 20
"""Definitions kept for the next payloads; parsed, they need up to a hundred times their text."""


class Request(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request of the broker."""

    op: Literal["read", "compare", "check"]
    type: str
    definition: bytes
    latest: bytes = b""
    """For `compare`: the version before `definition`."""
    mode: str = ""
    payloads: tuple[bytes, ...] = ()


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to a request, or for one payload."""

    fingerprint: str = ""
    reasons: tuple[str, ...] = ()
    """For `compare`."""
    refusal: str | None = None
    """Why the definition is invalid, or why the payload does not fit."""
    is_last: bool = False
    """The request has no further answer."""


_requests: Final = msgspec.msgpack.Decoder(Request)
_answers: Final = msgspec.msgpack.Decoder(Answer)


def encode(message: Request | Answer) -> bytes:
    """Encode a message with its length in front."""
    data = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(data)) + data


async def receive(answers: asyncio.StreamReader) -> Answer:
    """Return the next answer.

    Raises:
        EOFError: if the stream ends or has no valid answer.
    """
    (size,) = _LENGTH.unpack(await answers.readexactly(_LENGTH.size))
    if size > ANSWER_BYTES_MAX:
        raise EOFError
    try:
        return _answers.decode(await answers.readexactly(size))
    except msgspec.MsgspecError as error:
        raise EOFError from error


def _answers_to(request: Request, cache: _Cache) -> Iterator[Answer]:
    from frazil.registry import definitions  # has the libraries

    _limit_cpu(READ_CPU_S)
    try:
        key = (request.type, request.definition)
        found = cache.get(key)
        if found is None:
            found = definitions.read_definition(request.type, request.definition)
        if request.op == "read":
            yield Answer(fingerprint=found.fingerprint, is_last=True)
        elif request.op == "compare":
            latest = definitions.read_definition(request.type, request.latest)
            yield Answer(reasons=definitions.compare(latest, found, request.mode), is_last=True)
        else:
            _keep(cache, key, found)
            yield from _checked(found, request.payloads)
    except definitions.Invalid as error:
        # One payload is answered; the next one of the definition has the same answer.
        yield Answer(refusal=str(error), is_last=True)


def _keep(cache: _Cache, key: tuple[str, bytes], found: Definition) -> None:
    if key in cache:
        return
    held = sum(len(text) for _type, text in cache)
    if len(cache) >= CACHED_MAX or held + len(key[1]) > CACHED_BYTES_MAX:
        cache.clear()
    cache[key] = found


def _checked(found: Definition, payloads: Sequence[bytes]) -> Iterator[Answer]:
    used_s = 0.0
    for number, payload in enumerate(payloads, 1):
        _limit_cpu(CHECK_CPU_S)
        refusal = found.refusal(payload)
        used_s += CHECK_CPU_S - signal.getitimer(signal.ITIMER_PROF)[0]
        is_last = number == len(payloads) or used_s > TURN_CPU_S
        yield Answer(refusal=refusal, is_last=is_last)
        if is_last:
            return


def _limit_cpu(seconds: float) -> None:
    """End the process by SIGPROF after it has used this much more CPU time."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


def _serve(requests: BinaryIO, answers: BinaryIO) -> None:
    cache: _Cache = {}
    while True:
        head = requests.read(_LENGTH.size)
        if len(head) < _LENGTH.size:
            return
        for answer in _answers_to(_requests.decode(requests.read(_LENGTH.unpack(head)[0])), cache):
            answers.write(encode(answer))
            answers.flush()
        _limit_cpu(0)


def _limit_process() -> None:
    for kind, most in (
        (resource.RLIMIT_AS, MEMORY_BYTES_MAX),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, FILE_BYTES_MAX),
        (resource.RLIMIT_NOFILE, OPEN_FILES_MAX),
    ):
        _, hard = resource.getrlimit(kind)
        limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(kind, (limit, limit))


def main() -> None:
    """Answer requests from standard input until it ends."""
    answers = os.fdopen(os.dup(1), "wb")
    # Output that a library prints must not go into the answers.
    os.dup2(2, 1)
    try:
        from frazil.registry import definitions  # noqa: F401 - loads the libraries
    except ImportError as error:
        answers.write(encode(Answer(refusal=str(error), is_last=True)))
        answers.flush()
        return
    _limit_process()
    answers.write(encode(Answer(is_last=True)))
    answers.flush()
    # Any error but a definition's own, such as MemoryError, ends the process: a new one is clean.
    _serve(sys.stdin.buffer, answers)


if __name__ == "__main__":
    main()
