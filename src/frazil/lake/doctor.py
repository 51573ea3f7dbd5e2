"""Look at everything the lake needs on this machine, and say for each failure what to do.

Nothing is fetched, started or changed. A probe file in the warehouse is removed again.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

import attrs

from frazil.clock import Clock, SystemClock
from frazil.config import Settings
from frazil.errors import FrazilError
from frazil.fs import FileSystem, RealFileSystem, write_fully
from frazil.lake.jars import inspect_jars, jars_directory, pins
from frazil.lake.java import INSTALL, cache_directory, find_java, spark_version
from frazil.lake.worker_client import process_exists

if TYPE_CHECKING:
    from frazil.lake.catalog import CatalogAddress

__all__ = ["Check", "examine"]

ANSWER_SECONDS: Final = 10.0
_PACKAGES: Final = ("pyspark", "pyiceberg", "starlette", "uvicorn", "duckdb")
_SETUP: Final = "run frazil lake setup, or frazil lake setup --jars DIR without a network"


class Check(NamedTuple):
    """One thing that was looked at: what was found, and what to do if it is not right."""

    name: str
    ok: bool
    found: str
    fix: str = ""


@attrs.frozen
class _Examination:
    """The arguments of one look at the machine."""

    settings: Settings
    environment: Mapping[str, str]
    files: FileSystem
    clock: Clock
    bundled_java: str | None

    @property
    def data_dir(self) -> str:
        return os.path.abspath(self.settings.data_dir)

    @property
    def warehouse(self) -> str:
        return self.settings.lake.warehouse or os.path.join(self.data_dir, "warehouse")


def examine(
    settings: Settings,
    *,
    environment: Mapping[str, str] | None = None,
    file_system: FileSystem | None = None,
    clock: Clock | None = None,
    bundled_java: str | None = None,
) -> list[Check]:
    """Return one check after another; none of them keeps the others from being made.

    Args:
        settings: what the lake would run with.
        environment: the process's own without it.
        file_system: where data, cache and local warehouse are.
        clock: gives the probe file its name.
        bundled_java: see `find_java`.
    """
    examination = _Examination(
        settings,
        os.environ if environment is None else environment,
        file_system or RealFileSystem(),
        clock or SystemClock(),
        bundled_java,
    )
    found: list[Check] = []
    for name, look in _LOOKS:
        try:
            found += look(examination)
        except FrazilError as error:
            found.append(Check(name, ok=False, found=error.message, fix=_facts(error)))
        except ImportError as error:
            found.append(Check(name, ok=False, found=str(error), fix=f"run {INSTALL}"))
        except OSError as error:
            found.append(Check(name, ok=False, found=str(error), fix="correct the path's rights"))
    return found


def _facts(error: FrazilError) -> str:
    return " ".join(f"{key}={value}" for key, value in error.details.items())


def _java(examination: _Examination) -> Iterator[Check]:
    java = find_java(
        examination.environment,
        cache_dir=cache_directory(examination.environment),
        file_system=examination.files,
        bundled_home=examination.bundled_java,
    )
    notes = "".join(f"; {note}" for note in java.notes)
    yield Check("java", ok=True, found=f"{java.version} from {java.source}, {java.home}{notes}")


def _packages(_examination: _Examination) -> Iterator[Check]:
    for name in _PACKAGES:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Check(name, ok=False, found="not installed", fix=f"run {INSTALL}")
        else:
            yield Check(name, ok=True, found=version)


def _versions(_examination: _Examination) -> Iterator[Check]:
    wanted, installed = pins(), spark_version()
    fits = ".".join(installed.split(".")[:2]) == wanted.spark
    text = f"PySpark {installed}, Iceberg {wanted.iceberg} for Spark {wanted.spark}"
    yield Check("versions", ok=fits, found=text, fix="" if fits else f"run {INSTALL}")


def _jars(examination: _Examination) -> Iterator[Check]:
    directory = jars_directory(examination.settings, examination.environment)
    for jar, path, found in inspect_jars(directory, file_system=examination.files):
        name = f"jar {jar.artifact}"
        if found == jar.sha256:
            yield Check(name, ok=True, found=f"{path}, {jar.bytes:,} bytes, sha-256 fits")
        elif not found:
            yield Check(name, ok=False, found=f"not in {directory}", fix=_SETUP)
        else:
            text = f"{path} has sha-256 {found[:16]}…, not {jar.sha256[:16]}…"
            yield Check(name, ok=False, found=text, fix=f"remove this file, then {_SETUP}")


def _catalog(examination: _Examination) -> Iterator[Check]:
    """Ask the catalog of the data directory, if it runs."""
    from frazil.lake.catalog.address import read_address

    address = read_address(os.path.join(examination.data_dir, "run"), file_system=examination.files)
    if address is not None and process_exists(address.pid):
        yield _asked(address)
    else:
        yield Check("catalog", ok=True, found="not running; the next start of the lake starts it")


def _asked(running: CatalogAddress) -> Check:
    from frazil.lake.connection import connect

    try:
        names = connect(running, timeout_seconds=ANSWER_SECONDS).list_namespaces()
    except FrazilError as error:
        return Check(
            "catalog",
            ok=False,
            found=f"{running.uri}: {error.message}",
            fix="open the data directory again, which makes a new address and token;"
            " logs/lake.log in it has the rest",
        )
    return Check("catalog", ok=True, found=f"{running.uri} answers, {len(names)} namespaces")


def _warehouse(examination: _Examination) -> Iterator[Check]:
    path = examination.warehouse
    if "://" in path and not path.startswith("file://"):
        yield Check(
            "warehouse",
            ok=False,
            found=f"{path} is not on the local disk, where the embedded catalog keeps tables",
            fix="set lake.warehouse to a directory",
        )
        return
    token = examination.clock.random_bytes(8).hex()
    probe = token.encode() * 512
    try:
        whole = os.path.abspath(path.removeprefix("file://"))
        # A missing warehouse is made by the first table; the directory above it is tried.
        path = _existing(whole, examination.files)
        read = _probe(path, token, probe, examination.files)
    except OSError as error:
        yield Check(
            "warehouse",
            ok=False,
            found=f"{path} cannot be written and read: {error}",
            fix="correct its rights, or set lake.warehouse to another directory",
        )
        return
    fits = read == probe
    text = f"{path} was written and read" if fits else f"{path} gave back other bytes"
    fix = "" if fits else "set lake.warehouse to another directory: this storage loses data"
    yield Check("warehouse", ok=fits, found=text, fix=fix)


def _probe(directory: str, token: str, probe: bytes, files: FileSystem) -> bytes:
    path = os.path.join(directory, f".frazil-probe-{token}")
    file = files.open(path, "create")
    try:
        write_fully(file, 0, [probe])
        file.sync()
        return file.read_at(0, len(probe) + 1)
    finally:
        file.close()
        files.unlink(path)


def _existing(path: str, files: FileSystem) -> str:
    """Return the path, or the nearest directory above it that exists."""
    while files.stat(path) is None and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


_LOOKS: Final[tuple[tuple[str, Callable[[_Examination], Iterator[Check]]], ...]] = (
    ("java", _java),
    ("packages", _packages),
    ("versions", _versions),
    ("jars", _jars),
    ("catalog", _catalog),
    ("warehouse", _warehouse),
)
