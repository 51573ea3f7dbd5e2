"""Metadata files: read, written create-only and durable, deleted when a table has too many.

Locations are those of the tables: an absolute path or a `file:` URI. The embedded catalog keeps its
warehouse on the local disk; a location elsewhere is refused with that reason.
"""

from __future__ import annotations

import contextlib
import errno
import os
import os.path
import re
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import msgspec

from frazil.fs import read_fully, write_fully
from frazil.lake.catalog.metadata import completed
from frazil.lake.catalog.refusals import Refusal, bad_request, commit_failed
from frazil.telemetry import event, warn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from frazil.clock import Clock
    from frazil.fs import FileSystem
    from frazil.lake.catalog.schemas import Json

__all__ = ["Loaded", "MetadataFiles", "check_inside", "is_inside", "local_path", "purge"]

FILE_BYTES_MAX: Final = 256 << 20
CACHE_BYTES_MAX: Final = 64 << 20
DELETE_AFTER_COMMIT: Final = "write.metadata.delete-after-commit.enabled"
_NUMBERED = re.compile(r"(?:v)?([0-9]{1,9})(?:-.*)?\.(?:gz\.)?metadata\.json(?:\.gz)?")
_METADATA_NAME = re.compile(r".*\.metadata\.json")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.*)", re.DOTALL)


def local_path(location: str) -> str:
    """Return the path of a location on the local disk, normalised.

    Raises:
        Refusal: it is elsewhere, relative, or no path.
    """
    found = _SCHEME.fullmatch(location)
    path = location
    if found:
        if found[1].lower() != "file":
            raise bad_request(
                "location is not on the local disk, the embedded catalog keeps tables there only",
                location=location,
            )
        path = found[2]
        if path.startswith("//"):
            host, slash, rest = path[2:].partition("/")
            if host not in {"", "localhost"}:
                raise bad_request("location is on another host", location=location)
            path = slash + rest
    if not path.startswith("/") or not path.isprintable():
        raise bad_request("location is no absolute path", location=location)
    return os.path.normpath(f"/{path.lstrip('/')}")


def is_inside(location: str, directory: str) -> bool:
    """Return whether a location is below a directory, and not the directory itself."""
    path, above = local_path(location), local_path(directory)
    return path != above and os.path.commonpath([path, above]) == above


def check_inside(location: str, warehouse: str) -> None:
    """Refuse a location outside of the warehouse."""
    path = local_path(location)
    if not is_inside(path, warehouse) or not is_inside(
        os.path.realpath(path), os.path.realpath(local_path(warehouse))
    ):
        raise bad_request(
            "location is outside the warehouse, choose one below it or leave it out",
            location=location,
            warehouse=warehouse,
        )


class Loaded(msgspec.Struct, frozen=True):
    """One metadata file: its location, its bytes as JSON, and the completed metadata."""

    location: str
    raw: bytes
    metadata: dict[str, Any]


