"""Records that may be what ends their consumers: how often that happened, and since when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from frazil.subscribe.policy import Poison

if TYPE_CHECKING:
    from frazil.subscribe.policy import FailurePolicy, Limits

__all__ = ["Suspects"]


class Suspects:
    """The oldest records of consumers whose clients went. One life knows nothing of another's."""

    __slots__ = ("_seen",)

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def is_to_blame(
        self, offset: int, policy: FailurePolicy, limits: Limits, *, now_ms: int
    ) -> bool:
        """Note that a client went while this was its oldest record; tell whether that is why.

        Clients that come and go for other reasons must not cost a record, so it takes as many of
        them as there are deliveries, and time; and only where the record is kept.
        """
        times_before, since_ms = self._seen.get(offset, (0, now_ms))
        self._seen[offset] = (times_before + 1, since_ms)
        return (
            policy.poison is Poison.DEAD_LETTER
            and times_before >= policy.max_redelivery_count
            and now_ms - since_ms >= limits.blame_grace_ms
        )

    def forget(self, offset: int) -> None:
        """Think of a record no more: it is settled."""
        self._seen.pop(offset, None)
