"""File objects for pyarrow over the file seam, with the checksums of what goes through them."""

from __future__ import annotations

import contextlib
import io
import zlib
from typing import TYPE_CHECKING, Final

from frazil.errors import CorruptionError
from frazil.fs import read_fully, write_fully

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Buffer

    from frazil.fs import File, FileSystem

__all__ = ["SeamSink", "SeamSource"]

SINK_BUFFER_BYTES: Final = 1 << 20
SINK_DIRECT_BYTES: Final = 256 << 10
CRC_BYTES: Final = 1 << 20
FOOTER_BYTES_MAX: Final = 256 << 20
TAIL_BYTES: Final = 8
_MAGIC: Final = b"PAR1"


class SeamSink(io.RawIOBase):
    """A file to write through the seam, start to end; counts bytes and the checksum of all."""

    def __init__(
        self, file_system: FileSystem, path: str, *, throttle: Callable[[int], None] | None = None
    ) -> None:
        super().__init__()
        self._file: File = file_system.open(path, "create")
        self._throttle = throttle
        self._buffer = bytearray()
        self._written = 0
        self._dead = False
        self.crc = 0

    @property
    def size(self) -> int:
        """Return how many bytes were given to it."""
        return self._written + len(self._buffer)

    def write(self, data: Buffer, /) -> int:
        view = memoryview(data).cast("B")
        if self._dead:
            # An aborted Parquet writer still writes its footer.
            return len(view)
        if len(view) >= SINK_DIRECT_BYTES:
            self._flush_buffer()
            self._put(view)
        else:
            # Copied: pyarrow uses its buffers again.
            self._buffer += view
            if len(self._buffer) >= SINK_BUFFER_BYTES:
                self._flush_buffer()
        return len(view)

    def tell(self) -> int:
        return self.size

    def writable(self) -> bool:
        return True

    def finish(self) -> int:
        """Write what is buffered, make the file durable and return the checksum of its footer."""
        self._flush_buffer()
        self._file.sync()
        file = self._file
        crc = _footer_crc(lambda at, size: read_fully(file, at, size), self._written)
        self._dead = True
        self._file.close()
        return crc

    def abort(self) -> None:
        """Take nothing any more; what was written stays as it is."""
        if not self._dead:
            self._dead = True
            with contextlib.suppress(OSError):
                self._file.close()

    def _flush_buffer(self) -> None:
        if self._buffer:
            buffer, self._buffer = self._buffer, bytearray()
            self._put(memoryview(buffer))

    def _put(self, view: memoryview) -> None:
        write_fully(self._file, self._written, [view])
        self._written += len(view)
        self.crc = zlib.crc32(view, self.crc)
        if self._throttle is not None:
            self._throttle(len(view))


class SeamSource(io.RawIOBase):
    """A file to read through the seam.

    Attributes:
        size: its size in bytes.
        error: the error of the file system that a read failed with. When a read fails and this is
            None, the file was read, but its bytes make no sense.
    """

    def __init__(self, file_system: FileSystem, path: str) -> None:
        super().__init__()
        self._file: File = file_system.open(path, "read")
        self._position = 0
        self.error: OSError | None = None
        try:
            self.size = self._file.size()
        except OSError:
            self.release()
            raise

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            size = max(self.size - self._position, 0)
        data = self.read_at(self._position, size)
        self._position += len(data)
        return data

    def read_at(self, position: int, size: int) -> bytes:
        """Return the bytes at a position, fewer only at the end."""
        try:
            return read_fully(self._file, position, size)
        except OSError as error:
            self.error = error
            raise

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def crc(self) -> int:
        """Return the CRC32 of the whole file."""
        crc = position = 0
        while data := self.read_at(position, CRC_BYTES):
            crc = zlib.crc32(data, crc)
            position += len(data)
        return crc

    def footer_crc(self) -> int:
        """Return the CRC32 of a Parquet file's footer with the eight bytes behind it.

        Raises:
            CorruptionError: if there is none.
        """
        return _footer_crc(self.read_at, self.size)

    def release(self) -> None:
        """Give the descriptor back; pyarrow never does it by itself."""
        with contextlib.suppress(OSError):
            self._file.close()


def _footer_crc(read_at: Callable[[int, int], bytes], size: int) -> int:
    tail = read_at(max(size - TAIL_BYTES, 0), TAIL_BYTES)
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != _MAGIC or not 0 < length <= min(size - TAIL_BYTES, FOOTER_BYTES_MAX):
        raise CorruptionError("parquet file has no footer", bytes=size)
    return zlib.crc32(read_at(size - TAIL_BYTES - length, length + TAIL_BYTES))
