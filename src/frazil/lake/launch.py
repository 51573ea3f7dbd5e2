"""What every start of Spark's JVM shares: which Spark, its environment, its settings as a file.

Settings go to Spark in a properties file that only its owner can read, never on the command line,
where everybody on the machine could see a token.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from frazil.errors import Unavailable
from frazil.fs import FileSystem, write_fully

if TYPE_CHECKING:
    from frazil.lake.java import Java

__all__ = [
    "INSTALL",
    "SHORT_LIVED",
    "cache_directory",
    "properties_text",
    "put_file",
    "read_text",
    "spark_environment",
    "spark_home",
    "spark_version",
]

INSTALL: Final = 'pip install "frazil[lake]"'
SHORT_LIVED: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a JVM that ends before its better compiler would pay; half the time of two cores."""
_TEXT_BYTES_MAX: Final = 1 << 16
_FOREIGN: Final = ("SPARK_CONF_DIR", "SPARK_ENV_LOADED", "PYSPARK_SUBMIT_ARGS", "SPARK_REMOTE")
"""Variables that would bring the settings of another Spark, or another kind of session."""


def cache_directory(environment: Mapping[str, str]) -> str:
    """Return where jars are kept for all data directories of a user, by the XDG rules."""
    base = environment.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        home = environment.get("HOME", "") or os.path.expanduser("~")
        base = os.path.join(home, ".cache")
    return os.path.join(base, "frazil", "lake")


def spark_home() -> str:
    """Return the directory of the installed PySpark.

    Raises:
        Unavailable: if it is not installed.
    """
    spec = importlib.util.find_spec("pyspark")
    places = (spec.submodule_search_locations if spec is not None else None) or []
    if not places:
        raise Unavailable(f"PySpark is not installed, run {INSTALL}")
    return places[0]


def spark_version() -> str:
    """Return the version of the installed PySpark.

    Raises:
        Unavailable: if it is not installed.
    """
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError as error:
        raise Unavailable(f"PySpark is not installed, run {INSTALL}") from error


def spark_environment(java: Java, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of Spark's start script: our Spark, our Java, no foreign settings."""
    found = {key: value for key, value in environment.items() if key not in _FOREIGN}
    options = f"{SHORT_LIVED} {environment.get('SPARK_LAUNCHER_OPTS', '')}".strip()
    # A first JVM puts the command of the second together; it lives for a second.
    return java.environment({**found, "SPARK_HOME": spark_home(), "SPARK_LAUNCHER_OPTS": options})


def properties_text(conf: Mapping[str, str]) -> str:
    """Return settings as the text of a Java properties file; Spark cuts spaces around values."""
    lines = (f"{_escaped(key, key=True)}={_escaped(value)}\n" for key, value in conf.items())
    return "".join(lines)


def _escaped(text: str, *, key: bool = False) -> str:
    signs: list[str] = []
    for position, sign in enumerate(text):
        if sign in "\\\n\r\t\f":
            signs.append({"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f"}[sign])
        elif (sign == " " and (key or position == 0)) or (sign in "=:#!" and key):
            signs.append(f"\\{sign}")
        else:
            signs.append(sign)
    return "".join(signs)


def put_file(path: str, text: str, file_system: FileSystem) -> None:
    """Write a small file that only its owner reads; one that is there is replaced whole."""
    file_system.make_directory(os.path.dirname(path))
    draft = f"{path}.{os.getpid()}.draft"
    with contextlib.suppress(FileNotFoundError):
        file_system.unlink(draft)
    file = file_system.open(draft, "create")
    try:
        write_fully(file, 0, [text.encode()])
        file.sync()
    finally:
        file.close()
    file_system.rename(draft, path)


def read_text(path: str, file_system: FileSystem) -> str:
    """Return the text of a small file; empty if it cannot be read."""
    try:
        file = file_system.open(path, "read")
    except OSError:
        return ""
    try:
        return file.read_at(0, _TEXT_BYTES_MAX).decode(errors="replace")
    except OSError:
        return ""
    finally:
        file.close()
