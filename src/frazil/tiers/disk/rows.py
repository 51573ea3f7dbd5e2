"""Row groups of the disk tier's files: opened once, decoded once, kept while there is room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from frazil.errors import CorruptionError, Unavailable
from frazil.schema import BitmapMoves
from frazil.tiers.disk.cache import BytesCache, OpenCache
from frazil.tiers.disk.file import OP_FIELD, PRESENT_FIELD, ids_of, user_schema
from frazil.tiers.disk.reader import RowsFile

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from frazil.tiers.disk.file import DiskFile
    from frazil.tiers.disk.tier import DiskTier

__all__ = ["DiskReaders", "FileGone"]

CACHE_BYTES: Final = 64 << 20


class FileGone(Exception):
    """A file was removed after its name was read: take a new picture."""


class DiskReaders:
    """Opens files and decodes their row groups. Any thread may use it."""

    def __init__(self, tier: DiskTier) -> None:
        self._tier = tier
        self._open: OpenCache[RowsFile] = OpenCache(
            tier.settings.open_files_max, close=RowsFile.release
        )
        self._groups: BytesCache[pa.RecordBatch] = BytesCache(CACHE_BYTES)

    @property
    def cache_bytes(self) -> int:
        """Return the memory of decoded row groups."""
        return self._groups.nbytes

    def reader(self, file: DiskFile) -> RowsFile:
        """Return a file, open.

        Raises:
            CorruptionError: its footer is damaged, or a registered file is gone.
            FileGone: it was removed meanwhile.
            Unavailable: it cannot be read now.
        """
        path = self._tier.path(file)

        def open_one() -> RowsFile:
            return RowsFile(self._tier.file_system, path, file)

        try:
            return self._open.get((file.topic, file.name), open_one)
        except FileNotFoundError as error:
            raise self._gone(file, error) from error
        except OSError as error:
            raise Unavailable("file cannot be opened, try again", path=path, error=error) from error
        except CorruptionError as error:
            raise damaged_error(file, error) from error

    def group(self, file: DiskFile, number: int) -> pa.RecordBatch:
        """Return a row group with all columns; errors as of `reader`."""
        key = (file.topic, file.name, number)
        found = self._groups.get(key)
        if found is None:
            found = self.read(file, number)
            self._groups.put(key, found, found.nbytes)
        return found

    def columns(self, file: DiskFile, number: int, names: tuple[str, ...]) -> pa.RecordBatch:
        """Return some columns of a row group; errors as of `reader`."""
        whole = self._groups.get((file.topic, file.name, number))
        if whole is not None:
            return whole.select(list(names))
        key = (file.topic, file.name, number, names)
        found = self._groups.get(key)
        if found is None:
            found = self.read(file, number, names)
            self._groups.put(key, found, found.nbytes)
        return found

    def read(
        self, file: DiskFile, number: int, names: tuple[str, ...] | None = None
    ) -> pa.RecordBatch:
        """Return a row group without keeping it; errors as of `reader`."""
        while True:
            reader = self.reader(file)
            try:
                return reader.read(number, None if names is None else list(names))
            except FileNotFoundError:
                # Another thread's need for descriptors closed it.
                self._open.forget((file.topic, file.name))
            except OSError as error:
                path = self._tier.path(file)
                raise Unavailable("file cannot be read, try again", path=path) from error
            except CorruptionError as error:
                raise damaged_error(file, error) from error

    def forget(self, file: DiskFile) -> None:
        """Close a file and drop what is kept of it."""
        self._open.forget((file.topic, file.name))
        prefix = (file.topic, file.name)
        self._groups.forget(lambda key: isinstance(key, tuple) and key[:2] == prefix)

    def close(self) -> None:
        """Close all files and drop what is kept."""
        self._open.clear()
        self._groups.clear()

    def current(self, file: DiskFile, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows as the log gives them: the current columns, then operation and bitmap."""
        written = user_schema(batch.schema)
        users = batch.select(written.names)
        convert = self._tier.convert
        wanted = users if convert is None else convert(file.topic, file.schema, users)
        if not file.keyed:
            return wanted
        present = batch.column(PRESENT_FIELD.name)
        if present.null_count < len(present):
            present = _moves(written, wanted.schema).moved_array(present)
        return pa.RecordBatch.from_arrays(
            [*wanted.columns, batch.column(OP_FIELD.name), present],
            schema=pa.schema([*wanted.schema, OP_FIELD, PRESENT_FIELD]),
        )

    def _gone(self, file: DiskFile, error: Exception) -> Exception:
        if file.name in self._tier.picture(file.topic).by_name:
            return damaged_error(file, error)
        return FileGone(file.name)


def damaged_error(file: DiskFile, reason: Exception) -> CorruptionError:
    """Return the error for a file whose rows cannot be had."""
    told = reason.details.get("reason", reason) if isinstance(reason, CorruptionError) else reason
    return CorruptionError(
        "file of the disk tier is damaged, run `frazil doctor`; reading may go on at offset_next",
        topic=file.topic,
        offset_first=file.offset_first,
        offset_next=file.offset_last + 1,
        file=file.name,
        reason=told,
    )


def offsets_of(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Return the offsets of rows."""
    found: npt.NDArray[np.int64] = batch.column("_offset").to_numpy(zero_copy_only=False)
    return found


def _moves(written: pa.Schema, wanted: pa.Schema) -> BitmapMoves:
    written_ids, wanted_ids = ids_of(written), ids_of(wanted)
    if min(wanted_ids, default=-1) < 0 or min(written_ids, default=-1) < 0:
        # Columns without ids are the same where their names are.
        names = {name: number for number, name in enumerate(written.names)}
        written_ids = list(range(len(written)))
        wanted_ids = [names.get(name, -1) for name in wanted.names]
    return BitmapMoves(written_ids, wanted_ids)
