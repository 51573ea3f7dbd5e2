"""The progress of subscriptions: durable in the topic's journal, held, and copied to the metadata.

The journal is the source of truth. A subscription is also a hold of its topic, and a row in the
metadata; both follow the cursor later and are never ahead of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import msgspec

from frazil.errors import Conflict, FrazilError, InvalidRequest, NotFound, Overloaded
from frazil.log import (
    STATE_HOLD,
    Acked,
    Attempted,
    Change,
    Control,
    CursorState,
    Dropped,
    Pending,
    delayed,
    encode_changes,
    placed,
)
from frazil.log import format as fmt

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Sequence

    from frazil.clock import Clock
    from frazil.log import Log, TopicState
    from frazil.log.codec import Waiter
    from frazil.model import Ack
    from frazil.subscribe.delivery_state import Change as DispatchChange
    from frazil.topic import Indexer, Instance, TopicRuntime

HOLD_PREFIX: Final = "subscription:"
"""How the holds of subscriptions are named; no other hold may be."""
NAME_BYTES_MAX: Final = 512
SUBSCRIPTIONS_MAX: Final = 1_000
"""Of one topic."""

RETRY_S: Final = 0.01
ROOM_WAIT_S: Final = 5.0
"""How long a change waits for room in the journal's queue before it is refused."""

ONE_BY_ONE: Final = (Overloaded, NotFound, InvalidRequest)
"""Errors of one change: the others of its frame are written without it."""

CursorCopies = dict[tuple[int, str], CursorState]
Answer = Callable[[FrazilError | None], None]
_Waiting = tuple[list[Change], Answer]
"""A dispatch change as the journal knows it, and its answer."""


