"""The ledger of the guided run: what was acked, noted outside the log in a file of its own.

Each line is `<crc> <topic> <offset behind the last acked record>`. Lines are only added; one that
was cut short fails its checksum and is passed over.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

from frazil.fs import FileSystem, read_fully, write_fully

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Ledger", "decode_ledger", "encode_entry"]


def encode_entry(topic: str, end: int) -> bytes:
    """Return one line."""
    text = f"{topic} {end}".encode()
    return b"%08x %b\n" % (zlib.crc32(text), text)


def decode_ledger(data: bytes) -> dict[str, int]:
    """Return the highest end of each topic in the lines that are whole."""
    found: dict[str, int] = {}
    for line in data.split(b"\n")[:-1]:
        checksum, _, text = line.partition(b" ")
        topic, _, end = text.rpartition(b" ")
        if b"%08x" % zlib.crc32(text) == checksum and end.isdigit():
            name = topic.decode()
            found[name] = max(found.get(name, 0), int(end))
    return found


class Ledger:
    """The open file. Opening it keeps only the last line of each topic."""

    def __init__(self, file_system: FileSystem, path: str) -> None:
        self.ends: dict[str, int] = {}
        """What it knew when it was opened."""
        if file_system.stat(path) is not None:
            old = file_system.open(path, "read")
            self.ends = decode_ledger(read_fully(old, 0, old.size()))
            old.close()
        fresh = f"{path}.new"
        if file_system.stat(fresh) is not None:
            file_system.unlink(fresh)
        self._file = file_system.open(fresh, "create")
        self._position = 0
        self.note(self.ends)
        file_system.rename(fresh, path)
        file_system.sync_directory(path.rpartition("/")[0])

    def note(self, ends: Mapping[str, int]) -> None:
        """Add what is acked now; durable on return."""
        data = b"".join([encode_entry(topic, end) for topic, end in ends.items()])
        self._position += write_fully(self._file, self._position, [data])
        self._file.sync()

    def close(self) -> None:
        """Close the file."""
        self._file.close()
