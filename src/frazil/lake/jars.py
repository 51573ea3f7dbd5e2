"""The lake's jars: pinned in `jars.toml`, fetched once, checked, then used without a network.

They come from the repositories of `spark.jars.repositories` in `lake.spark.conf`, else from the one
that Spark's own resolver uses by default; `http_proxy` and `https_proxy` are respected. A file gets
its name in the cache only after its SHA-256 check, and is checked again at each start.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import pathlib
import pkgutil
import re
import tomllib
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from frazil.errors import CorruptionError, InvalidRequest, NotFound, Unavailable
from frazil.fs import FileSystem, RealFileSystem
from frazil.lake.java import Java, cache_directory, find_java, put_file, spark_home

if TYPE_CHECKING:
    from frazil.config import Settings

__all__ = [
    "Jar",
    "Pins",
    "Progress",
    "Ready",
    "ensure_jars",
    "inspect_jars",
    "jars_directory",
    "pins",
    "prepare",
    "take_jars",
]

REPOSITORIES: Final = "spark.jars.repositories"
DEFAULTS: Final = "org/apache/ivy/core/settings/repository.properties"
"""The file in Ivy's jar that names the default repository of Spark's resolver."""
FETCH_TIMEOUT_S: Final = 60.0
"""The time limit for a silent repository."""
_PIECE_BYTES: Final = 1 << 20
Progress = Callable[[int, int], None]
"""Called with the bytes that are there and the bytes that there will be."""


class Jar(NamedTuple):
    """One pinned file."""

    group: str
    artifact: str
    version: str
    bytes: int
    sha256: str

    @property
    def file_name(self) -> str:
        """Return the name that it has everywhere."""
        return f"{self.artifact}-{self.version}.jar"

    @property
    def path(self) -> str:
        """Return its path in a Maven repository."""
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.file_name}"


class Pins(NamedTuple):
    """The versions that belong together, and the jars."""

    spark: str
    scala: str
    iceberg: str
    jars: tuple[Jar, ...]


def pins() -> Pins:
    """Read the pinned versions and sums."""
    data = pkgutil.get_data("frazil.lake", "jars.toml")
    assert data is not None
    tree: dict[str, Any] = tomllib.loads(data.decode())
    jars = (
        Jar(each["group"], name, each["version"], each["bytes"], each["sha256"])
        for name, each in tree["jars"].items()
    )
    return Pins(tree["spark"], tree["scala"], tree["iceberg"], tuple(jars))


def inspect_jars(
    directory: str, *, file_system: FileSystem | None = None
) -> list[tuple[Jar, str, str]]:
    """Return each jar with its path in the cache and the SHA-256 of that file, empty if missing."""
    files = file_system or RealFileSystem()
    paths = {jar: os.path.join(directory, jar.file_name) for jar in pins().jars}
    return [(jar, path, _sha256(path, files)) for jar, path in paths.items()]


def ensure_jars(
    directory: str,
    *,
    conf: Mapping[str, str],
    source: str = "",
    announce: Callable[[list[Jar]], None] | None = None,
    progress: Progress | None = None,
    file_system: FileSystem | None = None,
) -> list[str]:
    """Return the paths of the jars; fetch those that the cache lacks.

    Args:
        directory: the cache.
        conf: `lake.spark.conf`, for repositories.
        source: a directory to take the jars from instead.
        announce: called with the jars that are missing, before they are fetched.
        progress: called after each piece.
        file_system: of the cache.

    Raises:
        CorruptionError: a file does not have the pinned SHA-256.
        NotFound: the source lacks a jar; with the names of all that it lacks.
        Unavailable: a jar cannot be fetched.
    """
    files = file_system or RealFileSystem()
    inspected = inspect_jars(directory, file_system=files)
    missing = [jar for jar, _path, found in inspected if found != jar.sha256]
    if source:
        _check_source(source, missing, files)
    else:
        _check_cache(inspected)
    if missing and announce is not None:
        announce(missing)
    total = sum(jar.bytes for jar in missing)
    begun = 0
    for jar in missing:
        data = _fetched(jar, _addresses(jar, conf, source), progress, begun, total)
        begun += jar.bytes
        try:
            put_file(os.path.join(directory, jar.file_name), data, files)
        except OSError as error:
            raise Unavailable(
                "the lake's cache directory cannot be written, free room there or set "
                "XDG_CACHE_HOME",
                path=directory,
                bytes=jar.bytes,
                error=error,
            ) from error
    return [path for _jar, path, _found in inspected]


def _check_cache(inspected: Sequence[tuple[Jar, str, str]]) -> None:
    for jar, path, found in inspected:
        if found not in {"", jar.sha256}:
            raise _wrong(jar, path, found, "remove this file and run it again")


def _addresses(jar: Jar, conf: Mapping[str, str], source: str) -> list[str]:
    if source:
        return [pathlib.Path(source, jar.file_name).absolute().as_uri()]
    return [f"{root.rstrip('/')}/{jar.path}" for root in _repositories(conf)]


def _check_source(source: str, jars: Sequence[Jar], files: FileSystem) -> None:
    names = [jar.file_name for jar in jars]
    lacking = [name for name in names if files.stat(os.path.join(source, name)) is None]
    if lacking:
        raise NotFound(
            "the directory lacks jars, fetch them on a machine with a network",
            directory=source,
            lacking=", ".join(lacking),
        )


def _repositories(conf: Mapping[str, str]) -> list[str]:
    """Return the addresses of the repositories, in the order in which they are tried.

    Raises:
        InvalidRequest: an address has an unsupported scheme.
        Unavailable: none is configured and Spark's own default is not found.
    """
    given = [each.strip() for each in conf.get(REPOSITORIES, "").split(",")]
    found = [each for each in given if each]
    for each in found:
        if urllib.parse.urlsplit(each).scheme not in {"http", "https", "file"}:
            raise InvalidRequest("a repository must be an http, https or file address", uri=each)
    if found:
        return found
    directory = os.path.join(spark_home(), "jars")
    for name in RealFileSystem().list_directory(directory):
        if name.startswith("ivy-"):
            with (
                contextlib.suppress(KeyError, OSError, zipfile.BadZipFile),
                zipfile.ZipFile(os.path.join(directory, name)) as jar,
            ):
                found += re.findall(r"https?://[^\s=]+/maven2/?", jar.read(DEFAULTS).decode())
    if not found:
        raise Unavailable(f"no repository is known, set {REPOSITORIES} in lake.spark.conf")
    return found[:1]


def _fetched(
    jar: Jar, urls: Sequence[str], progress: Progress | None, begun: int, total: int
) -> bytes:
    """Return the bytes of a jar from the first address that has it, with the right SHA-256."""
    reasons: list[str] = []
    for url in urls:
        data = bytearray()
        try:
            with urllib.request.urlopen(url, timeout=FETCH_TIMEOUT_S) as source:  # noqa: S310 - checked
                # At most a byte too much: a longer file has another sum.
                while piece := source.read(min(_PIECE_BYTES, jar.bytes + 1 - len(data))):
                    data += piece
                    if progress is not None:
                        progress(min(begun + len(data), total), total)
        except (OSError, http.client.HTTPException) as error:
            reasons.append(f"{url}: {error}")
            continue
        found = hashlib.sha256(data).hexdigest()
        if found != jar.sha256:
            raise _wrong(jar, url, found, "fetch it again, a mirror may have changed it")
        return bytes(data)
    raise Unavailable(
        f"the lake's jars cannot be fetched: check the network, set https_proxy, name a mirror as "
        f"{REPOSITORIES} in lake.spark.conf, or run frazil lake setup --jars DIR; everything but "
        "the lake works without",
        lacking=jar.file_name,
        reason="; ".join(reasons),
    )


def _wrong(jar: Jar, path: str, found: str, advice: str) -> CorruptionError:
    return CorruptionError(
        f"jar does not have the pinned sha-256 and is not used, {advice}",
        path=path,
        expected=jar.sha256,
        found=found,
    )


def _sha256(path: str, files: FileSystem) -> str:
    digest = hashlib.sha256()
    try:
        file = files.open(os.path.realpath(path), "read")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    with contextlib.closing(file):
        position = 0
        while piece := file.read_at(position, _PIECE_BYTES):
            digest.update(piece)
            position += len(piece)
    return digest.hexdigest()


class Ready(NamedTuple):
    """The Java and the jars of a Spark session."""

    java: Java
    jars: list[str]


def jars_directory(settings: Settings, environment: Mapping[str, str]) -> str:
    """Return the directory of the jars: `lake.spark.jars_dir`, else the user's cache directory."""
    given = settings.lake.spark.jars_dir
    return os.path.abspath(given) if given else cache_directory(environment)


def prepare(
    settings: Settings,
    *,
    announce: Callable[[list[Jar]], None] | None = None,
    progress: Progress | None = None,
    file_system: FileSystem | None = None,
) -> Ready:
    """Find Java and make sure that all jars exist; fetch missing ones. See `ensure_jars`.

    Raises:
        Unavailable: there is no usable Java, or the jars cannot be fetched.
        CorruptionError: a jar is not the pinned one.
    """
    java = find_java(os.environ, cache_dir=cache_directory(os.environ), file_system=file_system)
    jars = ensure_jars(
        jars_directory(settings, os.environ),
        conf=settings.lake.spark.conf,
        announce=announce,
        progress=progress,
        file_system=file_system,
    )
    return Ready(java, jars)


def take_jars(
    settings: Settings,
    source: str,
    *,
    announce: Callable[[list[Jar]], None] | None = None,
    progress: Progress | None = None,
) -> list[str]:
    """Take the jars from a directory, for machines without a network. See `ensure_jars`."""
    directory = jars_directory(settings, os.environ)
    return ensure_jars(directory, conf={}, source=source, announce=announce, progress=progress)
