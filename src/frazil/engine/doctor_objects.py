"""Check an object store with the calls of uploads and readers, and name the wrong setting.

The checks write objects below `doctor/` in the root and remove them again. No call is retried, so
that the result comes at once.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

import attrs

from frazil.errors import Conflict, CorruptionError, FrazilError, InvalidRequest, Unavailable
from frazil.objects import PART_BYTES, PIECE_BYTES_MAX, ObjectMeta, open_store

if TYPE_CHECKING:
    from frazil.clock import Clock
    from frazil.config.objects import ObjectsSettings
    from frazil.objects import ObjectStore

__all__ = ["Step", "examine_store"]

FOLDER: Final = "doctor"
PROBE_BYTES: Final = 4096

_ADVICE: Final = {
    "objects.store": "choose a store that has create-only puts, or a newer version of it",
    "objects.root": "name a bucket, container or directory that exists and is writable",
    "objects.region": "set the bucket's region",
    "objects.profile": "name a profile of the files of AWS",
}
_ADVICE_ENDINGS: Final = {
    "endpoint": "check the URL, and that the server runs and can be reached from here",
    "allow_http": "use https, or set it to true where the network is trusted",
    "access_key": "set a key of the store that may list, read, write and delete",
    "secret_key": "set the secret that belongs to the access key",
    "account_key": "set a key of the account",
    "account_name": "name the account",
    "credentials": "give the key of an account that may list, read, write and delete",
}


@attrs.frozen
class Step:
    """One check: `error` is None if it passed."""

    name: str
    error: FrazilError | None = None

    @property
    def setting(self) -> str:
        """The wrong setting, empty if none is known."""
        return "" if self.error is None else str(self.error.details.get("setting", ""))

    @property
    def advice(self) -> str:
        """The advice for the user."""
        if self.error is None:
            return ""
        known = _ADVICE.get(self.setting) or _ADVICE_ENDINGS.get(self.setting.rpartition(".")[2])
        if known:
            return f"{self.setting}: {known}"
        return "try again" if isinstance(self.error, Unavailable) else "see the message"


def examine_store(
    settings: ObjectsSettings,
    *,
    clock: Clock,
    opened: Callable[[ObjectsSettings], ObjectStore] = open_store,
) -> Iterator[Step]:
    """Run the checks and yield each one; the first failure is the last."""
    try:
        store = opened(settings)
    except FrazilError as error:
        yield Step("settings", error)
        return
    yield Step("settings")
    name = f"{FOLDER}/{clock.random_bytes(8).hex()}"
    with contextlib.closing(store):
        try:
            for step, trial in _TRIALS.items():
                try:
                    trial(store, name)
                except FrazilError as error:
                    yield Step(step, error)
                    return
                yield Step(step)
        finally:
            # Remove the objects of a failed step; the result is the step's own error.
            with contextlib.suppress(FrazilError):
                store.delete([name, f"{name}-large"])


def _body(name: str) -> bytes:
    return hashlib.sha256(name.encode()).digest() * (PROBE_BYTES // 32)


def _try_list(store: ObjectStore, name: str) -> None:
    del name
    store.list("", limit=1)


def _try_write(store: ObjectStore, name: str) -> None:
    store.put(name, _body(name))


def _try_create_only(store: ObjectStore, name: str) -> None:
    try:
        store.put(name, b"another")
    except Conflict:
        pass
    else:
        raise InvalidRequest(
            "store replaces an object that must only be created", setting="objects.store"
        )
    _compare(store, name, store.head(name))


def _try_read(store: ObjectStore, name: str) -> None:
    if store.get(name, start=100, length=1000) != _body(name)[100:1100]:
        raise CorruptionError("store returns other bytes than were written")


def _try_large(store: ObjectStore, name: str) -> None:
    """Write an object in two parts, like uploads of more than 8 MiB."""
    piece = bytes(PIECE_BYTES_MAX)
    store.put_stream(f"{name}-large", [*[piece] * (PART_BYTES // PIECE_BYTES_MAX), b"end"])
    if store.get(f"{name}-large", start=PART_BYTES, length=3) != b"end":
        raise CorruptionError("store returns other bytes than were written")


def _try_delete(store: ObjectStore, name: str) -> None:
    store.delete([name, f"{name}-large"])
    if store.head(name) is not None:
        raise Unavailable("object is still there after it was deleted", setting="objects.root")


def _compare(store: ObjectStore, name: str, meta: ObjectMeta | None) -> None:
    if meta is None:
        raise Unavailable("object is not there after it was written", setting="objects.root")
    if meta.size != PROBE_BYTES or store.get(name, start=0, length=32) != _body(name)[:32]:
        raise CorruptionError("store has other bytes than were written")


_TRIALS: Final = {
    "list": _try_list,
    "write": _try_write,
    "create only": _try_create_only,
    "read": _try_read,
    "write in parts": _try_large,
    "delete": _try_delete,
}
