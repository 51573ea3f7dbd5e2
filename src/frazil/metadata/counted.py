"""A store whose calls are counted: how many, how long they took, how many it could not answer."""

from __future__ import annotations

import functools
import threading
from typing import TYPE_CHECKING, Concatenate, ParamSpec, Self, TypeVar

from frazil.clock import SystemClock
from frazil.errors import Closed, Unavailable
from frazil.metadata.store import MetadataStore

if TYPE_CHECKING:
    from collections.abc import Callable

    from frazil.clock import Clock

__all__ = ["CountedStore"]

P = ParamSpec("P")
R = TypeVar("R")


def _counted(
    method: Callable[Concatenate[MetadataStore, P], R],
) -> Callable[Concatenate[CountedStore, P], R]:
    """Return a method of `CountedStore` that counts a call and passes it on."""
    name = method.__name__

    @functools.wraps(method)
    def call(self: CountedStore, /, *args: P.args, **kwargs: P.kwargs) -> R:
        begun_s = self._clock.monotonic()
        failed = 0
        try:
            answer: R = getattr(self._store, name)(*args, **kwargs)
        except (Unavailable, Closed):
            failed = 1
            raise
        else:
            return answer
        finally:
            taken_s = self._clock.monotonic() - begun_s
            with self._lock:
                self.operations += 1
                self.failures += failed
                self.seconds += taken_s

    return call


class CountedStore:
    """Passes every call on to another store. Safe for threads.

    A refusal that is an answer, as a compare that failed is, does not count as a failure. `clock`
    measures calls and nothing else: it need not be the clock that the store goes by.
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    get = _counted(MetadataStore.get)
    list = _counted(MetadataStore.list)
    commit = _counted(MetadataStore.commit)
    revision = _counted(MetadataStore.revision)
    applied_lsn = _counted(MetadataStore.applied_lsn)
    generation = _counted(MetadataStore.generation)
    acquire = _counted(MetadataStore.acquire)
    renew = _counted(MetadataStore.renew)
    release = _counted(MetadataStore.release)
    held = _counted(MetadataStore.held)

    def close(self) -> None:
        """See `MetadataStore`."""
        self._store.close()
