"""Publishes that wait to be uploaded: one object after a linger serves all topics that wait."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from frazil.errors import Unavailable
from frazil.telemetry import event

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from frazil.clock import Clock
    from frazil.objects.shared import SharedUploader
    from frazil.objects.topics import ObjectsTopic
    from frazil.objects.uploader import Trouble, Uploader

__all__ = ["Sharing"]

LATER_S: Final = 0.02
"""Who could not take part is looked at again after this, and who waits for a failed store."""
PAUSE_S: Final = 1.0
PROBE_S: Final = 2.0
"""So often a store that is away is asked for those who wait, all of them with one object."""


class Sharing:
    """Who waits, and the object that they get. `ask` may be called from any thread."""

    def __init__(
        self,
        topics: Mapping[int, ObjectsTopic],
        uploader: Uploader,
        shared: SharedUploader,
        *,
        clock: Clock,
        linger_s: float,
        noted: Callable[[ObjectsTopic], None],
        hurry: Callable[[], None],
    ) -> None:
        self._topics = topics
        self._uploader = uploader
        self._shared = shared
        self._clock = clock
        self._probe_at = clock.monotonic()
        self._linger_s = linger_s
        self._noted = noted
        self._hurry = hurry
        self._asked: dict[int, None] = {}
        """In the order in which they are served: who got something is behind who did not."""
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._stopped = threading.Event()

    def ask(self, topic_id: int) -> None:
        """Take note that somebody waits for a topic."""
        with self._lock:
            self._asked.setdefault(topic_id)
        self._woken.set()

    def stop(self) -> None:
        """Have `run` return."""
        self._stopped.set()
        self._woken.set()

    def pause(self) -> None:
        """Wait a moment after a bug, or until `stop`."""
        self._stopped.wait(PAUSE_S)

    def run(self) -> None:
        """Serve who waits, until `stop`."""
        while not self._stopped.is_set():
            self._woken.wait()
            self._woken.clear()
            try:
                # More may come that the same object can take.
                while self._asked and not self._stopped.wait(self._linger_s):
                    if not self.serve() and self._stopped.wait(LATER_S):
                        return
            finally:
                # Whatever went wrong, who still waits is not forgotten until somebody else asks.
                if self._asked:
                    self._woken.set()

    def serve(self) -> bool:
        """Upload one object for all who wait; tell whether it helped anybody."""
        wanted = self._wanted()
        if not wanted:
            return False
        outcome = self._shared.upload(wanted)
        with self._lock:
            for topic_id in outcome.uploaded:
                if topic_id in self._asked:
                    del self._asked[topic_id]
                    self._asked[topic_id] = None
        for topic_id in outcome.uploaded:
            self._uploader.retry(topic_id)
            self._settled(topic_id)
        for topic_id in outcome.behind:
            found = self._topics.get(topic_id)
            if found is not None:
                found.hurry = True
        if outcome.failures:
            self._probe_at = self._clock.monotonic() + PROBE_S
        for topic_id, error in outcome.failures.items():
            self._uploader.note(topic_id, error)
            self._settled(topic_id)
        if outcome.behind:
            self._hurry()
        if outcome.uploaded:
            event("shared_object_uploaded", topics=len(outcome.uploaded))
        return bool(outcome.uploaded)

    def _wanted(self) -> dict[int, int]:
        """Return who waits and may be tried now, and for which offsets; forget who does not.

        Topics that failed wait ever longer, which is meant for uploads that nobody waits for: here
        one request serves all, and the first that works must find all of them.
        """
        with self._lock:
            asked = list(self._asked)
        probing = bool(asked) and self._clock.monotonic() >= self._probe_at
        troubles = self._uploader.troubles if probing else {}
        wanted: dict[int, int] = {}
        for topic_id in asked:
            topic = self._topics.get(topic_id)
            if topic is None or topic.stopped or not topic.waits.is_asked():
                with self._lock:
                    self._asked.pop(topic_id, None)
                if topic is not None and not topic.stopped and topic.waits.is_asked():
                    # Somebody asked just now.
                    self.ask(topic_id)
            elif self._uploader.due(topic_id) or _is_away(troubles.get(topic_id)):
                wanted[topic_id] = max(topic.waits.asked.values())
        return wanted

    def _settled(self, topic_id: int) -> None:
        topic = self._topics.get(topic_id)
        if topic is not None:
            topic.note()
            self._noted(topic)


def _is_away(trouble: Trouble | None) -> bool:
    """Tell whether a topic waits for a store, or its metadata, that did not answer."""
    return trouble is not None and not trouble.stopped and isinstance(trouble.error, Unavailable)
