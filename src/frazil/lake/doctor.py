"""Check the lake's requirements on this machine, and report a remedy for each failure.

Nothing is fetched, started or changed. A probe file in the warehouse is removed again.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from frazil.clock import SystemClock
from frazil.errors import FrazilError
from frazil.fs import RealFileSystem, write_fully
from frazil.lake.jars import inspect_jars, jars_directory, pins
from frazil.lake.java import INSTALL, cache_directory, find_java, spark_version
from frazil.lake.worker_client import process_exists

if TYPE_CHECKING:
    from frazil.config import Settings
    from frazil.lake.catalog import CatalogAddress

__all__ = ["Check", "examine"]

ANSWER_SECONDS: Final = 10.0
_PACKAGES: Final = ("pyspark", "pyiceberg", "starlette", "uvicorn", "duckdb")
_RIGHTS: Final = "correct the rights of this path, or set lake.warehouse or XDG_CACHE_HOME anew"
_SETUP: Final = "run frazil lake setup, or frazil lake setup --jars DIR without a network"


class Check(NamedTuple):
    """One check: its result, and the remedy if it failed."""

    name: str
    ok: bool
    found: str
    fix: str = ""


def examine(
    settings: Settings,
    *,
    environment: Mapping[str, str] = os.environ,
    bundled_java: str | None = None,
) -> list[Check]:
    """Yield one check after another; a failed check does not stop the others.

    Args:
        settings: the lake's settings.
        environment: the variables that locate Java and the cache.
        bundled_java: see `find_java`.
    """
    data_dir = os.path.abspath(settings.data_dir)
    looks: dict[str, Callable[[], Iterator[Check]]] = {
        "java": lambda: _java(environment, bundled_java),
        "packages": _packages,
        "versions": _versions,
        "jars": lambda: _jars(jars_directory(settings, environment)),
        "catalog": lambda: _catalog(os.path.join(data_dir, "run")),
        "warehouse": lambda: _warehouse(
            settings.lake.warehouse or os.path.join(data_dir, "warehouse")
        ),
    }
    found: list[Check] = []
    for name, look in looks.items():
        try:
            found += look()
        except FrazilError as error:
            found.append(Check(name, ok=False, found=error.message, fix=_facts(error)))
        except ImportError as error:
            found.append(Check(name, ok=False, found=str(error), fix=f"run {INSTALL}"))
        except OSError as error:
            found.append(Check(name, ok=False, found=str(error), fix=_RIGHTS))
    return found


def _facts(error: FrazilError) -> str:
    return " ".join(f"{key}={value}" for key, value in error.details.items())


def _java(environment: Mapping[str, str], bundled: str | None) -> Iterator[Check]:
    java = find_java(environment, cache_dir=cache_directory(environment), bundled_home=bundled)
    notes = "".join(f"; {note}" for note in java.notes)
    yield Check("java", ok=True, found=f"{java.version} from {java.source}, {java.home}{notes}")


def _packages() -> Iterator[Check]:
    for name in _PACKAGES:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield Check(name, ok=False, found="not installed", fix=f"run {INSTALL}")
        else:
            yield Check(name, ok=True, found=version)


def _versions() -> Iterator[Check]:
    wanted, installed = pins(), spark_version()
    fits = ".".join(installed.split(".")[:2]) == wanted.spark
    text = f"PySpark {installed}, Iceberg {wanted.iceberg} for Spark {wanted.spark}"
    yield Check("versions", ok=fits, found=text, fix="" if fits else f"run {INSTALL}")


def _jars(directory: str) -> Iterator[Check]:
    for jar, path, found in inspect_jars(directory):
        name = f"jar {jar.artifact}"
        if found == jar.sha256:
            yield Check(name, ok=True, found=f"{path}, {jar.bytes:,} bytes, sha-256 fits")
        elif not found:
            yield Check(name, ok=False, found=f"not in {directory}", fix=_SETUP)
        else:
            text = f"{path} has sha-256 {found[:16]}…, not {jar.sha256[:16]}…"
            yield Check(name, ok=False, found=text, fix=f"remove this file, then {_SETUP}")


def _catalog(run_directory: str) -> Iterator[Check]:
    """Check the catalog of the data directory, if it runs."""
    from frazil.lake.catalog.address import read_address

    address = read_address(run_directory, file_system=RealFileSystem())
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


def _warehouse(path: str) -> Iterator[Check]:
    """Write and read a small file; a missing warehouse is made by the first table."""
    if "://" in path and not path.startswith("file://"):
        yield Check(
            "warehouse",
            ok=False,
            found=f"{path} is not on the local disk, where the embedded catalog keeps tables",
            fix="set lake.warehouse to a directory",
        )
        return
    files = RealFileSystem()
    path = os.path.abspath(path.removeprefix("file://"))
    token = SystemClock().random_bytes(8).hex()
    while files.stat(path) is None:
        path = os.path.dirname(path)
    fits = _probe(os.path.join(path, f".frazil-probe-{token}"), token.encode() * 512, files)
    text = f"{path} was written and read" if fits else f"{path} gave back other bytes"
    fix = "" if fits else "set lake.warehouse to another directory: this storage loses data"
    yield Check("warehouse", ok=fits, found=text, fix=fix)


def _probe(path: str, data: bytes, files: RealFileSystem) -> bool:
    file = files.open(path, "create")
    try:
        write_fully(file, 0, [data])
        file.sync()
        return file.read_at(0, len(data) + 1) == data
    finally:
        file.close()
        files.unlink(path)
