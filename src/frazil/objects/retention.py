"""Which registered objects may go: only whole ones, oldest first, by the topic's policy. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from frazil.objects.descriptor import Descriptor, TopicObjects

__all__ = ["ObjectsPolicy", "ObjectsView", "expired_below"]


@attrs.frozen
class ObjectsPolicy:
    """How long and how much of a topic is kept in objects; None is for ever, or any size."""

    age_us: int | None = None
    bytes_max: int | None = None


@attrs.frozen
class ObjectsView:
    """What a decision needs to know besides, taken once.

    Attributes:
        now_us: the wall clock.
        time_trusted: whether the wall clock ran evenly lately; else nothing goes by age.
        pinned: the lowest offset that an open reader still needs, None if there is none.
        needed: the lowest offset that a subscription still needs, None if there is none.
    """

    now_us: int
    time_trusted: bool = True
    pinned: int | None = None
    needed: int | None = None


def expired_below(picture: TopicObjects, policy: ObjectsPolicy, view: ObjectsView) -> int:
    """Return the offset below which the topic's objects may go; `start` if none may.

    An object that many topics share never goes: it is rewritten by topic first.
    """
    limit = min(
        (offset for offset in (view.pinned, view.needed) if offset is not None),
        default=picture.uploaded,
    )
    below, later = picture.start, picture.bytes
    for found in picture.descriptors:
        later -= found.length
        if found.shared or found.end > limit or not _is_old(found, later, policy, view):
            break
        below = found.end
    return below


def _is_old(found: Descriptor, later: int, policy: ObjectsPolicy, view: ObjectsView) -> bool:
    """Tell whether the policy lets an object go behind which `later` bytes are kept."""
    if policy.bytes_max is not None and later >= policy.bytes_max:
        return True
    if policy.age_us is None or not view.time_trusted:
        return False
    return found.time_last_us + policy.age_us <= view.now_us
