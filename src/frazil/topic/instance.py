"""The state that the features of an engine share: settings, clock, files, journals and topics."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from frazil.errors import Closed, InvalidRequest, NotFound
from frazil.log import ClockWatch, DataDirectory
from frazil.model import full_topic_name, part_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from frazil.clock import Clock
    from frazil.config import Settings
    from frazil.fs import FileSystem
    from frazil.log import Log
    from frazil.metadata import Ownership
    from frazil.model import TopicSpec
    from frazil.topic.indexing import Stores
    from frazil.topic.runtime import TopicRuntime
    from frazil.topic.states import States


class Instance:
    """The shared state of one engine's features; the engine fills it at opening."""

    log: Log
    stores: Stores
    ownership: Ownership
    states: States
    # Features above this layer, by name, for the few uses between them.
    cursors: Any
    subscribing: Any
    objects: Any
    create_topic: Any

    def __init__(
        self, settings: Settings, *, file_system: FileSystem, clock: Clock, threads: bool
    ) -> None:
        self.settings = settings
        self.paths = DataDirectory(os.path.abspath(settings.data_dir))
        self.clock = clock
        self.file_system = file_system
        self.warnings: list[str] = []
        self.closed = False
        self._process = os.getpid()
        self.threaded = threads
        """Whether threads do the upkeep; without them nothing changes while a caller waits."""
        self.control_lock = threading.RLock()
        """The lock for changes of topics, holds and segments."""
        self._topics: dict[str, TopicRuntime] = {}
        self._parents: dict[str, TopicSpec] = {}
        self.unusable: dict[str, str] = {}
        """The errors of existing topics that could not be opened, by name."""
        self._clock_watch = ClockWatch(now_us=clock.now_us(), monotonic_s=clock.monotonic())
        self.released: dict[int, int] = {}
        """The offset by topic below which another tier has its records."""
        self.read_ahead_bytes: Callable[[], int] = lambda: 0
        """Returns the bytes of decoded records that subscriptions keep."""
        self.topics_version = 0
        """The number of changes of topics and their columns so far."""

    @property
    def runtimes(self) -> list[TopicRuntime]:
        """Return all running topics."""
        return list(self._topics.values())

    def is_current(self, runtime: TopicRuntime) -> bool:
        """Return whether a topic is running and was not deleted."""
        return self._topics.get(runtime.name) is runtime

    def names(self) -> list[str]:
        """Return the names of all topics, without the parts of partitioned ones."""
        # Copied first, each in one step, because other threads may create topics.
        names = [each.name for each in self.runtimes if not each.state.spec.part_of]
        return names + list(self._parents)

    def parts_of(self, name: str) -> list[TopicRuntime]:
        """Return a topic, or all parts of a partitioned one."""
        self.check_open()
        return self._runtimes(full_topic_name(name))

    def check_open(self) -> None:
        """Raise `Closed` if the engine is closed."""
        if self.closed:
            raise Closed("the engine is closed")

    def visible_ends(self, runtimes: Sequence[TopicRuntime]) -> list[int]:
        """Return the visible ends of topics, all of one instant."""
        journal = self.log.journal
        while True:
            before = journal.shown
            ends = [runtime.state.durable for runtime in runtimes]
            if before == journal.shown and not before % 2:
                return ends

    def _runtimes(self, full: str) -> list[TopicRuntime]:
        parent = self._parents.get(full)
        names = [full]
        if parent is not None:
            names = [part_name(full, index) for index in range(parent.partitions)]
        try:
            return [self._topics[name] for name in names]
        except KeyError:
            # Another thread has just deleted it.
            raise NotFound("no such topic", topic=full) from None

    def topic_runtime(self, name: str) -> TopicRuntime:
        """Return a running topic; of a partitioned topic only a part can be named.

        Raises:
            NotFound: if there is no such topic.
            InvalidRequest: if it is partitioned.
        """
        self.check_open()
        full = full_topic_name(name)
        if full in self._parents:
            raise InvalidRequest(
                "the topic is partitioned, name one of its parts", topic=full, part=f"{full}-part-0"
            )
        return self._runtimes(full)[0]

    def whole_name(self, spec: TopicSpec) -> str:
        """Return a topic's name; for a part, the name of the partitioned topic."""
        return self.log.journal.state.topics[spec.part_of].spec.name if spec.part_of else spec.name

    def time_trusted(self) -> bool:
        """Return whether the wall clock is reliable now, so that decisions may use it."""
        clock = self.clock
        return self._clock_watch.trusted(now_us=clock.now_us(), monotonic_s=clock.monotonic())

    def release(self, topic_id: int, offset: int) -> None:
        """Note that another tier durably has a topic's records below `offset`.

        The log may then free them regardless of holds; readers find them in that tier.
        """
        self.released[topic_id] = max(offset, self.released.get(topic_id, 0))

    def lake_names(self) -> list[str]:
        """Return the topics that have a lake, partitioned ones by their own name."""
        specs = [runtime.state.spec for runtime in self.runtimes]
        whole = [spec for spec in specs if not spec.part_of] + list(self._parents.values())
        return [spec.name for spec in whole if spec.lake]

    def whole_topic(self, full: str) -> tuple[TopicSpec, list[TopicRuntime]]:
        """Return a topic's definition and the topics that have its records: itself, or its parts.

        Raises:
            NotFound: if there is no such topic.
        """
        runtimes = self._runtimes(full)
        return self._parents.get(full) or runtimes[0].state.spec, runtimes