class MetadataFiles:
    """The metadata files of all tables. All methods may be called from any thread.

    A file never changes under its name, so files that were read are cached, up to a limit.
    """

    def __init__(self, *, file_system: FileSystem, clock: Clock, warehouse: str) -> None:
        self._fs = file_system
        self._clock = clock
        self._warehouse = warehouse
        self._lock = threading.Lock()
        self._cache: OrderedDict[str, Loaded] = OrderedDict()
        self._cache_bytes = 0

    def load(self, location: str) -> Loaded:
        """Return a metadata file.

        Raises:
            Refusal: 404 if the file is not there, 400 if it is no table's metadata.
        """
        with self._lock:
            found = self._cache.get(location)
            if found is not None:
                self._cache.move_to_end(location)
                return found
        raw = self._read(location)
        try:
            metadata = completed(msgspec.json.decode(raw, type=dict))
        except (msgspec.MsgspecError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise bad_request(
                "metadata file cannot be understood", location=location, reason=error
            ) from error
        return self._keep(Loaded(location, raw, metadata))

    def _keep(self, loaded: Loaded) -> Loaded:
        with self._lock:
            if loaded.location not in self._cache:
                self._cache_bytes += len(loaded.raw)
            self._cache[loaded.location] = loaded
            while len(self._cache) > 1 and self._cache_bytes > CACHE_BYTES_MAX:
                _location, oldest = self._cache.popitem(last=False)
                self._cache_bytes -= len(oldest.raw)
        return loaded

    def _read(self, location: str) -> bytes:
        path = local_path(location)
        try:
            file = self._fs.open(path, "read")
        except FileNotFoundError as error:
            raise Refusal(
                404, "NotFoundException", "metadata file does not exist", location=location
            ) from error
        with contextlib.closing(file):
            size = file.size()
            if size > FILE_BYTES_MAX:
                raise bad_request("metadata file is too large", location=location, bytes=size)
            return read_fully(file, 0, size)

    def create(self, metadata: Json, *, after: str | None) -> Loaded:
        """Write metadata into a new file; it and its name are durable on return.

        Args:
            metadata: complete.
            after: the file it replaces; its number is one higher.

        Raises:
            Refusal: 409 if the disk refuses; then perhaps a file is left that nothing names.
        """
        directory = f"{metadata['location']}/metadata"
        check_inside(directory, self._warehouse)
        number = _number_of(after) + 1
        name = UUID(bytes=self._clock.random_bytes(16), version=4)
        location = f"{directory}/{number:05d}-{name}.metadata.json"
        raw = msgspec.json.encode(metadata)
        if len(raw) > FILE_BYTES_MAX:
            raise bad_request("metadata is too large", bytes=len(raw), bytes_max=FILE_BYTES_MAX)
        try:
            self._write(local_path(location), raw)
        except OSError as error:
            self._unlink(location)
            raise commit_failed(
                "metadata file cannot be written, nothing was changed",
                location=location,
                reason=error,
            ) from error
        return self._keep(Loaded(location, raw, metadata))

    def _write(self, path: str, data: bytes) -> None:
        directory = os.path.dirname(path)
        try:
            file = self._fs.open(path, "create")
        except FileNotFoundError:
            self._make_directory(directory)
            file = self._fs.open(path, "create")
        with contextlib.closing(file):
            write_fully(file, 0, [data])
            file.sync()
        self._fs.sync_directory(directory)

    def _make_directory(self, path: str) -> None:
        missing = []
        above = path
        while self._fs.stat(above) is None and above != "/":
            missing.append(above)
            above = os.path.dirname(above)
        self._fs.make_directory(path)
        for made in reversed(missing):
            self._fs.sync_directory(os.path.dirname(made))

    def discard(self, loaded: Loaded) -> None:
        """Delete a file of `create` that certainly nothing names."""
        with self._lock:
            if self._cache.pop(loaded.location, None) is not None:
                self._cache_bytes -= len(loaded.raw)
        self._unlink(loaded.location)

    def delete_outgrown(self, base: Json, metadata: Json) -> None:
        """Delete the earlier metadata files that `base` lists and `metadata` no longer lists.

        Only if the table's properties request it, and only the table's files with a metadata file's
        name.
        """
        if str(metadata["properties"].get(DELETE_AFTER_COMMIT, "false")).lower() != "true":
            return
        named = {entry["metadata-file"] for entry in metadata["metadata-log"]}
        for entry in base["metadata-log"]:
            location = entry["metadata-file"]
            if location not in named and self._is_own(location, metadata):
                self._unlink(location)

    def _is_own(self, location: str, metadata: Json) -> bool:
        if not _METADATA_NAME.fullmatch(location.rpartition("/")[2]):
            return False
        return _is_below(location, str(metadata["location"]))

    def _unlink(self, location: str) -> None:
        try:
            self._fs.unlink(local_path(location))
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in {errno.ENOENT, errno.ENOTDIR}:
                warn("catalog_file_not_deleted", location=location, reason=error)


def _number_of(location: str | None) -> int:
    if location is None:
        return -1
    found = _NUMBERED.fullmatch(location.rpartition("/")[2])
    return int(found[1]) if found else -1


GC_ENABLED: Final = "gc.enabled"


def purge(
    dropped: Loaded, *, others: Sequence[str], file_system: FileSystem, warehouse: str
) -> int:
    """Delete a dropped table's files below its own location; return how many.

    Nothing is deleted if another table's metadata is below the location too, or if the table's
    location is not below the warehouse: its files may then belong to another table. With the
    property `gc.enabled` false, data files stay.
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
            # Spark stores the checksum of each local file in a hidden file of the same directory.
            directory, name = os.path.split(path)
            with contextlib.suppress(FileNotFoundError):
                file_system.unlink(f"{directory}/.{name}.crc")
            file_system.unlink(path)
            count += 1
        except (FileNotFoundError, Refusal):
            continue
        except OSError as error:
            warn("catalog_purge_kept_file", location=location, reason=error)
    event("catalog_table_purged", location=home, files=count)
    return count


def _reason_to_keep(home: str, others: Iterable[str], warehouse: str) -> str:
    try:
        check_inside(home, warehouse)
        if any(_is_below(location, home) for location in others):
            return "another table is below it"
    except Refusal as refusal:
        return str(refusal)
    return ""


def _is_below(location: str, home: str) -> bool:
    try:
        return is_inside(location, home)
    except Refusal:
        return False


def _files(dropped: Loaded) -> Iterator[str]:
    """Yield files before those that name them: after a crash the rest can still be found."""
    metadata: dict[str, Any] = dropped.metadata
    lists = [each["manifest-list"] for each in metadata["snapshots"] if "manifest-list" in each]
    has_gc = str(metadata["properties"].get(GC_ENABLED, "true")).lower() == "true"
    manifests: list[str] = []
    for location in lists:
        yield from _reachable(location, manifests, data_too=has_gc)
    yield from manifests
    yield from lists
    for item in (*metadata["statistics"], *metadata["partition-statistics"]):
        yield item["statistics-path"]
    for entry in metadata["metadata-log"]:
        yield entry["metadata-file"]
    yield dropped.location


def _reachable(manifest_list: str, manifests: list[str], *, data_too: bool) -> Iterator[str]:
    """Yield the data files of manifests that are not in `manifests` yet, and add these."""
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from pyiceberg.manifest import read_manifest_list

    files = PyArrowFileIO()
    try:
        for manifest in read_manifest_list(files.new_input(manifest_list)):
            if manifest.manifest_path in manifests:
                continue
            manifests.append(manifest.manifest_path)
            if data_too:
                for entry in manifest.fetch_manifest_entry(files, discard_deleted=False):
                    yield entry.data_file.file_path
    except (OSError, ValueError) as error:
        warn("catalog_purge_snapshot_unreadable", manifests=manifest_list, reason=error)
