"""Which rows in files are superseded: kept over a clean restart, computed anew after any other.

A topic's file in the directory `marks` is derived data: magic, CRC, then msgpack of the
offset the topic was flushed to, the rows' offsets and the offsets of the changes that supersede
them. It counts only if nothing was flushed since.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import pyarrow as pa

from frazil.errors import CorruptionError, Unavailable
from frazil.fs import read_fully, write_fully
from frazil.schema import KeyShape
from frazil.struct_types import learnt
from frazil.telemetry import event, warn
from frazil.tiers.chunk import ALIVE
from frazil.tiers.keys.dead_marks import KeyRows
from frazil.topic import check_watch

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import numpy.typing as npt

    from frazil.fs import FileSystem
    from frazil.tiers.disk.file import DiskFile
    from frazil.tiers.topic_tiers import TopicTiers

    Offsets = npt.NDArray[np.int64]

MAGIC: Final = b"FRZMARK1"
BYTES_MAX: Final = 1 << 32
NAME_DIGITS: Final = 8
HEXDIGITS: Final = frozenset("0123456789abcdef")


class _Marks(msgspec.Struct, array_like=True):
    flushed: int
    start: int
    offsets: bytes
    by: bytes


def load_marks(topic: TopicTiers) -> None:
    """Know again which rows in files are superseded, before anything is folded on top of them."""
    keyed = topic.keyed
    assert keyed is not None
    if not topic.flushed:
        return
    found = _read(topic)
    if found is not None:
        keyed.load_disk_dead(np.frombuffer(found.offsets, "<i8"), np.frombuffer(found.by, "<i8"))
        return
    started = topic.clock.monotonic()
    keyed.rebuild_disk_dead(lambda: _key_rows(topic))
    event("marks_computed", topic=topic.name, seconds=topic.clock.monotonic() - started)


def _key_rows(topic: TopicTiers) -> Iterator[KeyRows]:
    """Yield every row in files: offset, key, operation.

    Raises:
        Unavailable: a damaged file is written again; all rows are to be asked for once more.
        CorruptionError: a damaged file cannot be written again.
        FrazilError: the query that this is done for must stop; what was computed is no harm.
    """
    disk = topic.disk
    with disk.changing():
        # Retired files go after this lock: what is pinned under it stays.
        files = [file for file in disk.files(topic.id) if file.rows]
        pin = disk.pin_files(files)
    with pin:
        for file in files:
            try:
                yield from _rows_of(topic, file)
            except CorruptionError as error:
                if not disk.damaged(file, error.details.get("reason", error)):
                    raise
                raise Unavailable(
                    "a damaged file was just written again, try again",
                    topic=topic.name,
                    file=file.name,
                ) from error


def _rows_of(topic: TopicTiers, file: DiskFile) -> Iterator[KeyRows]:
    readers = topic.disk.readers
    names = KeyShape(topic.schema_of(file.schema), topic.state.spec.primary_key).names
    for number in range(readers.reader(file).groups):
        check_watch()
        batch = readers.read(file, number, ("_offset", "_op", "_present", *names))
        present = batch.column("_present")
        partial = None
        if present.null_count < len(present):
            partial = present.is_valid().to_numpy(zero_copy_only=False)
        yield KeyRows(
            batch.column("_offset").to_numpy(zero_copy_only=False),
            pa.RecordBatch.from_arrays([batch.column(name) for name in names], names=list(names)),
            batch.column("_op").to_numpy(zero_copy_only=False),
            partial,
        )


def _path(topic: TopicTiers) -> str:
    return f"{topic.marks_directory}/{topic.id:08x}"


def _read(topic: TopicTiers) -> _Marks | None:
    """Return the kept marks, None if there are none or they are of another state."""
    files = topic.disk.file_system
    path = _path(topic)
    try:
        info = files.stat(path)
        if info is None or not len(MAGIC) + 4 < info.size < BYTES_MAX:
            return None
        file = files.open(path, "read")
        try:
            data = read_fully(file, 0, info.size)
        finally:
            file.close()
    except OSError as error:
        warn("marks_unreadable", path=path, error=error)
        return None
    body = data[len(MAGIC) + 4 :]
    if data[: len(MAGIC)] != MAGIC or data[len(MAGIC) : len(MAGIC) + 4] != _sum(body):
        return None
    try:
        found = msgspec.msgpack.decode(body, type=learnt(_Marks))
    except msgspec.MsgspecError:
        return None
    same = found.flushed == topic.flushed and found.start == topic.disk.start(topic.id)
    return found if same else None


def keep_marks(topic: TopicTiers) -> None:
    """Write the marks down at a clean end; if that fails they are computed at the next start."""
    keyed = topic.keyed
    flushed = topic.flushed
    if keyed is None or not flushed or not topic.loaded or keyed.folded_to < flushed:
        return
    offsets, by = _all_marks(topic, flushed)
    kept = by < flushed
    marks = _Marks(
        flushed,
        topic.disk.start(topic.id),
        offsets[kept].astype("<i8").tobytes(),
        by[kept].astype("<i8").tobytes(),
    )
    body = msgspec.msgpack.encode(marks)
    files, path = topic.disk.file_system, _path(topic)
    try:
        files.make_directory(topic.marks_directory)
        for old in (path, f"{path}.tmp"):
            if files.stat(old) is not None:
                files.unlink(old)
        file = files.open(f"{path}.tmp", "create")
        try:
            write_fully(file, 0, [MAGIC, _sum(body), body])
            file.sync()
        finally:
            file.close()
        files.rename(f"{path}.tmp", path)
    except OSError as error:
        warn("marks_not_kept", path=path, error=error)


def remove_marks(files: FileSystem, directory: str, *, keep: Collection[int]) -> bool:
    """Remove the marks of all topics but some; False if that failed and is to be tried again.

    Nothing is synced: what comes back after a crash is removed at the next start.
    """
    try:
        if files.stat(directory) is None:
            return True
        for name in files.list_directory(directory):
            topic = name.removesuffix(".tmp")
            if len(topic) == NAME_DIGITS and set(topic) <= HEXDIGITS and int(topic, 16) not in keep:
                files.unlink(f"{directory}/{name}")
    except OSError as error:
        warn("marks_not_removed", path=directory, error=error)
        return False
    return True


def _all_marks(topic: TopicTiers, flushed: int) -> tuple[Offsets, Offsets]:
    """Return the marks of all rows that files have, some of which are in memory as well."""
    keyed, memory = topic.keyed, topic.memory
    assert keyed is not None
    with memory.lock:
        memory.settle(flushed)
        offsets, by = keyed.export_disk_dead()
        # Marks that were loaded may be of rows that are in memory again.
        outside = offsets < memory.start
        pairs = [(offsets[outside], by[outside])]
        for chunk in memory.chunks:
            if chunk.offset < flushed and chunk.dead is not None:
                dead = chunk.dead[: flushed - chunk.offset]
                rows = np.flatnonzero(dead != ALIVE)
                pairs.append((rows + chunk.offset, dead[rows]))
    return (
        np.concatenate([pair[0] for pair in pairs]),
        np.concatenate([pair[1] for pair in pairs]),
    )


def _sum(body: bytes) -> bytes:
    return zlib.crc32(body).to_bytes(4, "little")
