"""Purge: delete the files of a dropped table, and nothing that may belong to another."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, Final

from frazil.lake.catalog.files import Warehouse, is_inside, local_path
from frazil.lake.catalog.refusals import Refusal
from frazil.telemetry import event, warn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from frazil.fs import FileSystem
    from frazil.lake.catalog.files import Loaded

__all__ = ["purge"]

GC_ENABLED: Final = "gc.enabled"


def purge(
    dropped: Loaded, *, others: Sequence[str], file_system: FileSystem, warehouse: Warehouse
) -> int:
    """Delete what a dropped table's metadata names below its own location; return how many files.

    Nothing is deleted if another table's metadata lies below the location too, or if the table's
    location is not below the warehouse: its files may then be somebody else's. With the property
    `gc.enabled` false, data files stay.
    """
    home = str(dropped.metadata["location"])
    reason = _reason_to_keep(home, others, warehouse)
    if reason:
        warn("catalog_purge_skipped", location=home, reason=reason)
        return 0
    count = 0
    for location in dict.fromkeys(_files(dropped)):
        try:
            if not is_inside(location, home):
                warn("catalog_purge_kept_file", location=location, reason="outside the table")
                continue
            path = local_path(location)
            # Spark lays the checksum of each local file beside it, under a hidden name.
            with contextlib.suppress(FileNotFoundError):
                file_system.unlink(_checksum_of(path))
            file_system.unlink(path)
            count += 1
        except (FileNotFoundError, Refusal):
            continue
        except OSError as error:
            warn("catalog_purge_kept_file", location=location, reason=error)
    event("catalog_table_purged", location=home, files=count)
    return count


def _checksum_of(path: str) -> str:
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name}.crc")


def _reason_to_keep(home: str, others: Iterable[str], warehouse: Warehouse) -> str:
    try:
        warehouse.check(home)
        if any(_is_local_inside(location, home) for location in others):
            return "another table lies in it"
    except Refusal as refusal:
        return str(refusal)
    return ""


def _is_local_inside(location: str, home: str) -> bool:
    try:
        return is_inside(location, home)
    except Refusal:
        return False


def _files(dropped: Loaded) -> Iterator[str]:
    """Yield files so that what names others goes after them: a crash leaves what can be found."""
    metadata: dict[str, Any] = dropped.metadata
    snapshots = metadata["snapshots"]
    has_gc = str(metadata["properties"].get(GC_ENABLED, "true")).lower() == "true"
    manifests: dict[str, None] = {}
    if snapshots:
        for location, is_manifest in _reachable(snapshots, data_too=has_gc):
            if is_manifest:
                manifests[location] = None
            else:
                yield location
    yield from manifests
    for snapshot in snapshots:
        if snapshot.get("manifest-list"):
            yield snapshot["manifest-list"]
    for item in (*metadata["statistics"], *metadata["partition-statistics"]):
        yield item["statistics-path"]
    for entry in metadata["metadata-log"]:
        yield entry["metadata-file"]
    yield dropped.location


def _reachable(
    snapshots: Iterable[dict[str, Any]], *, data_too: bool
) -> Iterator[tuple[str, bool]]:
    """Yield the data files and manifests of snapshots, and whether each is a manifest."""
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from pyiceberg.manifest import read_manifest_list

    files = PyArrowFileIO()
    seen: set[str] = set()
    for snapshot in snapshots:
        try:
            listed = snapshot.get("manifest-list")
            found = list(read_manifest_list(files.new_input(listed))) if listed else []
            for manifest in found:
                if manifest.manifest_path in seen:
                    continue
                seen.add(manifest.manifest_path)
                if data_too:
                    for entry in manifest.fetch_manifest_entry(files, discard_deleted=False):
                        yield entry.data_file.file_path, False
                yield manifest.manifest_path, True
        except (OSError, ValueError) as error:
            warn(
                "catalog_purge_snapshot_unreadable",
                snapshot=snapshot.get("snapshot-id"),
                reason=error,
            )
