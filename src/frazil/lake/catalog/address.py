"""The address of a running catalog: one small file that only its owner can read."""

from __future__ import annotations

import contextlib
import os.path
from typing import TYPE_CHECKING, Final

import msgspec

from frazil.fs import read_fully, write_fully
from frazil.struct_types import learnt

if TYPE_CHECKING:
    from frazil.clock import Clock
    from frazil.fs import FileSystem

__all__ = ["ADDRESS_FILE", "CatalogAddress", "read_address", "remove_address", "write_address"]

ADDRESS_FILE: Final = "catalog.json"
ADDRESS_BYTES_MAX: Final = 1 << 16


class CatalogAddress(msgspec.Struct, frozen=True, kw_only=True):
    """A catalog's URI, its token and its warehouse."""

    uri: str
    token: str = ""
    pid: int = 0
    warehouse: str = ""

    def __repr__(self) -> str:
        # The token must not reach a log by accident.
        return f"CatalogAddress(uri={self.uri!r}, pid={self.pid}, warehouse={self.warehouse!r})"


def write_address(
    directory: str, address: CatalogAddress, *, file_system: FileSystem, clock: Clock
) -> None:
    """Put the address file into a directory; readers see the old one or the new one, whole."""
    file_system.make_directory(directory)
    path = os.path.join(directory, ADDRESS_FILE)
    temporary = f"{path}.{clock.random_bytes(4).hex()}.tmp"
    with contextlib.closing(file_system.open(temporary, "create")) as file:
        write_fully(file, 0, [msgspec.json.format(msgspec.json.encode(address), indent=1)])
    file_system.rename(temporary, path)


def read_address(directory: str, *, file_system: FileSystem) -> CatalogAddress | None:
    """Return the address in a directory, None if there is none or it cannot be understood."""
    try:
        file = file_system.open(os.path.join(directory, ADDRESS_FILE), "read")
    except OSError:
        return None
    with contextlib.closing(file):
        data = read_fully(file, 0, ADDRESS_BYTES_MAX)
    try:
        return msgspec.json.decode(data, type=learnt(CatalogAddress))
    except msgspec.MsgspecError:
        return None


def remove_address(directory: str, *, pid: int, file_system: FileSystem) -> None:
    """Remove the address file if it is still that of `pid`."""
    found = read_address(directory, file_system=file_system)
    if found is not None and found.pid == pid:
        file_system.unlink(os.path.join(directory, ADDRESS_FILE))
