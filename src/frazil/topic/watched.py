"""Work for a query that goes on only while the query may still run.

DuckDB is interrupted when a query's time is over, but much may have to be done before it is asked:
changes are folded, and after a restart each file is read as a whole to verify it. So the query's
right is asked for between two pieces of that work.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

    from frazil.query import ChunkView, SnapshotFile, TopicName, TopicSnapshot

__all__ = ["WatchedSnapshot", "check_watch", "watched", "watching"]


class _Watch(threading.local):
    """What this thread asks before it goes on."""

    check: Callable[[], None] | None = None


_watch = _Watch()


@contextmanager
def watching(check: Callable[[], None]) -> Iterator[None]:
    """Work for a query: `check` raises once it must stop."""
    before, _watch.check = _watch.check, check
    try:
        yield
    finally:
        _watch.check = before


def check_watch() -> None:
    """Raise if this thread works for a query that must stop; whoever calls can be left here."""
    if _watch.check is not None:
        _watch.check()


def watched(
    snapshots: Mapping[TopicName, Sequence[TopicSnapshot]], check: Callable[[], None]
) -> dict[TopicName, list[TopicSnapshot]]:
    """Return the snapshots so that `check` is called before each file; it raises to stop."""
    return {
        topic: [WatchedSnapshot(snapshot, check) for snapshot in parts]
        for topic, parts in snapshots.items()
    }


class WatchedSnapshot:
    """A snapshot that asks before each file, and before keys are looked up."""

    def __init__(self, snapshot: TopicSnapshot, check: Callable[[], None]) -> None:
        self._snapshot = snapshot
        self._check = check
        self.part: int | None = snapshot.part
        self.end: int = snapshot.end
        self.cut: int = snapshot.cut
        self.chunks: Sequence[ChunkView] = snapshot.chunks
        self.files: Sequence[SnapshotFile] = snapshot.files

    def file_path(self, file: Any, /) -> str | None:
        """Return where the file lies for DuckDB, None if it must be read through `read_file`."""
        self._check()
        return self._snapshot.file_path(file)

    def read_file(self, file: Any, columns: Sequence[str], /) -> pa.Table:
        """Read columns of a file."""
        self._check()
        return self._snapshot.read_file(file, columns)

    def file_schema(self, file: Any, /) -> pa.Schema:
        """Return the topic's columns in the schema version of the file."""
        return self._snapshot.file_schema(file)

    def dead(self) -> npt.NDArray[np.int64]:
        """Return the superseded offsets below the cut, ascending."""
        return self._snapshot.dead()

    def get_many(self, keys: Sequence[tuple[Any, ...]], /) -> Sequence[Mapping[str, Any] | None]:
        """Return the row of each key at this snapshot."""
        self._check()
        return self._snapshot.get_many(keys)

    def close(self) -> None:
        """Release what is pinned."""
        self._snapshot.close()
