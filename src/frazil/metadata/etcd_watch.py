"""The changes in etcd as they happen: one stream for all watches of a store.

The stream follows all keys of the store and feeds a hub, which gives each watch its share. After
a break it goes on behind the last revision that was seen; what came before is passed over. If the
servers no longer have what follows, or went back to an older state, all watches end as lagging:
whoever follows a prefix then watches anew and reads it whole (F20).
"""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Final

from frazil.errors import Closed, FrazilError, Unavailable
from frazil.metadata.etcd_rpc import CallError, Compacted
from frazil.metadata.proto import etcd_pb2 as wire
from frazil.metadata.transaction import Revision
from frazil.metadata.watch import Event, Watch, WatchHub
from frazil.telemetry import event, warn

if TYPE_CHECKING:
    from collections.abc import Callable

    from frazil.metadata.etcd_rpc import EtcdServers

__all__ = ["EtcdWatches"]

PAUSE_S_MIN: Final = 0.05
PAUSE_S_MAX: Final = 1.0
_DELETE: Final = 1


class EtcdWatches:
    """All watches of one store. Safe for any thread."""

    def __init__(
        self,
        servers: EtcdServers,
        *,
        prefix: bytes,
        birth: int,
        current: Callable[[], Revision],
        check_kept: Callable[[Revision], None],
    ) -> None:
        self._servers = servers
        self._prefix = prefix
        self._birth = birth
        self._current = current
        self._check_kept = check_kept
        self._changed = threading.Condition()
        self._hub: WatchHub | None = None
        self._seen = Revision(0)
        self._connected = False
        self._stopping = threading.Event()
        self._stream_ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.reconnects = 0
        """How often the stream was begun again."""

    def watch(self, prefix: str, after_revision: int | None) -> Watch:
        """Return a watch; the stream is there on return.

        Raises:
            Unavailable: if no server answers.
            Overloaded: if there are too many watches.
        """
        now = self._current()
        after = now if after_revision is None else Revision(after_revision)
        with self._changed:
            if self._stopping.is_set():
                raise Closed("metadata store is closed")
            if self._hub is None:
                self._begin(min(after, now))
            hub = self._hub
            ready = self._changed.wait_for(
                lambda: self._connected or self._hub is not hub, timeout=self._servers.timeout_s
            )
            if self._hub is None:
                raise Closed("metadata store is closed")
            if not ready:
                raise Unavailable("etcd does not begin the watch", retry_after_ms=1000)
            return self._hub.watch(prefix, after, reached=now)

    def catch_up(self, revision: Revision, timeout_s: float) -> bool:
        """Wait until the watches have the changes up to a revision; False if it takes too long."""
        with self._changed:
            return self._hub is None or self._changed.wait_for(
                lambda: self._seen >= revision or self._stopping.is_set(), timeout=timeout_s
            )

    def close(self) -> None:
        """End all watches and the stream."""
        self._stopping.set()
        self._stream_ended.set()
        with self._changed:
            hub, self._hub = self._hub, None
            self._changed.notify_all()
        if hub is not None:
            hub.end()

    def join(self) -> None:
        """Wait for the end of the stream, after the servers' connections are closed."""
        if self._thread is not None:
            self._thread.join()

    def _begin(self, revision: Revision) -> None:
        self._hub = WatchHub(revision)
        self._seen = revision
        self._thread = threading.Thread(target=self._run, name="frazil-etcd-watch", daemon=True)
        self._thread.start()

    # -- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        pause_s = PAUSE_S_MIN
        while not self._stopping.is_set():
            try:
                self._follow()
                pause_s = PAUSE_S_MIN
            except Compacted as error:
                self._start_over(str(error))
            except CallError as error:
                meaning = self._servers.watch_error(error)
                if not self._stopping.is_set():
                    event("etcd_watch_broken", error=meaning)
            except FrazilError as error:
                if not self._stopping.is_set():
                    warn("etcd_watch_trouble", error=error)
            with self._changed:
                pause_s = PAUSE_S_MIN if self._connected else min(pause_s * 2, PAUSE_S_MAX)
                self._connected = False
            self.reconnects += 1
            self._stopping.wait(pause_s)

    def _follow(self) -> None:
        """Read one stream until it ends."""
        # The servers themselves may pass over a delete at the revision that they compacted at.
        self._check_kept(self._seen)
        request = wire.WatchRequest(
            create=wire.WatchCreate(
                # Keys of callers begin with a slash, facts about the store with '!': both are in it.
                key=self._prefix + b"!",
                range_end=self._prefix + b"0",
                start_revision=self._seen + self._birth + 1,
            )
        )
        self._stream_ended = threading.Event()
        stream = self._servers.watch(request, self._stream_ended)
        try:
            for answer in stream:
                self._take(answer)
        finally:
            self._stream_ended.set()
            stream.cancel()

    def _take(self, answer: wire.WatchResponse) -> None:
        if answer.compact_revision:
            raise Compacted("the servers no longer have what follows")
        if answer.canceled:
            raise Unavailable("etcd ended the watch", reason=answer.cancel_reason)
        revision = Revision(answer.header.revision - self._birth)
        if answer.created:
            if revision < self._seen:
                raise Compacted("the servers went back to an older state")
            with self._changed:
                self._connected = True
                self._changed.notify_all()
        for each, some in itertools.groupby(answer.events, lambda found: found.kv.mod_revision):
            self._publish(Revision(each - self._birth), list(some))

    def _publish(self, revision: Revision, found: list[wire.WatchEvent]) -> None:
        events = [
            Event(
                key.decode(),
                None if each.type == _DELETE else each.kv.value,
                revision,
            )
            for each in found
            if (key := each.kv.key[len(self._prefix) :]).startswith(b"/")
        ]
        with self._changed:
            # A stream that was begun again may repeat what was seen before.
            if self._hub is not None and revision > self._seen:
                self._hub.publish(revision, events)
                self._seen = revision
                self._changed.notify_all()

    def _start_over(self, reason: str) -> None:
        """End all watches as lagging and follow from the present state on."""
        event("etcd_watch_started_over", reason=reason)
        try:
            revision = self._current()
        except FrazilError as error:
            warn("etcd_watch_trouble", error=error)
            return
        with self._changed:
            hub = self._hub
            if hub is None:
                return
            hub.lag()
            self._hub = WatchHub(revision)
            self._seen = revision
            self._changed.notify_all()
