"""Look at the files of the disk tier: each is read to its end, and nothing is changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from frazil.errors import CorruptionError
from frazil.tiers import FileLabel, open_parquet, read_facts

if TYPE_CHECKING:
    from frazil.engine.doctor import Report
    from frazil.fs import FileSystem
    from frazil.log import DataDirectory

ENDING = ".parquet"


def check_files(
    report: Report, file_system: FileSystem, paths: DataDirectory, *, read_all: bool
) -> int:
    """Note what is wrong with files; return how many there are."""
    if file_system.stat(paths.disk) is None:
        return 0
    count = 0
    for directory in file_system.list_directory(paths.disk):
        place = f"{paths.disk}/{directory}"
        info = file_system.stat(place)
        if info is None or not info.is_directory:
            continue
        for name in file_system.list_directory(place):
            if name.endswith(ENDING):
                count += 1
                fault = _fault(file_system, f"{place}/{name}", read_all=read_all)
                if fault:
                    report.add(
                        "damage",
                        f"disk {directory}",
                        f"{name}: {fault}",
                        "open the directory: it is written again if the log still has its records",
                    )
    return count


def _fault(file_system: FileSystem, path: str, *, read_all: bool) -> str:
    try:
        _facts, metadata = read_facts(file_system, path)
        FileLabel.from_metadata(metadata)
        if read_all:
            _read_all(file_system, path)
    except CorruptionError as error:
        return str(error.details.get("reason", error))
    except OSError as error:
        return f"cannot be read: {error}"
    return ""


def _read_all(file_system: FileSystem, path: str) -> None:
    parquet, source = open_parquet(file_system, path)
    try:
        for number in range(parquet.num_row_groups):
            parquet.read_row_group(number)
    except (OSError, ValueError) as error:
        if source.error is not None:
            raise source.error from error
        raise CorruptionError("page does not match its checksum", reason=error) from error
    finally:
        parquet.close()
        source.release()