class Cursors:
    """The subscriptions of an engine's topics and how far each has come. Safe for threads."""

    def __init__(self, engine: Instance, indexer: Indexer) -> None:
        self._engine = engine
        self._indexer = indexer
        self._copied: dict[tuple[int, str], int] = {}
        """The batch sequence up to which the metadata has each cursor."""

    def create(self, topic: str, name: str, cursor: CursorState | int) -> None:
        """Begin a subscription; durable on return. From here on its topic's records are held.

        Raises:
            Conflict: if there is one of this name.
            InvalidRequest: if the name is not allowed or the place is not among the records.
            Overloaded: if the topic has as many subscriptions as it may have.
        """
        place = _place(cursor)
        with self._engine.control_lock:
            runtime = self._engine.topic_runtime(topic)
            if name in runtime.state.cursors:
                raise Conflict("subscription exists", topic=runtime.name, subscription=name)
            # Under the lock as well: others may be created at the same time.
            self.check_new(runtime, name)
            self._check_place(runtime, place)
            # The hold first: a subscription without one could lose records before it reads them.
            hold = _hold_control(runtime.state, name, min(place.acked_below, runtime.state.durable))
            _commit_each(runtime.log, [hold, _control(runtime.state, [placed(name, place)])])

    def reset(self, topic: str, name: str, cursor: CursorState | int) -> None:
        """Put a subscription somewhere else, back or ahead; durable on return.

        All that it knew is replaced: acks above the place and attempts are forgotten.

        Raises:
            NotFound: if there is no such subscription.
            InvalidRequest: if the place is not among the topic's records.
        """
        place = _place(cursor)
        with self._engine.control_lock:
            runtime = self._engine.topic_runtime(topic)
            self._check_known(runtime, name)
            self._check_place(runtime, place)
            controls = [_control(runtime.state, [placed(name, place)])]
            held = runtime.state.holds.get(HOLD_PREFIX + name)
            if held is None or place.acked_below < held:
                # Back first: the hold is never ahead of the cursor.
                offset = min(place.acked_below, runtime.state.durable)
                controls.insert(0, _hold_control(runtime.state, name, offset))
            _commit_each(runtime.log, controls)

    def drop(self, topic: str, name: str) -> None:
        """End a subscription and let its records go; durable on return.

        Raises:
            NotFound: if there is no such subscription.
        """
        with self._engine.control_lock:
            runtime = self._engine.topic_runtime(topic)
            self._check_known(runtime, name)
            dropped = _control(runtime.state, [Dropped(name)])
            _commit_each(runtime.log, [dropped, _hold_control(runtime.state, name, None)])

    def submit(
        self,
        runtime: TopicRuntime,
        changes: Sequence[Change],
        waiter: Waiter,
        *,
        is_alone: bool = False,
    ) -> None:
        """Write acks and attempts of a topic's subscriptions as one frame, and return at once.

        With `is_alone` nothing else is submitted in this turn of the waiter's loop, and this
        thread, which is the loop's, may write them itself. The waiter is settled with an `Ack` when
        all of the changes are durable, in the group of whatever else waits. If it gets an error
        without `outcome="unknown"` none of them was
        written: `Overloaded` beyond a cursor's bounds, `Unavailable` without any room on the disk.

        Raises:
            NotFound: if there is no such subscription.
            Overloaded: if the journal's queue is full.
        """
        journal, cursors = runtime.log.journal, runtime.state.cursors
        if journal.failed is not None:
            raise journal.closed_error()
        if runtime.state.spec.deleted_us:
            raise NotFound("topic was deleted", topic=runtime.name)
        for change in changes:
            if change.name not in cursors:
                self._check_known(runtime, change.name)
        payload = encode_changes(changes)
        control = Control(fmt.KIND_CURSOR, runtime.state.id, payload)
        size = len(payload) + fmt.FRAME_HEAD_BYTES
        queue, entry = runtime.log.queue, (None, None, control, 0, size, waiter, None)
        if is_alone and queue.commit_here([entry]):
            return
        if not queue.submit(entry):
            raise queue.overloaded()

    def load(self, topic: str) -> dict[str, CursorState]:
        """Return the durable progress of a topic's subscriptions by name, as copies.

        Waits for the group that is being written; every ack answered before is in it.
        """
        runtime = self._engine.topic_runtime(topic)
        cursors = runtime.state.cursors
        found: dict[str, CursorState] = runtime.log.queue.call(
            lambda: {name: cursor.copy() for name, cursor in cursors.items()}
        )
        return found

    # -- checks ----------------------------------------------------------------------------------

    def check_new(self, runtime: TopicRuntime, name: str) -> None:
        """Refuse a subscription that could not be created.

        Raises:
            InvalidRequest: if the name cannot be stored.
            Overloaded: if it is new and one too many for its topic.
        """
        _check_name(name)
        names = runtime.state.cursors
        if name not in names and len(names) >= SUBSCRIPTIONS_MAX:
            raise Overloaded(
                "the topic has too many subscriptions, remove some",
                topic=runtime.name,
                subscriptions_max=SUBSCRIPTIONS_MAX,
            )

    def _check_known(self, runtime: TopicRuntime, name: str) -> None:
        if name not in runtime.state.cursors:
            raise NotFound("no such subscription", topic=runtime.name, subscription=name)

    def _check_place(self, runtime: TopicRuntime, place: CursorState) -> None:
        state = runtime.state
        start = runtime.history.range(state.id).first
        if place.acked_below < start or place.end > state.durable:
            raise InvalidRequest(
                "a subscription must be placed within the topic's records",
                topic=runtime.name,
                offset=place.acked_below,
                start=start,
                head=state.durable,
            )

    # -- what follows ----------------------------------------------------------------------------

    def unsettled(self) -> list[Control]:
        """Return the frames that bring holds in line with subscriptions after a crash.

        Only while nothing else is written: at the opening.
        """
        return [each for runtime in self._engine.runtimes for each in _missing_holds(runtime)]

    def follow(self) -> None:
        """Move holds up to their cursors and copy cursors to the metadata, where they changed.

        A hold without a subscription, left by a call that failed half way, is dropped.
        """
        log = self._engine.log
        if log.journal.failed is None and not log.journal.closed:
            # Holds are moved under the lock, so that no subscription is put back meanwhile.
            with self._engine.control_lock:
                # On the journal's thread, between groups: what is seen there is durable.
                holds, copies, gone = log.queue.call(partial(self._changed, log))
                _commit(log, holds)
                self._note(copies, gone)
        with self._engine.control_lock:
            alive = {runtime.state.id for runtime in self._engine.runtimes}
            self._note({}, [key for key in self._copied if key[0] not in alive])

    def _note(self, copies: CursorCopies, gone: list[tuple[int, str]]) -> None:
        journal = self._engine.log.journal
        if (copies or gone) and self._indexer.cursors_changed(journal, copies, gone):
            self._copied.update({key: cursor.lsn for key, cursor in copies.items()})
            for key in gone:
                self._copied.pop(key, None)

    def _changed(self, log: Log) -> tuple[list[Control], CursorCopies, list[tuple[int, str]]]:
        holds: list[Control] = []
        copies: CursorCopies = {}
        topics = log.journal.state.topics
        for topic in topics.values():
            if topic.spec.deleted_us:
                continue
            holds += _stray_holds(topic)
            for name, cursor in topic.cursors.items():
                place = min(cursor.acked_below, topic.durable)
                if place > topic.holds.get(HOLD_PREFIX + name, place):
                    holds.append(_hold_control(topic, name, place))
                if cursor.lsn > self._copied.get((topic.id, name), -1):
                    copies[topic.id, name] = cursor.copy()
        gone = [
            key for key in self._copied if key[0] in topics and key[1] not in topics[key[0]].cursors
        ]
        return holds, copies, gone


