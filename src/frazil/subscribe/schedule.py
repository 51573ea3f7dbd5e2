"""Who gets which record next: the contract that the kinds of subscription fill in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from frazil.subscribe.places import Consumer
    from frazil.subscribe.ring import Dealt

__all__ = ["NOTHING", "Assignment", "Schedule"]


class Assignment(NamedTuple):
    """Records to deliver: dealt to consumers, or one special record, not dealt.

    `offsets` are those of them that were held until now.
    """

    dealt: Dealt
    offsets: list[int]
    sizes: list[int]
    is_special: bool


NOTHING = Assignment([], [], [], is_special=False)


class Schedule(Protocol):
    """Holds records that were read and not yet delivered, and deals them to consumers.

    `special` are held offsets that must not simply be delivered (they are acked already, or failed
    too often in an earlier life): `assign_new` hands them out one by one.
    """

    special: set[int]

    @property
    def held(self) -> int:
        """How many records were read and not yet delivered."""

    @property
    def active(self) -> Consumer | None:
        """The one consumer that gets everything, where there is such a one."""

    def room(self, *, held_max: int, unacked: int) -> int:
        """Return how many more records may be fed."""

    def join(self, consumer: Consumer, now_ms: int) -> None:
        """Let a consumer take part."""

    def leave(self, consumer: Consumer, now_ms: int) -> None:
        """Let a consumer take part no more."""

    def replace(self, old: Consumer, new: Consumer, now_ms: int) -> None:
        """Let a consumer take the place of another of the same name."""

    def feed(self, offsets: Sequence[int], sizes: Sequence[int], keys: Sequence[str]) -> None:
        """Take records in, with higher offsets than all before."""

    def again(self, offset: int) -> None:
        """Take in a record whose place is `State.READY`, for another delivery."""

    def set_aside(self, offset: int) -> None:
        """Let a record that its consumer has not seen not hold up those of others."""

    def settle(self, offsets: Sequence[int]) -> None:
        """Forget records that are durably settled."""

    def assign_again(self) -> Dealt:
        """Deal out records for another delivery, as far as streams have room."""

    def assign_new(self, *, messages: int, size_bytes: int, share: int) -> Assignment:
        """Deal out records never delivered, as far as streams and the window have room.

        `share` is how much of the window is each consumer's, where records have owners.
        """

    def skip(self, now_ms: int) -> tuple[list[int], list[int]]:
        """Take out records that nobody will accept; return their offsets and sizes."""

    def due_ms(self) -> int | None:
        """Return when there may be something to do because of the time."""
