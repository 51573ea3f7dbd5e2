"""Every file that a table names is there with its size: data, deletes, manifests, their lists.

Of all its snapshots, not only of the current one: older ones are what people go back to.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from pyiceberg.manifest import read_manifest_list

from frazil.errors import Unavailable
from frazil.lake.connection import calls

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

    from frazil.lake.plan import TableName

__all__ = ["FilesFound", "check_files"]

LOOKS_MAX: Final = 5


class FilesFound(NamedTuple):
    """How many data and delete files a snapshot has, and which of the table's are not right."""

    files: int
    wrong: tuple[str, ...]


def check_files(catalog: Catalog, table: TableName, sid: int | None) -> FilesFound:
    """Look for every file of a table; the files of one snapshot are counted.

    Raises:
        Unavailable: snapshots come and go all the time.
    """
    with calls("list the table's files", table=table):
        loaded = catalog.load_table(tuple(table))
        for _attempt in range(LOOKS_MAX):
            count, wrong = _checked(loaded, sid)
            if not wrong:
                return FilesFound(count, ())
            # A snapshot that was expired meanwhile took its files along.
            before = {each.snapshot_id for each in loaded.metadata.snapshots}
            loaded = catalog.load_table(tuple(table))
            if before <= {each.snapshot_id for each in loaded.metadata.snapshots}:
                return FilesFound(count, tuple(wrong))
    raise Unavailable("others keep expiring the table's snapshots, try again", table=table)


def _checked(loaded: Table, sid: int | None) -> tuple[int, list[str]]:
    wrong: list[str] = []
    manifests: dict[str, list[tuple[str, int]]] = {}
    count = 0
    for snapshot in loaded.metadata.snapshots:
        names = _manifests(loaded.io, snapshot, manifests, wrong)
        if snapshot.snapshot_id == sid:
            count = sum(len(manifests[name]) for name in names)
    files = {path: size for listed in manifests.values() for path, size in listed}
    wrong += [path for path, size in files.items() if _size(loaded.io, path) != size]
    return count, wrong


def _manifests(
    io: FileIO, snapshot: Snapshot, known: dict[str, list[tuple[str, int]]], wrong: list[str]
) -> list[str]:
    """Return the manifests of a snapshot; what a new one lists is noted in `known`."""
    if _size(io, snapshot.manifest_list) < 0:
        wrong.append(snapshot.manifest_list)
        return []
    names: list[str] = []
    for manifest in read_manifest_list(io.new_input(snapshot.manifest_list)):
        path = manifest.manifest_path
        names.append(path)
        if path in known:
            continue
        known[path] = []
        if _size(io, path) != manifest.manifest_length:
            wrong.append(path)
            continue
        entries = manifest.fetch_manifest_entry(io, discard_deleted=True)
        known[path] = [
            (each.data_file.file_path, each.data_file.file_size_in_bytes) for each in entries
        ]
    return names


def _size(io: FileIO, path: str) -> int:
    try:
        return len(io.new_input(path))
    except FileNotFoundError:
        return -1
