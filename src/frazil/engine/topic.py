"""The handle of a topic in the embedded API: publish, read, look up, subscribe, hold, describe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from frazil.errors import Conflict, FrazilError, InvalidRequest, NotFound
from frazil.log import PLAIN, STATE_HOLD, Control, Pending
from frazil.log import format as fmt
from frazil.model import OP_INSERT, OP_UPSERT
from frazil.objects import OBJECTS_HOLD
from frazil.subscribe import HOLD_PREFIX, PREFETCH, PREFETCH_BYTES, Stream
from frazil.topic import (
    STEPS_MAX,
    WAITED_FOR,
    ChangeFeed,
    Reader,
    Start,
    TierPending,
    answer,
    check_bulk,
    check_hold_name,
    check_hold_offset,
    check_refused,
    check_there,
    joined_ack,
    nothing_written,
    numbered,
    steps_of,
    wait_admitted,
    wait_reached,
    when_room,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from frazil.engine.engine import Engine
    from frazil.log import Sender
    from frazil.log.codec import Entry
    from frazil.model import Ack
    from frazil.subscribe import FailurePolicy
    from frazil.tiers import KeyLookup, TopicTiers
    from frazil.topic import Prepared, Step, TopicRuntime

LAKE_HOLD: Final = "lake"


class TopicHandle:
    """The common calls of the handles of plain and partitioned topics."""

    engine: Engine
    name: str
    """The full name, `/namespace/name`."""

    def subscribe(
        self,
        name: str,
        *,
        type: str = "shared",  # noqa: A002 - the field's word
        start: Start = "latest",
        consumer: str | None = None,
        key_filters: Iterable[str] = (),
        max_unacked: int | None = None,
        policy: FailurePolicy | Mapping[str, Any] | None = None,
        prefetch: int = PREFETCH,
        prefetch_bytes: int | str = PREFETCH_BYTES,
        timeout_s: float | None = None,
    ) -> Stream:
        """Consume the topic's records as one consumer of a subscription; iterate over the result.

        A missing subscription is created, durably, with the `type` (`exclusive`, `shared`,
        `failover` or `key_shared`) and begins at `start`. An existing one keeps its type and
        position. A record that is not acked is delivered again, to this consumer or to another.

        `key_filters` are patterns of keys (`*`, `?`) for `key_shared`. `max_unacked` bounds the
        records of the subscription that are delivered and not acked, `policy` decides about failed
        deliveries; both are stored with the subscription. `prefetch` and `prefetch_bytes` bound
        the consumer's records in memory. An older `consumer` of the same name is displaced.
        Iteration waits for records and ends after `timeout_s` without any.

        Raises:
            Conflict: if the subscription is exclusive and has another consumer.
            NotFound: if the topic was deleted.
            InvalidRequest: if an option cannot be used.
            Closed: if the engine is closed.
        """
        return self.engine.subscriptions.subscribe(
            self.name,
            name,
            type=type,
            start=start,
            consumer=consumer,
            key_filters=key_filters,
            max_unacked=max_unacked,
            policy=policy,
            prefetch=prefetch,
            prefetch_bytes=prefetch_bytes,
            timeout_s=timeout_s,
        )

    def subscriptions(self) -> list[dict[str, Any]]:
        """Return the topic's subscriptions, ready for JSON; see `Subscriptions.describe`."""
        return self.engine.subscriptions.describe(self.name)

    def unsubscribe(self, name: str) -> None:
        """Remove a subscription; durable on return. See `Subscriptions.drop`."""
        self.engine.subscriptions.drop(self.name, name)

    def reset_subscription(self, name: str, to: Start) -> dict[str, int]:
        """Move a subscription to another offset; durable on return. See `Subscriptions.reset`."""
        return self.engine.subscriptions.reset(self.name, name, to)

    def subscription_policy(self, name: str) -> FailurePolicy:
        """Return the failure policy of a subscription."""
        return self.engine.subscriptions.policy(self.name, name)

    def set_subscription(
        self,
        name: str,
        *,
        policy: FailurePolicy | Mapping[str, Any] | None = None,
        max_unacked: int | None = None,
    ) -> FailurePolicy:
        """Change a subscription's failure policy or window; see `Subscriptions.alter`."""
        return self.engine.subscriptions.alter(
            self.name, name, policy=policy, max_unacked=max_unacked
        )

    def describe(self) -> dict[str, Any]:
        """Describe the topic, ready for JSON."""
        return self.engine.describe(self.name)


