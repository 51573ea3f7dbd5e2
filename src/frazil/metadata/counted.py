"""A metadata store that counts its calls, their duration and their failures."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Any, TypeVar, cast

from frazil.clock import SystemClock
from frazil.errors import Closed, Unavailable
from frazil.metadata.store import MetadataStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from frazil.clock import Clock

__all__ = ["CountedStore"]

F = TypeVar("F", bound="Callable[..., Any]")


def _counted(method: F) -> F:
    """Return a method of `CountedStore` that counts a call and passes it on."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: CountedStore, /, *args: Any, **kwargs: Any) -> Any:
        begun_s = self._clock.monotonic()
        failed = 0
        try:
            return getattr(self._store, name)(*args, **kwargs)
        except (Unavailable, Closed):
            failed = 1
            raise
        finally:
            with self._lock:
                self.operations += 1
                self.failures += failed
                self.seconds += self._clock.monotonic() - begun_s

    return cast("F", call)


class CountedStore:
    """Passes every call on to another store. Safe for threads.

    An answer such as `Conflict` after a failed compare does not count as a failure. `clock` only
    measures calls and may differ from the clock of the store.
    """

    def __init__(self, store: MetadataStore, *, clock: Clock | None = None) -> None:
        self._store = store
        self._clock: Clock = clock or SystemClock()
        self._lock = threading.Lock()
        self.operations_max = store.operations_max
        self.bytes_max = store.bytes_max
        self.operations = 0
        self.failures = 0
        self.seconds = 0.0

    get = _counted(MetadataStore.get)
    list = _counted(MetadataStore.list)
    commit = _counted(MetadataStore.commit)
    revision = _counted(MetadataStore.revision)
    applied_lsn = _counted(MetadataStore.applied_lsn)
    acquire = _counted(MetadataStore.acquire)
    renew = _counted(MetadataStore.renew)
    release = _counted(MetadataStore.release)
    held = _counted(MetadataStore.held)

    def close(self) -> None:
        """See `MetadataStore`."""
        self._store.close()
