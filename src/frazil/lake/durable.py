"""Sync the files of a table before the engine releases the committed records.

Spark and Iceberg write files without syncing them; a catalog syncs its own metadata at most. So
this module syncs the files that the newest snapshots added, and their directories: the worker
before it answers a commit, the engine before its first look moves a watermark. An incomplete file
was lost in a power failure: its records are still held and are not released. Storage outside this
machine's file systems does its own syncing and is skipped.
"""

from __future__ import annotations

import contextlib
import errno
import os.path
from functools import partial
from typing import TYPE_CHECKING, Final

from pyiceberg.io import load_file_io
from pyiceberg.manifest import ManifestEntryStatus, ManifestFile, read_manifest_list

from frazil.errors import CorruptionError, Unavailable
from frazil.lake.catalog.files import local_path
from frazil.lake.catalog.refusals import Refusal
from frazil.lake.connection import calls, load
from frazil.lake.iceberg import parse_metadata, readable
from frazil.lake.table import TOPIC_ID, Ends

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO

    from frazil.fs import FileSystem
    from frazil.lake.iceberg import Snapshot, TableMetadata
    from frazil.lake.plan import TableName
    from frazil.lake.watermark import Choice

__all__ = ["make_durable", "settled_ends"]

LOOKS_MAX: Final = 5
PATHS: Final = ("write.data.path", "write.metadata.path", "write.object-storage.path")
"""Properties that put a table's files outside of its location."""
_UNABLE: Final = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP)
"""The errors of a file system that cannot sync this kind of file at all."""
_UNREADABLE: Final = (ValueError, EOFError, LookupError, TypeError, AssertionError)
"""The errors that PyIceberg raises for an invalid Avro file."""


def settled_ends(remembered: Ends, choice: Choice, chosen: Ends) -> Ends:
    """Return the offsets up to which a table is known to be synced, by part.

    An end is remembered only after its sync. But the rows of a replay are below the remembered
    ends: then the table is settled up to its watermark at the time of the choice.
    """
    if not choice:
        return remembered
    return {part: min(end, chosen.get(part, 0)) for part, end in remembered.items()}


def make_durable(
    catalog: Catalog, table: TableName, settled: Ends, *, file_system: FileSystem
) -> None:
    """Sync the files that the snapshots of `main` added above the settled watermarks.

    Raises:
        NotFound: there is no such table.
        Unavailable: catalog or storage cannot be reached.
        CorruptionError: a file of one of Frazil's commits is missing, incomplete, or cannot be
            synced.
    """
    for _attempt in range(LOOKS_MAX):
        wrong = _synced(catalog, table, settled, file_system)
        if not wrong:
            return
        # A snapshot that expired since then has no files any more.
        for snapshot in parse_metadata(load(catalog, table).metadata, table).snapshots:
            if snapshot.snapshot_id in wrong:
                raise CorruptionError(
                    "file of a commit was lost before it was synced; its records are still held: "
                    "roll the table back to the snapshot before it, then `frazil lake resume`",
                    table=table,
                    snapshot=snapshot.snapshot_id,
                    file=wrong[snapshot.snapshot_id],
                )
    raise Unavailable("others keep expiring the table's snapshots", table=table)


def _synced(
    catalog: Catalog, table: TableName, settled: Ends, file_system: FileSystem
) -> dict[int, str]:
    """Sync once; return, by snapshot of Frazil, a missing, incomplete or unreadable file."""
    loaded = load(catalog, table)
    metadata = parse_metadata(loaded.metadata, table)
    with readable(table):
        found, everything = _unsettled(metadata, settled)
    if not found or _local(metadata.location) is None:
        return {}
    roots = [metadata.location, *(metadata.properties.get(key, "") for key in PATHS)]
    sync = _Sync(table, file_system, {path for each in roots if (path := _local(each))})
    with calls("sync the table's files", table=table):
        io = load_file_io({**catalog.properties, **loaded.config}, metadata.location)
        sync.file(loaded.location, None)
        for snapshot in found:
            sync.snapshot(io, snapshot, everything=everything)
        sync.directories()
    owner = metadata.properties.get(TOPIC_ID)
    own = {each.snapshot_id for each in found if each.summary.get(TOPIC_ID) == owner}
    return {sid: file for sid, file in sync.wrong.items() if sid in own}