class Topic(TopicHandle):
    """A topic of an open engine. Safe to use from many threads.

    Every publish returns an `Ack` when its ack level is reached. `received` means that the record
    is written and has its final offset; `fsynced` (the default of `commit` topics) that it survives
    a crash of this machine; `uploaded`, for topics with objects, that it is in the object store and
    survives the loss of this machine; `committed`, for topics with a lake, that it is in the
    Iceberg table, too. After an error of class `Unavailable` with `outcome="unknown"` the record
    may or may not be written; an idempotent producer (`producer=` and `sequence=`) may send it
    again.
    """

    def __init__(self, engine: Engine, runtime: TopicRuntime) -> None:
        self.engine = engine
        self.runtime = runtime
        """The topic's runtime in the engine."""
        self.name = runtime.name
        self._queue = runtime.queue
        self._state = runtime.state
        self._fast_bytes_max = runtime.payload_bytes_max if runtime.is_message else -1

    def __repr__(self) -> str:
        return f"Topic({self.name!r})"

    @property
    def schema(self) -> pa.Schema:
        """Return the current columns."""
        return self.runtime.codec.schema

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
            InvalidRequest: the record does not fit the topic; it was not written.
            Conflict: the producer's sequence skips numbers, or a newer epoch fenced it.
            Overloaded: the queue, the disk or the topic's quota is full; it was not written.
            Unavailable: storage failed; whether the record was written is unknown.
            Closed: the engine is closed.
        """
        value: Ack = self.send(
            record,
            ack=ack,
            producer=producer,
            sequence=sequence,
            producer_epoch=producer_epoch,
            **fields,
        ).result()
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
        """Publish one record without waiting; `result()` of the returned value is the ack."""
        runtime = self.runtime
        if runtime.refusal is not None or runtime.pressure.level:
            wait_admitted(runtime)
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
        one frame: after a crash all of them are recovered or none. A larger call is several frames;
        with `producer=` at most five, so that the call can be sent again.

        Raises:
            InvalidRequest: a record or an option is wrong, or the call is too large for a producer;
                no record was written.
            Conflict: the producer's sequence skips numbers, or a newer epoch fenced it.
            Overloaded: the queue, the disk or the topic's quota is full; no record was written.
            Unavailable: storage failed, or only some frames were written; the details name them.
            Closed: the engine is closed.
        """
        prepared = self.runtime.prepare_many(records)
        return self._append_prepared(prepared, ack, producer, sequence, producer_epoch)

    def check_many(self, records: Iterable[bytes | Mapping[str, Any]]) -> None:
        """Check records as `append_many` would, without publishing them."""
        self.runtime.prepare_many(records)

    def to_batches(self, data: object) -> list[pa.RecordBatch]:
        """Convert Arrow data to the topic's columns, as `append_arrow` would."""
        return list(self.runtime.arrow_batches(data))

    def append_arrow(
        self,
        data: object,
        *,
        ack: str | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        producer_epoch: int = 0,
    ) -> Ack:
        """Publish Arrow data: a RecordBatch, a Table, or any Arrow C stream.

        pandas, Polars and DuckDB objects are accepted directly. Columns are matched by name; types
        must fit without loss. All rows are checked before the first is written. Frames, limits and
        errors are those of `append_many`.
        """
        prepared = self.runtime.prepare_arrow(data)
        return self._append_prepared(prepared, ack, producer, sequence, producer_epoch)

    def _append_prepared(
        self,
        prepared: list[Prepared],
        ack: str | None,
        producer: str | None,
        sequence: int | None,
        epoch: int,
    ) -> Ack:
        runtime = self.runtime
        wait_admitted(runtime)
        sender = runtime.sender(ack, producer, sequence, epoch)
        waiting = [Pending() for _each in prepared]
        self._queue.submit_waiting(*runtime.entries(prepared, waiting, sender))
        return self._reached(joined_ack([answer(pending) for pending in waiting]), ack)

    # -- changes of keys --------------------------------------------------------------------------

    def insert(
        self,
        row: Mapping[str, Any] | None = None,
        /,
        *,
        ack: str | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        producer_epoch: int = 0,
        **columns: Any,
    ) -> Ack:
        """Publish a whole row; an existing row with its key is replaced.

        Raises:
            Conflict: if the key exists and the topic's `unknown_key` is `error`.
            InvalidRequest: if the topic has no primary key, or the row does not fit.
        """
        step = self.runtime.changes.whole(OP_INSERT, row, columns)
        return self._publish([step], ack, producer, sequence, producer_epoch)

    def upsert(
        self,
        row: Mapping[str, Any] | None = None,
        /,
        *,
        ack: str | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        producer_epoch: int = 0,
        **columns: Any,
    ) -> Ack:
        """Publish a whole row; it replaces the row with its key, if there is one."""
        step = self.runtime.changes.whole(OP_UPSERT, row, columns)
        return self._publish([step], ack, producer, sequence, producer_epoch)

    def update(
        self,
        /,
        *arguments: Any,
        ack: str | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        producer_epoch: int = 0,
        **columns: Any,
    ) -> Ack:
        """Change the named columns of one row; the other columns keep their values.

        `update(row)` with the key in it, `update(key, columns)`, or `update(column, value,
        columns)` where `column` is the primary key; columns may be keywords, too. Naming the key
        among the columns moves the row: a delete and an insert, written together.

        Raises:
            NotFound: if no row has the key and the topic's `unknown_key` is `error`.
            Conflict: if the change that this one was resolved against failed; try again.
        """
        step = self.runtime.changes.update(arguments, columns)
        return self._publish([step], ack, producer, sequence, producer_epoch)

    def delete(
        self,
        /,
        *arguments: Any,
        ack: str | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        producer_epoch: int = 0,
        **key: Any,
    ) -> Ack:
        """Delete the row with a key: `delete(key)`, `delete(column, value)` or `delete(id=7)`.

        Raises:
            NotFound: if no row has the key and the topic's `unknown_key` is `error`.
        """
        step = self.runtime.changes.delete(arguments, key)
        return self._publish([step], ack, producer, sequence, producer_epoch)

    def append_changes(
        self,
        data: object,
        *,
        op_column: str = "_op",
        ack: str | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        producer_epoch: int = 0,
    ) -> Ack:
        """Publish changes in bulk, in order.

        `data` is Arrow data (as for `append_arrow`) with an operation column, or an iterable of
        Debezium envelopes as dicts, JSON texts or bytes, each alone, as a pair with its key, or as
        a dict with `key` and `value`. Tombstones are skipped. A call with only tombstones writes no
        record, and its ack has the head as `offset` and the offset before it as `offset_last`. All
        changes are checked before the first is written.

        With `producer=` and `sequence=` a repeat writes no record and returns the first ack. The
        next call's sequence is this one's plus its changes (tombstones do not count, a change of a
        key counts twice). If a call was written in part, a repeat writes the rest.

        Raises:
            InvalidRequest: with the number of the first wrong change; also if there is no change,
                or if the call is too large for a producer.
            Conflict, NotFound: if the topic's `unknown_key` is `error` and a change inserts an
                existing key, or updates or deletes a missing one. No change is written then, unless
                another call changed a key in between: then `offsets_written` names the written
                offsets.
            Conflict: if the producer's sequence skips numbers, or a newer epoch fenced it.
        """
        runtime = self.runtime
        sender = runtime.sender(ack, producer, sequence, producer_epoch)
        pieces: list[list[Step] | Prepared] = list(steps_of(runtime, data, op_column))
        check_bulk(runtime, pieces, sender)
        if not pieces:
            return nothing_written(runtime)
        results: list[Ack | FrazilError] = []
        for piece, own in numbered(pieces, sender):
            try:
                results.append(self.begin(piece, own).result())
            except FrazilError as error:
                results.append(error)
                break
        check_refused(results)
        return self._reached(joined_ack(results), ack)

    def begin(self, piece: list[Step] | Prepared, sender: Sender | None) -> Pending:
        """Queue a piece of a bulk, waiting for space; return the waiter of its frame."""
        runtime = self.runtime
        wait_admitted(runtime)
        if isinstance(piece, list):
            return self._queued(piece, sender)
        pending = Pending()
        runtime.queue.submit_waiting(*runtime.entries([piece], [pending], sender))
        return pending

    def _publish(
        self,
        steps: Sequence[Step],
        ack: str | None,
        producer: str | None,
        sequence: int | None,
        epoch: int,
    ) -> Ack:
        sender = self.runtime.sender(ack, producer, sequence, epoch)
        for step in steps:
            self.runtime.changes.check_part(step)
        wait_admitted(self.runtime)
        return self._reached(self._queued(steps, sender).result(), ack)

    def _reached(self, found: Ack, ack: str | None) -> Ack:
        """Wait for the tier of the ack level, if the level has one."""
        wait_reached(ack, [(self.runtime, found)])
        return found

    def _queued(self, steps: Sequence[Step], sender: Sender | None) -> Pending:
        assert len(steps) <= STEPS_MAX
        changes = self.runtime.changes
        return when_room(self._queue, lambda: changes.try_submit(steps, sender))

    # -- look-ups --------------------------------------------------------------------------------

    def get(self, key: Any) -> dict[str, Any] | None:
        """Return the row with a key, None if there is none. All acked changes are visible.

        `key` is a value, a tuple for a key of several columns, or a dict of the key's columns.
        """
        return self._lookup().get(key)

    def get_many(self, keys: Iterable[Any]) -> list[dict[str, Any] | None]:
        """Return the rows with these keys, in their order, all of one moment."""
        return self._lookup().get_many(keys)

    def changes(
        self, from_offset: int = 0, *, limit: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """Return the change feed from an offset up to the current head.

        Each change is a dict with `offset`, `time`, `op`, `key`, `before` and `after`. The last two
        are the row before and after the change, None if there is none or it is no longer known.
        """
        check_there(self.runtime)
        return iter(ChangeFeed(self.runtime, from_offset=from_offset, limit=limit))

    def _lookup(self) -> KeyLookup:
        check_there(self.runtime)
        tiers: TopicTiers | None = self.runtime.tiers
        if tiers is None:
            raise InvalidRequest("look-ups need the memory tier, set memory.enabled")
        if tiers.lookup is None:
            raise InvalidRequest(
                "look-ups need a primary key, create the topic with primary_key=",
                topic=self.runtime.name,
            )
        return tiers.lookup

    # -- read ------------------------------------------------------------------------------------

    def read(
        self, start: Start = "earliest", *, limit: int | None = None, bytes_max: int | None = None
    ) -> Reader:
        """Read batches from `start` up to the current head.

        `start` is an offset, `"earliest"`, `"latest"` or a datetime. `limit` counts records;
        `bytes_max` bounds the bytes in memory at once.
        """
        return Reader(
            self.runtime,
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
        """Read batches from `start` on and wait for new ones; end after `timeout_s` without any."""
        return Reader(
            self.runtime,
            start=start,
            follow=True,
            limit=limit,
            bytes_max=bytes_max,
            timeout_s=timeout_s,
        )

    # -- holds and facts -------------------------------------------------------------------------

    def hold(self, name: str, offset: int) -> None:
        """Keep the records from `offset` on until the hold is advanced or dropped; durable.

        Raises:
            Conflict: if a hold of this name exists.
            InvalidRequest: if the offset is not in `[start, durable]`.
        """
        check_hold_offset(offset)
        runtime, state = self.runtime, self._state
        with self.engine.control_lock:
            self._check_hold(name)
            if name in state.holds:
                raise Conflict("hold exists already, use advance", topic=self.name, hold=name)
            start = runtime.history.range(state.id).first
            if not start <= offset <= state.durable:
                raise InvalidRequest(
                    "hold must be within the topic's records",
                    offset=offset,
                    start=start,
                    durable=state.durable,
                )
            self._set_hold(name, offset)

    def advance(self, name: str, offset: int) -> None:
        """Move a hold forwards; durable on return.

        Raises:
            NotFound: if there is no such hold.
            Conflict: if it would move backwards.
            InvalidRequest: if the offset is above `durable`.
        """
        check_hold_offset(offset)
        state = self._state
        with self.engine.control_lock:
            now = self._existing_hold(name)
            if offset < now:
                raise Conflict("a hold never moves backwards", hold=name, offset=offset, now=now)
            if offset > state.durable:
                raise InvalidRequest(
                    "hold must not pass the durable offset", offset=offset, durable=state.durable
                )
            self._set_hold(name, offset)

    def drop(self, name: str) -> None:
        """Remove a hold; durable on return.

        Raises:
            NotFound: if there is no such hold.
        """
        with self.engine.control_lock:
            self._existing_hold(name)
            self._set_hold(name, None)

    def _existing_hold(self, name: str) -> int:
        self._check_hold(name)
        if name not in self._state.holds:
            raise NotFound("no such hold", topic=self.name, hold=name)
        return self._state.holds[name]

    def _check_hold(self, name: str) -> None:
        """Refuse wrong names, and holds that belong to a table, uploads or a subscription."""
        check_hold_name(name)
        runtime = self.engine.topic_runtime(self.name)
        owner = ""
        if name.startswith(HOLD_PREFIX):
            owner = "a subscription's, it moves with its acks; drop the subscription"
        elif name == OBJECTS_HOLD and runtime.objects is not None:
            owner = "that of uploads and moves with them; switch the topic's objects off"
        elif name == LAKE_HOLD and runtime.state.spec.lake:
            owner = "the lake's, it moves with the table; switch the topic's lake off"
        if owner:
            raise InvalidRequest(f"this hold is {owner}", topic=self.name, hold=name)

    def _set_hold(self, name: str, offset: int | None) -> None:
        payload = msgspec.msgpack.encode((STATE_HOLD, name, offset))
        self.runtime.log.control(Control(fmt.KIND_STATE, self._state.id, payload))

    def stats(self) -> dict[str, Any]:
        """Return counts, sizes and watermarks of the topic."""
        return self.engine.topic_stats(self.name)
