"""Publish records and answer their calls.

The records of a topic in one turn of the loop are one entry of the journal's queue with one waiter,
and the entries of a turn are one group with one sync. The loop's thread writes the group if syncs
are fast and the journal's thread sleeps; otherwise the journal's thread does.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from frazil.errors import FrazilError, InvalidRequest
from frazil.log import FRAME_RECORDS_MAX
from frazil.serve.danube.statuses import PUBLISHING, Refused, status, status_of
from frazil.topic import wait_admitted_async

if TYPE_CHECKING:
    from collections.abc import Iterator

    from frazil.log import Codec
    from frazil.log.codec import Entry
    from frazil.model import Ack
    from frazil.schema import Message
    from frazil.serve.grpc.calls import Call, CallRun
    from frazil.serve.h2.stream import Stream
    from frazil.topic import TopicRuntime

__all__ = ["Publisher", "Publishing", "RunPart", "check_record"]

PART_BYTES_MAX: Final = 1 << 20
"""The largest part of a run that is submitted at once; it fits into one write."""


class Publishing:
    """Completes calls when their records are committed; a cheaper replacement for a future."""

    __slots__ = ("_loop", "call", "reply")

    def __init__(self, call: Call, loop: asyncio.AbstractEventLoop, reply: bytes) -> None:
        self.call = call
        self._loop = loop
        self.reply = reply

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def done(self) -> bool:
        return not self.call.is_open

    def set_result(self, _ack: Ack | None) -> None:
        self.call.ok(self.reply)

    def set_exception(self, error: BaseException) -> None:
        self.call.fail(*status_of(error, PUBLISHING))


class RunPart:
    """The checked records of one topic in a run of calls, with the answers to the calls."""

    __slots__ = (
        *("bytes_max", "codec", "limits", "now_us", "streams"),
        *("records", "replies", "run", "runtime", "size"),
    )

    def __init__(self, run: CallRun, runtime: TopicRuntime) -> None:
        self.run = run
        self.runtime = runtime
        self.codec: Codec = runtime.codec.messages
        self.limits = runtime.limits
        self.records: list[Message] = []
        self.streams: list[Stream] = []
        self.replies: list[bytes] = []
        self.size = 0
        self.bytes_max = min(PART_BYTES_MAX, runtime.settings.log.write_bytes_max)
        self.now_us = runtime.clock.now_us()


class _Batch:
    """Records of one topic that are written together, and the calls that wait for them."""

    __slots__ = (
        *("_publisher", "answers", "bytes_max", "codec"),
        *("records", "runtime", "size"),
    )

    def __init__(self, publisher: Publisher, runtime: TopicRuntime, codec: Codec | None) -> None:
        self._publisher = publisher
        self.runtime = runtime
        self.codec = codec
        self.size = 0
        self.bytes_max = runtime.settings.log.write_bytes_max
        self.records: list[Message] = []
        self.answers: list[tuple[Call, bytes] | RunPart] = []
        """The calls that wait, in the order of the records."""

    def entry(self) -> Entry:
        """Return the entry for the journal's queue."""
        records, state = self.records, self.runtime.state
        if len(records) == 1:
            return (state, self.codec, records[0], 0, self.size, self, None)
        return (state, self.codec, records, len(records), self.size, self, None)

    # -- as the journal sees its waiter ------------------------------------------------------------

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._publisher.loop

    def done(self) -> bool:
        """Return False: calls that were cancelled are skipped one by one."""
        return False

    def set_result(self, _ack: Ack) -> None:
        for answer in self.answers:
            if isinstance(answer, RunPart):
                answer.run.ok_all(answer.streams, answer.replies)
            else:
                answer[0].ok(answer[1])

    def set_exception(self, error: BaseException) -> None:
        if isinstance(error, InvalidRequest) and len(self.records) > 1:
            # One record is invalid, and none was written: sending them singly finds it.
            self._publisher.send_singly(self)
            return
        status = status_of(error, PUBLISHING)
        for answer in self.answers:
            if isinstance(answer, RunPart):
                answer.run.fail_all(answer.streams, *status)
            else:
                answer[0].fail(*status)

    def calls(self) -> Iterator[tuple[Call, bytes]]:
        """Yield the call of each record and its answer."""
        for answer in self.answers:
            if isinstance(answer, RunPart):
                for stream, reply in zip(answer.streams, answer.replies, strict=True):
                    yield answer.run.call(stream), reply
            else:
                yield answer


