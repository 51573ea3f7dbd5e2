"""One object for all topics whose publishers wait: what makes `uploaded` a level of acks.

A shared object takes the frames behind `uploaded` of every topic that waits, is written, verified,
and registered for each of them. It costs one request however many topics there are.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING, Final

import attrs

from frazil.errors import CorruptionError, FrazilError, Unavailable
from frazil.objects.draft import drafted
from frazil.objects.frame_run import HeadsHash
from frazil.objects.store import PIECE_BYTES_MAX
from frazil.objects.uploader import Flight, next_run, write

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from frazil.clock import Clock
    from frazil.objects.catalog import ObjectCatalog
    from frazil.objects.frame_run import FrameRun, FrameSource
    from frazil.objects.store import ObjectStore
    from frazil.objects.uploader import Uploader, UploadSettings

__all__ = ["SHARED_BYTES_MAX", "TOPIC_BYTES_MAX", "SharedOutcome", "SharedUploader"]

TOPIC_BYTES_MAX: Final = PIECE_BYTES_MAX
SHARED_BYTES_MAX: Final = 64 << 20
SHARED_FOOTER_BYTES: Final = 8 << 20
"""About how much a shared object says of its topics; it is read whole, and may have 8 times that."""


@attrs.frozen
class SharedOutcome:
    """What became of the topics that were asked for.

    Attributes:
        uploaded: topics that are registered now, and up to which offset.
        later: topics that another upload has in hand, or that the object had no room for: ask
            again.
        behind: topics with so much to upload that an object of their own must come first.
        failures: topics that failed, and why.
    """

    uploaded: dict[int, int] = attrs.field(factory=dict)
    later: set[int] = attrs.field(factory=set)
    behind: set[int] = attrs.field(factory=set)
    failures: dict[int, FrazilError] = attrs.field(factory=dict)


@attrs.define
class _Room:
    """What is left of an object that topics are put into."""

    frames: int = attrs.field(factory=lambda: SHARED_BYTES_MAX)
    footer: int = attrs.field(factory=lambda: SHARED_FOOTER_BYTES)

    def take(self, run: FrameRun) -> bool:
        """Take room for a topic, if there is enough; the first one finds some for its footer."""
        schema_bytes = max(map(len, run.topic.schemas.values()), default=0)
        about = 1_024 + 2 * schema_bytes + sum(64 + len(each.reason) for each in run.ranges)
        if run.size > self.frames or (about > self.footer < SHARED_FOOTER_BYTES):
            return False
        self.frames -= run.size
        self.footer -= about
        return True

    @property
    def is_full(self) -> bool:
        """Tell whether no topic at all can be put in."""
        return self.frames <= 0 or self.footer <= 0


class SharedUploader:
    """Writes shared objects, one at a time."""

    def __init__(
        self,
        store: ObjectStore,
        catalog: ObjectCatalog,
        source: FrameSource,
        *,
        uploader: Uploader,
        broker: bytes,
        clock: Clock,
        settings: UploadSettings,
        flight: Flight | None = None,
        on_step: Callable[[str], None] = lambda _name: None,
    ) -> None:
        self._store = store
        self._catalog = catalog
        self._source = source
        self._uploader = uploader
        self._broker = broker
        self._clock = clock
        self._settings = settings
        self._flight = flight if flight is not None else Flight()
        self._on_step = on_step
        self.objects_uploaded = 0
        self.bytes_uploaded = 0

    def upload(self, wanted: Mapping[int, int]) -> SharedOutcome:
        """Put the frames of topics up to the given offsets into one object and register it.

        More of a topic may be taken than is wanted; those that are named first are taken first.
        What fails is told, never raised.
        """
        outcome = SharedOutcome()
        runs: dict[int, FrameRun] = {}
        room = _Room()
        with contextlib.ExitStack() as claims:
            for topic_id, end in wanted.items():
                if self._catalog.topic(topic_id).uploaded >= end:
                    outcome.uploaded[topic_id] = self._catalog.topic(topic_id).uploaded
                    continue
                run = self._run(topic_id, end, room, claims, outcome)
                if run is not None:
                    runs[topic_id] = run
            if runs and not self._upload(runs, outcome):
                # One topic's damage must not keep the others from being served.
                sound = self._sound(runs, outcome)
                if sound:
                    self._upload(sound, outcome)
        return outcome

    def _run(
        self,
        topic_id: int,
        end: int,
        room: _Room,
        claims: contextlib.ExitStack,
        outcome: SharedOutcome,
    ) -> FrameRun | None:
        """Claim a topic and return its frames; None if it cannot take part, which is noted."""
        if room.is_full:
            outcome.later.add(topic_id)
            return None
        try:
            if self._catalog.intent(topic_id) is not None:
                # An upload of its own was begun: it must have ended before its range is taken
                # again.
                self._uploader.settle(topic_id)
            if not claims.enter_context(self._catalog.claim(topic_id)):
                outcome.later.add(topic_id)
                return None
            self._catalog.fresh(topic_id)
            if self._catalog.intent(topic_id) is not None:
                outcome.later.add(topic_id)
                return None
            run = next_run(self._source, self._catalog, topic_id, bytes_max=TOPIC_BYTES_MAX)
        except FrazilError as error:
            outcome.failures[topic_id] = error
            return None
        if run is None:
            outcome.later.add(topic_id)
        elif run.end < end or run.size > TOPIC_BYTES_MAX:
            outcome.behind.add(topic_id)
        elif not room.take(run):
            outcome.later.add(topic_id)
        else:
            return run
        return None

    def _sound(self, runs: dict[int, FrameRun], outcome: SharedOutcome) -> dict[int, FrameRun]:
        """Return the runs whose frames are whole; the topics of the others have failed."""
        damaged: dict[int, FrazilError] = {}
        for topic_id, run in runs.items():
            try:
                for _ in run.pieces(HeadsHash(hashlib.sha256())):
                    pass
            except FrazilError as error:
                damaged[topic_id] = error
        if not damaged:
            return {}
        for topic_id in runs:
            outcome.failures.pop(topic_id, None)
        outcome.failures.update(damaged)
        return {topic_id: run for topic_id, run in runs.items() if topic_id not in damaged}

    def _upload(self, runs: dict[int, FrameRun], outcome: SharedOutcome) -> bool:
        """Write and register one object; False if frames are damaged."""
        try:
            draft = drafted(
                list(runs.values()),
                broker=self._broker,
                epoch=self._catalog.epoch,
                created_us=self._clock.now_us(),
                index_bytes=self._settings.index_bytes,
                shared=True,
            )
            self._on_step("shared hashed")
            etag = write(self._store, draft, self._flight)
            self._on_step("shared verified")
        except FrazilError as error:
            outcome.failures.update(dict.fromkeys(runs, _passing(error)))
            return not isinstance(error, CorruptionError)
        hints = {topic_id: run.hint for topic_id, run in runs.items()}
        failures = self._catalog.register_shared(draft.descriptors(etag=etag), hints)
        self._on_step("shared registered")
        outcome.failures.update(failures)
        outcome.uploaded.update(
            {topic_id: run.end for topic_id, run in runs.items() if topic_id not in failures}
        )
        self.objects_uploaded += 1
        self.bytes_uploaded += draft.size
        return True


def _passing(error: FrazilError) -> FrazilError:
    """Return an error that stops no topic: the next shared object has another key."""
    if not error.details.get("foreign"):
        return error
    return Unavailable("another object has the key of a shared one", key=error.details.get("key"))
