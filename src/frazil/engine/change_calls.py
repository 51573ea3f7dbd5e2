"""The calls of a keyed topic: insert, update, upsert, delete, changes in bulk, look-ups by key."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, TypeVar

from frazil.errors import FrazilError, InvalidRequest
from frazil.log import Pending
from frazil.model import OP_INSERT, OP_UPSERT
from frazil.topic import (
    STEPS_MAX,
    ChangeFeed,
    TopicChanges,
    bulk_ack,
    check_bulk,
    check_there,
    joined_ack,
    nothing_written,
    numbered,
    pass_stop,
    steps_of,
    wait_reached,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from frazil.log import Sender
    from frazil.model import Ack
    from frazil.tiers import KeyLookup
    from frazil.topic import Prepared, Step, TopicRuntime

T = TypeVar("T")


class ChangeCalls:
    """What a topic with a primary key can do besides `append`, which upserts."""

    _runtime: TopicRuntime

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
        """Publish a whole row; a row that has its key already is replaced.

        Raises:
            Conflict: if the key exists and the topic's `unknown_key` is `error`.
            InvalidRequest: if the topic has no primary key, or the row does not fit.
        """
        step = self._changes().whole(OP_INSERT, row, columns)
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
        """Publish a whole row that replaces whatever its key had."""
        step = self._changes().whole(OP_UPSERT, row, columns)
        return self._publish([step], ack, producer, sequence, producer_epoch)

    def update(
        self,
        *arguments: Any,
        ack: str | None = None,
        producer: str | None = None,
        sequence: int | None = None,
        producer_epoch: int = 0,
        **columns: Any,
    ) -> Ack:
        """Change the named columns of one row; the others stay as they are.

        `update(row)` with the key in it, `update(key, columns)`, or `update(column, value,
        columns)` where `column` is the primary key; columns may be keywords, too. Naming the key
        among the columns moves the row: a delete and an insert, written together.

        Raises:
            NotFound: if no row has the key and the topic's `unknown_key` is `error`.
            Conflict: if the change that this one builds on failed; try again.
        """
        step = self._changes().update(arguments, columns)
        return self._publish([step], ack, producer, sequence, producer_epoch)

    def delete(
        self,
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
        step = self._changes().delete(arguments, key)
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

        `data` is Arrow (anything that `append_arrow` takes) with an operation column, or an
        iterable of Debezium envelopes as dicts, JSON texts or bytes, each alone, as a pair with
        its key, or as a dict with `key` and `value`. Tombstones are passed over; a call with
        nothing else writes nothing, and its ack is of no record: `offset` is the head, and
        `offset_last` the offset before it. All is checked before the first change is written.

        With `producer=` and `sequence=` a repeat writes nothing and gets the first ack; the next
        call's sequence is this one's plus its changes (tombstones do not count, a change of a key
        counts twice). Of a call that was written in part a repeat writes the rest.

        Raises:
            InvalidRequest: with the number of the first change that is wrong; also if there is
                none at all, or if the call is too large for a producer.
            Conflict, NotFound: if the topic's `unknown_key` is `error` and a key exists, or does
                not, against what a change says; nothing is written then, unless another change
                came in between: then `offsets_written` tells what is.
            Conflict: if the producer's sequence has a gap, or a newer epoch fenced it.
        """
        changes = self._changes()
        runtime = self._runtime
        sender = runtime.sender(ack, producer, sequence, producer_epoch)
        pieces: list[list[Step] | Prepared] = list(steps_of(runtime, changes, data, op_column))
        check_bulk(runtime, pieces, sender)
        if not pieces:
            return nothing_written(runtime)
        results: list[Ack | FrazilError] = []
        for piece, own in numbered(pieces, sender):
            try:
                results += [_answer(each) for each in self.begin(piece, own)]
            except FrazilError as error:
                results.append(error)
            if any(isinstance(result, FrazilError) for result in results):
                break
        return self._reached(bulk_ack(results), ack)

    def begin(self, piece: list[Step] | Prepared, sender: Sender | None) -> list[Pending]:
        """Queue a piece of a bulk, waiting for room; return what its frames wait with."""
        self.pass_door()
        if isinstance(piece, list):
            return self._queued(piece, sender)
        runtime = self._runtime
        pending = Pending()
        runtime.queue.submit_waiting(*runtime.entries([piece], [pending], sender))
        return [pending]

    def _changes(self) -> TopicChanges:
        return self._runtime.changes

    def _publish(
        self,
        steps: Sequence[Step],
        ack: str | None,
        producer: str | None,
        sequence: int | None,
        epoch: int,
    ) -> Ack:
        sender = self._runtime.sender(ack, producer, sequence, epoch)
        for step in steps:
            self._runtime.changes.check_part(step)
        self.pass_door()
        return self._reached(joined_ack(self.submit_steps(steps, sender)), ack)

    def _reached(self, found: Ack, ack: str | None) -> Ack:
        """Wait for the tier behind the log where that was asked for."""
        wait_reached(ack, [(self._runtime, found)])
        return found

    def submit_steps(self, steps: Sequence[Step], sender: Sender | None) -> list[Ack | FrazilError]:
        """Resolve and queue steps that were let in, waiting for room; return their frames' answers."""
        return [_answer(pending) for pending in self._queued(steps, sender)]

    def _queued(self, steps: Sequence[Step], sender: Sender | None) -> list[Pending]:
        assert len(steps) <= STEPS_MAX
        changes = self._runtime.changes
        return when_room(self._runtime, lambda: changes.try_submit(steps, sender, Pending))

    def pass_door(self) -> None:
        """Return when a publish may go on.

        Raises:
            Overloaded: if publishing to the topic is stopped, or memory stays short.
        """
        runtime = self._runtime
        if runtime.refusal is not None:
            pass_stop(runtime)
        if runtime.pressure.level:
            runtime.pressure.admit()

    # -- look-ups --------------------------------------------------------------------------------

    def get(self, key: Any) -> dict[str, Any] | None:
        """Return the row with a key, None if there is none. Sees everything that was acked.

        `key` is a value, a tuple for a key of several columns, or a dict of the key's columns.
        """
        return self._lookup().get(key)

    def get_many(self, keys: Iterable[Any]) -> list[dict[str, Any] | None]:
        """Return the rows with these keys, in their order, all of one moment."""
        return self._lookup().get_many(keys)

    def changes(
        self, from_offset: int = 0, *, limit: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """Return the change feed from an offset up to the head as it is now.

        Each change is a dict with `offset`, `time`, `op`, `key`, `before` and `after`: the row
        before and after it, None where there is none, or where it is no longer known.
        """
        check_there(self._runtime)
        return iter(ChangeFeed(self._runtime, from_offset=from_offset, limit=limit))

    def _lookup(self) -> KeyLookup:
        check_there(self._runtime)
        tiers = self._runtime.tiers
        if tiers is None:
            raise InvalidRequest("look-ups need the memory tier, set memory.enabled")
        if tiers.lookup is None:
            raise InvalidRequest(
                "look-ups need a primary key, create the topic with primary_key=",
                topic=self._runtime.name,
            )
        return tiers.lookup


def when_room(runtime: TopicRuntime, submit: Callable[[], T | None]) -> T:
    """Submit, waiting for room in the queue as long as the settings allow.

    Raises:
        Overloaded: if the queue stays full.
    """
    queue, clock = runtime.queue, runtime.clock
    deadline = clock.monotonic() + queue.wait_s
    while True:
        found = submit()
        if found is not None:
            return found
        room = threading.Event()
        queue.on_space(room.set)
        if not room.wait(max(deadline - clock.monotonic(), 0)):
            raise queue.overloaded()


def _answer(pending: Pending) -> Ack | FrazilError:
    try:
        value: Ack = pending.result()
    except FrazilError as error:
        return error
    return value
