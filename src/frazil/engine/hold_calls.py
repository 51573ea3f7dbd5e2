"""What an engine can do with holds: keep records, let them go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from frazil.engine.tier_calls import TierCalls
from frazil.errors import Conflict, InvalidRequest, NotFound
from frazil.log import STATE_HOLD, Control
from frazil.log import format as fmt
from frazil.objects import OBJECTS_HOLD
from frazil.subscribe import HOLD_PREFIX
from frazil.topic import check_hold_name, check_hold_offset

if TYPE_CHECKING:
    from frazil.topic import TopicRuntime

LAKE_HOLD: Final = "lake"


class HoldCalls(TierCalls):
    """The calls of an engine that say which records are still needed."""

    def hold(self, topic: str, name: str, offset: int) -> None:
        """Keep a topic's records from `offset` on; durable on return.

        Raises:
            Conflict: if a hold of this name exists.
            InvalidRequest: if the offset is not in `[start, durable]`.
        """
        check_hold_name(name)
        check_hold_offset(offset)
        with self._control:
            runtime = self._runtime(topic)
            self._check_own(runtime, name)
            state = runtime.state
            if name in state.holds:
                raise Conflict("hold exists already, use advance", topic=state.spec.name, hold=name)
            start = runtime.history.range(state.id).first
            if not start <= offset <= state.durable:
                raise InvalidRequest(
                    "hold must be within the topic's records",
                    offset=offset,
                    start=start,
                    durable=state.durable,
                )
            self._set_hold(runtime, name, offset)

    def advance(self, topic: str, name: str, offset: int) -> None:
        """Move a hold forwards; durable on return.

        Raises:
            NotFound: if there is no such hold.
            Conflict: if it would move backwards.
            InvalidRequest: if the offset is above `durable`.
        """
        check_hold_name(name)
        check_hold_offset(offset)
        with self._control:
            runtime = self._runtime(topic)
            self._check_own(runtime, name)
            state = runtime.state
            if name not in state.holds:
                raise NotFound("no such hold", topic=state.spec.name, hold=name)
            if offset < state.holds[name]:
                raise Conflict(
                    "a hold never moves backwards", hold=name, offset=offset, now=state.holds[name]
                )
            if offset > state.durable:
                raise InvalidRequest(
                    "hold must not pass what is durable", offset=offset, durable=state.durable
                )
            self._set_hold(runtime, name, offset)

    def drop(self, topic: str, name: str) -> None:
        """Remove a hold; durable on return.

        Raises:
            NotFound: if there is no such hold.
        """
        check_hold_name(name)
        with self._control:
            runtime = self._runtime(topic)
            self._check_own(runtime, name)
            if name not in runtime.state.holds:
                raise NotFound("no such hold", topic=runtime.name, hold=name)
            self._set_hold(runtime, name, None)

    def _check_own(self, runtime: TopicRuntime, name: str) -> None:
        """Refuse to touch the holds that move with a table or with subscriptions."""
        if name.startswith(HOLD_PREFIX):
            raise InvalidRequest(
                "this hold is a subscription's, it moves with its acks; drop the subscription",
                topic=runtime.name,
                hold=name,
            )
        if name == OBJECTS_HOLD and runtime.objects is not None:
            raise InvalidRequest(
                "this hold is that of uploads and moves with them; switch the topic's objects off",
                topic=runtime.name,
                hold=name,
            )
        if name == LAKE_HOLD and runtime.state.spec.lake:
            raise InvalidRequest(
                "this hold is the lake's, it moves with the table; switch the topic's lake off",
                topic=runtime.name,
                hold=name,
            )

    def _set_hold(self, runtime: TopicRuntime, name: str, offset: int | None) -> None:
        payload = msgspec.msgpack.encode((STATE_HOLD, name, offset))
        runtime.log.control(Control(fmt.KIND_STATE, runtime.state.id, payload))

    def release(self, name: str, offset: int) -> None:
        """Say that another tier durably holds a topic's records below `offset`.

        The log may then free them whatever the holds say; readers find them in that tier.
        """
        check_hold_offset(offset)
        runtime = self._runtime(name)
        if offset > runtime.state.durable:
            raise InvalidRequest("only durable records can be released", offset=offset)
        self.upkeep.release(runtime.state.id, offset)