class CursorWriter:
    """Writes the changes of all subscriptions. All methods belong to the loop's thread."""

    def __init__(self, cursors: Cursors, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._cursors = cursors
        self._clock = clock
        self._loop = loop
        self._settling: list[Callable[[], None]] = []
        self._waiting: dict[TopicRuntime, list[_Waiting]] = {}

    def settle_soon(self, settle: Callable[[], None]) -> None:
        """Call `settle` in the next turn, before the changes that it adds are written."""
        self._schedule()
        self._settling.append(settle)

    def _schedule(self) -> None:
        if not self._settling and not self._waiting:
            self._loop.call_soon(self._flush)

    def add(self, runtime: TopicRuntime, name: str, change: DispatchChange, answer: Answer) -> None:
        """Write a change of the subscription `name` with the others of this turn.

        `answer` is called when it is durable, or with the error that kept it from being written.
        """
        self._schedule()
        self._waiting.setdefault(runtime, []).append((self._encoded(name, change), answer))

    def _encoded(self, name: str, change: DispatchChange) -> list[Change]:
        """Return a change as the journal knows it, with wall-clock times."""
        if not change.attempts:
            return [Acked(name, list(chain.from_iterable(sorted(change.ranges))))]
        pairs = zip(change.offsets, change.attempts, strict=True)
        written: list[Change] = [Attempted(name, list(chain.from_iterable(pairs)))]
        now_ms = int(self._loop.time() * 1000)
        wall_ms = self._clock.now_us() // 1000 - now_ms
        dues = [
            (offset, number, wall_ms + due_ms)
            for offset, number, due_ms in zip(
                change.offsets, change.attempts, change.dues_ms, strict=True
            )
            if due_ms > now_ms
        ]
        return [*written, delayed(name, *dues)] if dues else written

    def _flush(self) -> None:
        for settle in self._settling:
            _guarded(self._loop, settle)
        self._settling = []
        waiting, self._waiting = self._waiting, {}
        deadline = self._loop.time() + ROOM_WAIT_S
        is_alone = len(waiting) == 1
        for runtime, some in waiting.items():
            self._submit(runtime, some, deadline, is_alone=is_alone)

    def _submit(
        self,
        runtime: TopicRuntime,
        some: list[_Waiting],
        deadline: float,
        *,
        is_alone: bool = False,
    ) -> None:
        waiter = _FrameWaiter(self._loop, some, partial(self._submit_each, runtime))
        try:
            changes = [change for own, _answer in some for change in own]
            self._cursors.submit(runtime, changes, waiter, is_alone=is_alone)
        except Overloaded as error:
            if self._loop.time() >= deadline:
                # Not through the waiter: one by one they would wait as long again.
                for _own, answer in some:
                    _guarded(self._loop, answer, error)
                return
            self._loop.call_later(RETRY_S, self._submit, runtime, some, deadline)
        except FrazilError as error:
            waiter.set_exception(error)

    def _submit_each(self, runtime: TopicRuntime, some: list[_Waiting]) -> None:
        for each in some:
            self._submit(runtime, [each], self._loop.time() + ROOM_WAIT_S)


class _FrameWaiter:
    """The waiter of one frame, with the answers of all its changes."""

    __slots__ = ("_changes", "_loop", "_one_by_one")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        changes: list[_Waiting],
        one_by_one: Callable[[list[_Waiting]], None],
    ) -> None:
        self._loop = loop
        self._changes = changes
        self._one_by_one = one_by_one

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def done(self) -> bool:
        return False

    def set_result(self, _ack: Ack) -> None:
        for _change, answer in self._changes:
            _guarded(self._loop, answer, None)

    def set_exception(self, error: Any) -> None:
        if isinstance(error, ONE_BY_ONE) and len(self._changes) > 1:
            # One subscription was dropped, or is at a bound of its cursor: its frame was refused.
            self._one_by_one(self._changes)
            return
        for _change, answer in self._changes:
            _guarded(self._loop, answer, error)


