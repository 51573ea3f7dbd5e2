"""The handle of a topic in the embedded API: publish, read, hold, describe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from frazil.engine.change_calls import ChangeCalls
from frazil.engine.subscribing_calls import SubscribeCalls
from frazil.errors import FrazilError
from frazil.log import PLAIN, Pending
from frazil.topic import WAITED_FOR, Reader, Start, TierPending, joined_ack, pass_stop, wait_reached

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa

    from frazil.engine.engine import Engine
    from frazil.log.codec import Entry
    from frazil.model import Ack
    from frazil.topic import Prepared, TopicRuntime


class Topic(ChangeCalls, SubscribeCalls):
    """A topic of an open engine. Safe to use from many threads.

    Every publish returns an `Ack` when what its level promises is true: `received` means that the
    record is written and has its final offset; `fsynced` (the default of `commit` topics) that it
    survives a crash of this machine; `uploaded`, for topics with objects, that it is in the object
    store and survives the loss of this machine; `committed`, for topics with a lake, that it is in
    the Iceberg table, too. After an error of class `Unavailable` with
    `outcome="unknown"` the record may or may not be there; an idempotent producer (`producer=` and
    `sequence=`) may simply send it again.
    """

    def __init__(self, engine: Engine, runtime: TopicRuntime) -> None:
        self._engine = engine
        self._runtime = runtime
        self._queue = runtime.queue
        self._state = runtime.state
        self._fast_bytes_max = runtime.payload_bytes_max if runtime.is_message else -1

    def __repr__(self) -> str:
        return f"Topic({self.name!r})"

    @property
    def name(self) -> str:
        """Return the full name, `/namespace/name`."""
        return self._runtime.name

    @property
    def schema(self) -> pa.Schema:
        """Return the current columns."""
        schema: pa.Schema = self._runtime.codec.schema
        return schema

    @property
    def runtime(self) -> TopicRuntime:
        """Return the engine's side of the topic."""
        return self._runtime

    # -- publish ---------------------------------------------------------------------------------

    def append(
        self,
        record: bytes | Mapping[str, Any] | None = None,
        /,
        *,
        ack: str | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        producer_epoch: int = 0,
        **fields: Any,
    ) -> Ack:
        """Publish one record and wait for its ack.

        A message topic takes bytes, with `key=`, `attributes=`, `publish_time=` and the other
        fields of the envelope as keywords. A table topic takes a dict or the columns as keywords.
        On return the record is as safe as `ack` says and visible to readers.

        Raises:
            InvalidRequest: the record does not fit the topic; nothing was written.
            Conflict: the producer's sequence has a gap, or a newer epoch fenced it.
            Overloaded: the queue, the disk or the topic's quota is full; nothing was written.
            Unavailable: storage failed; whether the record is there is unknown.
            Closed: the engine is closed.
        """
        pending = self.send(
            record,
            ack=ack,
            producer=producer,
            sequence=sequence,
            producer_epoch=producer_epoch,
            **fields,
        )
        value: Ack = pending.result()
        return value

    def send(
        self,
        record: bytes | Mapping[str, Any] | None = None,
        /,
        *,
        ack: str | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        producer_epoch: int = 0,
        **fields: Any,
    ) -> Pending:
        """Publish one record without waiting; `result()` of what it returns gives the ack."""
        runtime = self._runtime
        if runtime.refusal is not None:
            pass_stop(runtime)
        if runtime.pressure.level:
            runtime.pressure.admit()
        sender = None
        if ack is not None or producer is not None or sequence is not None:
            sender = runtime.sender(ack, producer, sequence, producer_epoch)
        pending = TierPending(runtime, ack) if ack in WAITED_FOR else Pending()
        entry: Entry
        if type(record) is bytes and not fields and len(record) <= self._fast_bytes_max:
            entry = (self._state, PLAIN, record, 0, len(record) + 8, pending, sender)
        else:
            codec, data, count, size = runtime.prepare(record, fields)
            entry = (self._state, codec, data, count, size, pending, sender)
        if not self._queue.submit(entry):
            self._queue.submit_waiting(entry)
        return pending

    def append_many(
        self,
        records: Iterable[bytes | Mapping[str, Any]],
        *,
        ack: str | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        producer_epoch: int = 0,
    ) -> Ack:
        """Publish records in order and wait; the ack covers the first to the last of them.

        All records are checked before the first is written. Up to `log.write_bytes_max` they are
        one frame: after a crash all of them are there or none. A larger call is several frames;
        with `producer=` at most `producers.window_batches` of them, so that the call can be sent
        again.

        Raises:
            InvalidRequest: a record or an option is wrong, or the call is too large for a producer;
                nothing was written.
            Conflict: the producer's sequence has a gap, or a newer epoch fenced it.
            Overloaded: the queue, the disk or the topic's quota is full; nothing was written.
            Unavailable: storage failed, or only some frames were written; the details name them.
            Closed: the engine is closed.
        """
        prepared = self._runtime.prepare_many(records)
        return self._append_prepared(prepared, ack, producer, sequence, producer_epoch)

    def check_many(self, records: Iterable[bytes | Mapping[str, Any]]) -> None:
        """Check records as `append_many` would, without publishing them."""
        self._runtime.prepare_many(records)

    def to_batches(self, data: object) -> list[pa.RecordBatch]:
        """Convert Arrow data to the topic's columns, as `append_arrow` would."""
        return list(self._runtime.arrow_batches(data))

    def append_arrow(
        self,
        data: object,
        *,
        ack: str | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        producer_epoch: int = 0,
    ) -> Ack:
        """Publish Arrow data: a RecordBatch, a Table, or anything with the Arrow C stream interface.

        pandas, Polars and DuckDB objects are taken as they are. Columns go by name; types must fit
        without loss. All rows are checked before the first is written. Frames, limits and errors
        are those of `append_many`.
        """
        prepared = self._runtime.prepare_arrow(data)
        return self._append_prepared(prepared, ack, producer, sequence, producer_epoch)

    def _append_prepared(
        self,
        prepared: list[Prepared],
        ack: str | None,
        producer: str | None,
        sequence: int | None,
        epoch: int,
    ) -> Ack:
        runtime = self._runtime
        if runtime.refusal is not None:
            pass_stop(runtime)
        if runtime.pressure.level:
            runtime.pressure.admit()
        sender = runtime.sender(ack, producer, sequence, epoch)
        waiting = [Pending() for _each in prepared]
        self._queue.submit_waiting(*runtime.entries(prepared, waiting, sender))
        joined = joined_ack([_answer(pending) for pending in waiting])
        wait_reached(ack, [(runtime, joined)])
        return joined

    # -- read ------------------------------------------------------------------------------------

    def read(
        self, start: Start = "earliest", *, limit: int | None = None, bytes_max: int | None = None
    ) -> Reader:
        """Read batches from `start` up to the head as it is now.

        `start` is an offset, `"earliest"`, `"latest"` or a datetime. `limit` counts records;
        `bytes_max` bounds what is held in memory at once.
        """
        return Reader(
            self._runtime,
            start=start,
            follow=False,
            limit=limit,
            bytes_max=bytes_max,
            timeout_s=None,
        )

    def tail(
        self,
        start: Start = "latest",
        *,
        limit: int | None = None,
        bytes_max: int | None = None,
        timeout_s: float | None = None,
    ) -> Reader:
        """Read batches from `start` on and wait for new ones; ends after `timeout_s` of silence."""
        return Reader(
            self._runtime,
            start=start,
            follow=True,
            limit=limit,
            bytes_max=bytes_max,
            timeout_s=timeout_s,
        )

    # -- holds and facts -------------------------------------------------------------------------

    def hold(self, name: str, offset: int) -> None:
        """Keep the records from `offset` on until the hold is advanced or dropped; durable."""
        self._engine.hold(self.name, name, offset)

    def advance(self, name: str, offset: int) -> None:
        """Move a hold forwards; durable on return."""
        self._engine.advance(self.name, name, offset)

    def drop(self, name: str) -> None:
        """Remove a hold; durable on return."""
        self._engine.drop(self.name, name)

    def describe(self) -> dict[str, Any]:
        """Return everything that is known about the topic, ready for JSON."""
        return self._engine.describe(self.name)

    def stats(self) -> dict[str, Any]:
        """Return counts, sizes and watermarks of the topic."""
        return self._engine.topic_stats(self.name)


def _answer(pending: Pending) -> Ack | FrazilError:
    """Wait for one frame's answer; an error is returned, for the others count as well."""
    try:
        value: Ack = pending.result()
    except FrazilError as error:
        return error
    return value
