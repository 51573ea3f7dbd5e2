"""The consumers of one subscription: what each asked for, and what is on its way to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from frazil.subscribe.consumer import Keeper
from frazil.subscribe.flights import taken_by
from frazil.subscribe.policy import SubscriptionType

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from frazil.errors import FrazilError
    from frazil.subscribe.actions import Change
    from frazil.subscribe.consumer import Consumer
    from frazil.subscribe.dispatch import Dispatch
    from frazil.subscribe.outbox import Outbox

__all__ = ["Attached", "AttachedConsumers"]


class Attached:
    """A consumer that takes part."""

    __slots__ = ("consumer", "filters", "keeper", "outbox", "wanted")

    def __init__(self, consumer: Consumer, filters: Sequence[str], outbox: Outbox) -> None:
        self.consumer = consumer
        self.keeper = consumer if isinstance(consumer, Keeper) else None
        self.filters = filters
        self.outbox = outbox
        self.wanted = (0, 0)

    def give_up_unseen(self, dispatch: Dispatch) -> None:
        """Take back what its program has not taken: that nobody failed at."""
        if self.keeper is not None:
            dispatch.take_back(self.consumer.consumer_id, self.keeper.give_up(None))


class AttachedConsumers:
    """Those that take part, in the order that dispatch has them. Belongs to the loop's thread."""

    def __init__(self) -> None:
        self._by_id: dict[int, Attached] = {}
        self.has_keepers = False
        """Whether one of them ever was a program that takes records by itself."""

    def __iter__(self) -> Iterator[Attached]:
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, consumer_id: int | None) -> Attached | None:
        """Return who has an id."""
        return None if consumer_id is None else self._by_id.get(consumer_id)

    def find(self, consumer: Consumer) -> Attached | None:
        """Return a consumer if it still takes part, and no other in its place."""
        found = self._by_id.get(consumer.consumer_id)
        return found if found is not None and found.consumer is consumer else None

    def add(self, fresh: Attached) -> None:
        """Let a consumer take part; those of the same id or name are displaced.

        It has the place of the one of its name, as in dispatch: a reset attaches all of them anew
        in this order, and the first is the one that works.
        """
        own_id = fresh.consumer.consumer_id
        gone = self.displaced_by(fresh.consumer)
        kept: dict[int, Attached] = {}
        for one in self:
            if one.consumer.name == fresh.consumer.name:
                kept[own_id] = fresh
            elif one not in gone:
                kept[one.consumer.consumer_id] = one
        kept.setdefault(own_id, fresh)
        self._by_id = kept
        self.has_keepers = self.has_keepers or fresh.keeper is not None
        for one in gone:
            one.outbox.close()
            one.consumer.displaced()

    def remove(self, consumer: Consumer) -> None:
        """End the part of a consumer that takes part."""
        self._by_id.pop(consumer.consumer_id).outbox.close()

    def move_to(self, dispatch: Dispatch, *, now_ms: int) -> None:
        """Let all take part in another dispatch; what is on its way to them will come anew."""
        for each in self:
            each.outbox.clear()
            consumer = each.consumer
            dispatch.attach(
                consumer.consumer_id, name=consumer.name, filters=each.filters, now_ms=now_ms
            )
            messages, size_bytes = each.wanted
            dispatch.want(consumer.consumer_id, messages=messages, size_bytes=size_bytes)
            if each.keeper is not None:
                each.keeper.revoked(None)

    def displaced_by(self, consumer: Consumer) -> list[Attached]:
        """Return those that end when a consumer comes: one of its id, one of its name."""
        own_id, name = consumer.consumer_id, consumer.name
        return [
            one for one in self if one.consumer.consumer_id == own_id or one.consumer.name == name
        ]

    def revoke(self, change: Change) -> None:
        """Have programs not take what a change took from them."""
        if not self.has_keepers:
            return
        for consumer_id, offsets in taken_by(change).items():
            found = self.get(consumer_id)
            if found is not None and found.keeper is not None:
                found.keeper.revoked(offsets)

    def spare(self, dispatch: Dispatch, *, timeout_ms: int, now_ms: int) -> None:
        """Let the time for an ack run from when a program took the record.

        One that it has not taken when the time is over goes to others, if others may have it. On
        KeyShared it waits for the same program, and leaves its place in the window to others.
        """
        if not self.has_keepers:
            return
        unseen: dict[Attached, list[int]] = {}
        for offset in dispatch.overdue(now_ms):
            found = self.get(dispatch.holder(offset))
            if found is None or found.keeper is None:
                continue
            held_ms = found.keeper.held_ms(offset)
            if held_ms is None:
                unseen.setdefault(found, []).append(offset)
            elif held_ms < timeout_ms:
                dispatch.prolong(offset, until_ms=now_ms + timeout_ms - held_ms)
        is_shared = dispatch.kind in {SubscriptionType.SHARED, SubscriptionType.KEY_SHARED}
        is_for_others = is_shared and len(self) > 1
        for found, offsets in unseen.items():
            for offset in offsets:
                dispatch.prolong(offset, until_ms=now_ms + timeout_ms)
            if is_for_others and found.keeper is not None:
                given_up = found.keeper.give_up(offsets)
                dispatch.take_back(found.consumer.consumer_id, given_up)

    def end(self, error: FrazilError) -> None:
        """End everybody's part, and tell them why."""
        ended, self._by_id = self._by_id, {}
        for each in ended.values():
            each.outbox.close()
            each.consumer.ended(error)