def _guarded(loop: asyncio.AbstractEventLoop, call: Callable[..., None], *given: Any) -> None:
    try:
        call(*given)
    except Exception as error:  # noqa: BLE001 - a bug of one subscription stops no other
        loop.call_exception_handler({"message": "a subscription failed", "exception": error})


def _stray_holds(state: TopicState) -> Iterable[Control]:
    for hold in state.holds:
        name = hold.removeprefix(HOLD_PREFIX)
        if name != hold and name not in state.cursors:
            yield _hold_control(state, name, None)


def _missing_holds(runtime: TopicRuntime) -> Iterable[Control]:
    state = runtime.state
    yield from _stray_holds(state)
    for name, cursor in state.cursors.items():
        if HOLD_PREFIX + name not in state.holds:
            start = runtime.history.range(state.id).first
            yield _hold_control(state, name, min(max(cursor.acked_below, start), state.durable))


def _place(cursor: CursorState | int) -> CursorState:
    return CursorState(cursor) if isinstance(cursor, int) else cursor.copy()


def _check_name(name: object) -> None:
    """Refuse names that cannot be stored; the protocol itself knows no rules for them."""
    try:
        fits = isinstance(name, str) and 0 < len(name.encode()) <= NAME_BYTES_MAX
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise InvalidRequest(
            "a subscription's name must be text of 1 to 512 bytes", bytes_max=NAME_BYTES_MAX
        )


def _control(state: TopicState, changes: Sequence[Change]) -> Control:
    return Control(fmt.KIND_CURSOR, state.id, encode_changes(changes))


def _hold_control(state: TopicState, name: str, offset: int | None) -> Control:
    payload = msgspec.msgpack.encode((STATE_HOLD, HOLD_PREFIX + name, offset))
    return Control(fmt.KIND_STATE, state.id, payload)


def _entry(control: Control, waiter: Waiter) -> tuple[Any, ...]:
    size = len(control.payload) + fmt.FRAME_HEAD_BYTES
    return (None, None, control, 0, size, waiter, None)


def _commit_each(log: Log, controls: Sequence[Control]) -> None:
    """Make frames durable one after another: none is written if the one before was refused."""
    for control in controls:
        _commit(log, [control])


def _commit(log: Log, controls: Sequence[Control]) -> None:
    """Write frames in this order and wait until all are durable."""
    if not controls:
        return
    pendings = [Pending() for _ in controls]
    log.queue.submit_waiting(*map(_entry, controls, pendings))
    for pending in pendings:
        pending.result()