class Publisher:
    """Writes records and answers their calls. All methods belong to the event loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._open: dict[TopicRuntime, _Batch] = {}
        self._batches: list[_Batch] = []
        self._slow: set[asyncio.Task[None]] = set()

    def submit(self, runtime: TopicRuntime, record: Message, call: Call, reply: bytes) -> None:
        """Write a record of a topic that takes records, with the others of this turn.

        Raises:
            Refused: if it is larger than a message may be.
            InvalidRequest: if anything else is wrong with it.
        """
        codec, size = check_record(runtime, record)
        batch = self._batch_for(runtime, codec, size=size, count=1)
        batch.size += size
        batch.records.append(record)
        batch.answers.append((call, reply))

    def submit_run(self, part: RunPart) -> None:
        """Write records of a topic that takes records, with the others of this turn."""
        count = len(part.records)
        batch = self._batch_for(part.runtime, part.codec, size=part.size, count=count)
        batch.size += part.size
        batch.records += part.records
        batch.answers.append(part)

    def send_slowly(self, runtime: TopicRuntime, record: Message, publishing: Publishing) -> None:
        """Wait in a task, without delaying other calls, until the topic accepts the record."""
        task = self.loop.create_task(_wait_and_send(runtime, record, publishing))
        self._slow.add(task)
        task.add_done_callback(self._slow.discard)

    def send_singly(self, batch: _Batch) -> None:
        """Write the records of a batch that was refused, one entry for each record."""
        for record, (call, reply) in zip(batch.records, batch.calls(), strict=True):
            self.send_slowly(batch.runtime, record, Publishing(call, self.loop, reply))

    def _batch_for(
        self, runtime: TopicRuntime, codec: Codec | None, *, size: int, count: int
    ) -> _Batch:
        """Return the batch for records of this turn: the open one if they fit, else a new one."""
        batch = self._open.get(runtime)
        if (
            batch is not None
            and batch.codec is codec
            and batch.size + size <= batch.bytes_max
            and len(batch.records) + count <= FRAME_RECORDS_MAX
        ):
            return batch
        return self._begin(runtime, codec)

    def _begin(self, runtime: TopicRuntime, codec: Codec | None) -> _Batch:
        if not self._batches:
            self.loop.call_soon(self._flush)
        batch = self._open[runtime] = _Batch(self, runtime, codec)
        self._batches.append(batch)
        return batch

    def _flush(self) -> None:
        batches, self._batches = self._batches, []
        self._open.clear()
        # An engine has one journal.
        queue = batches[0].runtime.log.queue
        entries = [batch.entry() for batch in batches]
        if queue.commit_here(entries):
            return
        try:
            is_taken = queue.submit(*entries)
        except FrazilError as error:
            for batch in batches:
                batch.set_exception(error)
            return
        if not is_taken:
            for batch in batches:
                self.send_singly(batch)


def check_record(runtime: TopicRuntime, record: Message) -> tuple[Codec | None, int]:
    """Return the codec and the bytes of a record that its topic may take.

    Raises:
        Refused: if it is larger than a message may be.
        InvalidRequest: if anything else is wrong with it.
    """
    try:
        codec, _data, _count, size = runtime.prepare_own(record)
    except InvalidRequest as error:
        size = cast("int", error.details.get("bytes", 0))
        size_max = runtime.limits.message_bytes_max
        if size <= size_max:
            raise
        too_large = status("message_too_large", size_bytes=size, size_bytes_max=size_max)
        raise Refused(too_large) from error
    return codec, size


async def _wait_and_send(runtime: TopicRuntime, record: Message, publishing: Publishing) -> None:
    queue = runtime.log.queue
    loop = asyncio.get_running_loop()
    try:
        await wait_admitted_async(runtime)
        codec, size = check_record(runtime, record)
        entry: Entry = (runtime.state, codec, record, 0, size, publishing, None)
        deadline = loop.time() + queue.wait_s
        while not queue.submit(entry):
            room = asyncio.Event()
            queue.on_space(partial(loop.call_soon_threadsafe, room.set))
            if queue.submit(entry):
                return
            try:
                await asyncio.wait_for(room.wait(), max(deadline - loop.time(), 0))
            except TimeoutError:
                raise queue.overloaded() from None
    except (FrazilError, Refused) as error:
        publishing.set_exception(error)
