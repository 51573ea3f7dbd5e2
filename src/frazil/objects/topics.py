"""One topic on its way into the object store: how far it is, who waits, which records are held."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from frazil.log import STATE_HOLD, Control
from frazil.log import format as fmt
from frazil.topic import TierWaits

if TYPE_CHECKING:
    from collections.abc import Callable

    from frazil.log import Segment
    from frazil.objects.descriptor import TopicObjects
    from frazil.objects.frame_run import FrameSource
    from frazil.objects.troubles import Trouble
    from frazil.topic import TopicRuntime

__all__ = ["OBJECTS_HOLD", "ObjectsTopic", "hold_control"]

OBJECTS_HOLD: Final = "objects"
LOST: Final = (
    "the metadata lacks objects that were registered, and they are looked for in the store; until "
    "they are found nothing is uploaded, and nothing of the topic is given up"
)


class ObjectsTopic:
    """One topic with objects, a part of a partitioned one included.

    The thread that uploads it sets `busy`; `waits` is for everybody.
    """

    def __init__(
        self,
        runtime: TopicRuntime,
        *,
        picture: Callable[[], TopicObjects],
        frames: FrameSource,
        wake: Callable[[], None],
    ) -> None:
        self.runtime = runtime
        self.id = runtime.state.id
        self._picture = picture
        self._frames = frames
        self.waits = TierWaits(wake, timeout_s=runtime.settings.objects.ack_timeout_s)
        self.busy = False
        self.hurry = False
        """Somebody waits for more than an object of many topics can take."""
        self.begun_at: float | None = None
        """When its last upload began, by the monotonic clock; None before the first."""
        self.rewrite_at = 0.0
        """When to look again whether it has to be rewritten."""
        self.failures = 0
        self.trouble_told: Trouble | None = None
        """Its last trouble that was counted, and told if it was another one than before."""
        self.stopped = LOST if self._lacks_objects() else ""
        """Why it is not uploaded any more, until somebody acts."""
        # They may be found in a moment: who waits is not refused before it is known.
        self.waits.delay = self.stopped
        self.note()

    @property
    def name(self) -> str:
        """Return the topic's full name."""
        return self.runtime.name

    @property
    def picture(self) -> TopicObjects:
        """Return what is registered of it now."""
        return self._picture()

    @property
    def uploaded(self) -> int:
        """Return the offset below which the store has everything."""
        return self.picture.uploaded

    @property
    def behind(self) -> int:
        """Return how many offsets are durable here and not uploaded."""
        picture, durable = self.picture, self.runtime.state.durable
        if picture.state.changed_us:
            return max(durable - picture.uploaded, 0)
        return max(durable - self._frames.available(self.id)[0], 0)

    def note(self) -> None:
        """Tell who waits how far the topic is uploaded."""
        self.waits.grew(self.runtime.part, self.uploaded)

    def stop(self, why: str) -> None:
        """Upload it no more."""
        self.stopped = why
        self.waits.refuse(why)

    def go_on(self) -> None:
        """Upload it again."""
        self.stopped = self.waits.delay = LOST if self._lacks_objects() else ""
        self.waits.refuse(self.stopped)

    def hold_wanted(self) -> int | None:
        """Return where its hold should be, None if it is there."""
        held = self.runtime.state.holds.get(OBJECTS_HOLD)
        if self.stopped == LOST:
            return None
        if not self.picture.state.changed_us:
            # Nothing is registered: everything that there is has to be kept.
            return 0 if held is None else None
        uploaded = min(self.uploaded, self.runtime.state.durable)
        return uploaded if held is None or held < uploaded else None

    @property
    def is_lost(self) -> bool:
        """Tell whether its objects have to be found before anything else."""
        return self.stopped == LOST

    def fits(self, end: int) -> bool:
        """Tell whether objects that end there can be what was registered."""
        state = self.runtime.state
        return state.holds.get(OBJECTS_HOLD, 0) <= end <= state.durable

    def _lacks_objects(self) -> bool:
        """Tell whether more was registered than is known now: the metadata was lost."""
        return self.runtime.state.holds.get(OBJECTS_HOLD, 0) > self.uploaded

    # -- facts -------------------------------------------------------------------------------------

    def lag(self, now_us: int) -> dict[str, Any]:
        """Return how far the store is behind: records, about how many bytes, and since when."""
        records = self.behind
        if not records:
            return {"lag_records": 0, "lag_bytes": 0, "lag_seconds": None}
        first = self.runtime.state.durable - records
        size, oldest_us = 0, 0
        for segment in self.runtime.log.journal.segments:
            found = _held(segment, self.id, first)
            if found is not None:
                size += found[0]
                oldest_us = oldest_us or found[1]
        seconds = max(now_us - oldest_us, 0) / 1e6 if oldest_us else None
        return {"lag_records": records, "lag_bytes": size, "lag_seconds": seconds}


def _held(segment: Segment, topic: int, first: int) -> tuple[int, int] | None:
    """Return about how many bytes a segment has from an offset on, and their first time."""
    summary = segment.summary(topic)
    if summary is None or summary[1] <= first:
        return None
    begin, end, size, time_us, _last = summary
    if begin >= first:
        return size, time_us
    places = segment.live_places.get(topic)
    if places is not None and places.count:
        time_us = places.times[places.find(first)]
    return size * (end - first) // (end - begin), time_us


def hold_control(runtime: TopicRuntime, offset: int | None) -> Control:
    """Return the frame that moves or drops the hold of what is not uploaded."""
    payload = msgspec.msgpack.encode((STATE_HOLD, OBJECTS_HOLD, offset))
    return Control(fmt.KIND_STATE, runtime.state.id, payload)