def _unsettled(metadata: TableMetadata, settled: Ends) -> tuple[list[Snapshot], bool]:
    """Return the snapshots of `main` whose files may not be synced, newest first.

    These are all snapshots with a higher watermark, and other programs' snapshots since the newest
    settled one. Without any watermark the result is the newest snapshot with all its files, and
    True.
    """
    found: list[Snapshot] = []
    marked = met = False
    for snapshot in metadata.ancestors():
        ends = snapshot.ends
        marked = marked or bool(ends)
        if any(end > settled.get(part, 0) for part, end in ends.items()):
            found.append(snapshot)
        elif ends:
            met = True
        elif not met:
            found.append(snapshot)
    return (found, False) if marked else (found[:1], True)


def _local(location: str) -> str | None:
    """Return the path of a location on this machine's file systems, None if it is elsewhere."""
    try:
        return local_path(location)
    except Refusal:
        return None


class _Sync:
    """One pass over the files of some snapshots: each file once, then each directory once."""

    def __init__(self, table: TableName, file_system: FileSystem, roots: set[str]) -> None:
        self._table = table
        self._file_system = file_system
        self._roots = roots
        self._done: set[str] = set()
        self.wrong: dict[int, str] = {}
        """By snapshot, a missing, incomplete or unreadable file."""

    def snapshot(self, io: FileIO, snapshot: Snapshot, *, everything: bool) -> None:
        """Sync the list of a snapshot, the manifests it added, and the files that these added."""
        sid = snapshot.snapshot_id
        try:
            if not self.file(snapshot.manifest_list, None):
                self.wrong[sid] = snapshot.manifest_list
                return
            for manifest in read_manifest_list(io.new_input(snapshot.manifest_list)):
                if everything or manifest.added_snapshot_id == sid:
                    self._manifest(io, manifest, sid, everything=everything)
        except _UNREADABLE:
            self.wrong[sid] = snapshot.manifest_list

    def _manifest(self, io: FileIO, manifest: ManifestFile, sid: int, *, everything: bool) -> None:
        if not self.file(manifest.manifest_path, manifest.manifest_length):
            self.wrong[sid] = manifest.manifest_path
            return
        for entry in manifest.fetch_manifest_entry(io, discard_deleted=True):
            added = entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id in {None, sid}
            if everything or added:
                data = entry.data_file
                if not self.file(data.file_path, data.file_size_in_bytes):
                    self.wrong[sid] = data.file_path

    def file(self, location: str, size: int | None) -> bool:
        """Sync a file; False if it is missing or has another size. Remote files count as synced."""
        path = _local(location)
        if path is None or path in self._done:
            return True
        if not self._file(path, size):
            return False
        # Hadoop writes a checksum file for each file, and refuses to read a file that does not
        # match.
        directory, name = os.path.split(path)
        self._file(os.path.join(directory, f".{name}.crc"), None)
        return True

    def _file(self, path: str, size: int | None) -> bool:
        try:
            file = self._file_system.open(path, "read")
        except FileNotFoundError:
            return False
        with contextlib.closing(file):
            if size is not None and file.size() != size:
                return False
            self._synced(path, file.sync)
        self._done.add(path)
        return True

    def directories(self) -> None:
        """Sync the directories of the files, and those above them that are the table's."""
        found: set[str] = set()
        for path in self._done:
            above = os.path.dirname(path)
            found.add(above)
            inside = any(f"{above}/".startswith(f"{root}/") for root in self._roots)
            while inside and above not in self._roots and above != "/":
                above = os.path.dirname(above)
                found.add(above)
        for path in sorted(found, key=len, reverse=True):
            try:
                self._synced(path, partial(self._file_system.sync_directory, path))
            except FileNotFoundError:
                continue

    def _synced(self, path: str, sync: Callable[[], None]) -> None:
        try:
            sync()
        except FileNotFoundError:
            raise
        except OSError as error:
            if error.errno in _UNABLE:
                return
            # Another sync would succeed although the bytes are lost.
            raise CorruptionError(
                "file of the table cannot be synced, its records are still held: check the disk of "
                "lake.warehouse and `frazil verify`, then `frazil lake resume`",
                table=self._table,
                file=path,
                reason=error,
            ) from error
