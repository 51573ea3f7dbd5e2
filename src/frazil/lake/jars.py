"""The lake's jars: pinned in `jars.toml`, fetched once, checked, then used without a network.

They come from the repositories of `spark.jars.repositories` in `lake.spark.conf`, else from the one
that Spark's own resolver uses by default; `http_proxy` and `https_proxy` are respected. A file gets
its final name in the cache only after its SHA-256 was right; a note with the size and time of the
checked file avoids reading it again until it changes.
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
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from frazil.errors import CorruptionError, InvalidRequest, NotFound, Unavailable
from frazil.fs import FileSystem, RealFileSystem, write_fully
from frazil.lake.java import Java, cache_directory, find_java, put_file, read_text, spark_home

if TYPE_CHECKING:
    from frazil.config import Settings

__all__ = [
    "Jar",
    "JarState",
    "Pins",
    "Progress",
    "Ready",
    "copy_jars",
    "ensure_jars",
    "inspect_jars",
    "jars_directory",
    "jars_of",
    "kinds_for",
    "missing_jars",
    "pins",
    "prepare",
    "take_jars",
]

REPOSITORIES: Final = "spark.jars.repositories"
DEFAULTS: Final = "org/apache/ivy/core/settings/repository.properties"
"""The file in Ivy's jar that names the default repository of Spark's resolver."""
FETCH_TIMEOUT_S: Final = 60.0
"""A repository that sends nothing for so long is given up."""
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
        """Return where a Maven repository has it."""
        return f"{self.group.replace('.', '/')}/{self.artifact}/{self.version}/{self.file_name}"


class Pins(NamedTuple):
    """The pinned file as values."""

    spark: str
    scala: str
    iceberg: str
    sets: Mapping[str, tuple[str, ...]]
    jars: Mapping[str, Jar]


class JarState(NamedTuple):
    """What the cache has of one jar: `state` is ok, missing or wrong."""

    jar: Jar
    path: str
    state: str
    found: str = ""


def pins() -> Pins:
    """Read the pinned versions, sets and sums."""
    data = pkgutil.get_data("frazil.lake", "jars.toml")
    assert data is not None
    tree: dict[str, Any] = tomllib.loads(data.decode())
    jars = {
        name: Jar(each["group"], name, each["version"], each["bytes"], each["sha256"])
        for name, each in tree["jars"].items()
    }
    sets = {kind: tuple(names) for kind, names in tree["sets"].items()}
    return Pins(tree["spark"], tree["scala"], tree["iceberg"], sets, jars)


def jars_of(kinds: Iterable[str]) -> list[Jar]:
    """Return the jars that kinds of catalog and warehouse need together.

    Raises:
        InvalidRequest: if a kind is unknown.
    """
    pinned = pins()
    names: dict[str, None] = dict.fromkeys(pinned.sets["always"])
    for kind in kinds:
        if kind not in pinned.sets or kind == "always":
            known = ", ".join(kind for kind in pinned.sets if kind != "always")
            raise InvalidRequest("there is no set of jars of this kind", kind=kind, known=known)
        names.update(dict.fromkeys(pinned.sets[kind]))
    return [pinned.jars[name] for name in names]


def kinds_for(catalog: str, warehouse: str) -> tuple[str, str]:
    """Return the kinds of a catalog (`lake.catalog.kind`) and a warehouse (`lake.warehouse`).

    Raises:
        InvalidRequest: if no jars are pinned for such a warehouse.
    """
    scheme = warehouse.partition("://")[0] if "://" in warehouse else "file"
    kinds = {"file": "local", "s3": "s3", "s3a": "s3", "s3n": "s3"}
    if scheme not in kinds:
        raise InvalidRequest(
            "warehouse is of an unknown kind, set lake.warehouse to a directory or s3://...",
            warehouse=warehouse,
        )
    return "rest" if catalog == "embedded" else catalog, kinds[scheme]


def inspect_jars(
    kinds: Iterable[str], cache_dir: str, *, file_system: FileSystem | None = None
) -> list[JarState]:
    """Tell for each jar whether the cache has it, whole and unchanged. Fetches nothing."""
    files = file_system or RealFileSystem()
    return [_state(jar, cache_dir, files) for jar in jars_of(kinds)]


def missing_jars(
    kinds: Iterable[str], cache_dir: str, *, file_system: FileSystem | None = None
) -> list[Jar]:
    """Return the jars that the cache lacks.

    Raises:
        CorruptionError: if a file of the cache is not what it should be.
    """
    states = inspect_jars(kinds, cache_dir, file_system=file_system)
    for each in states:
        if each.state == "wrong":
            raise _wrong(each.jar, each.path, each.found, "remove this file and run it again")
    return [each.jar for each in states if each.state == "missing"]


def ensure_jars(
    kinds: Iterable[str],
    *,
    cache_dir: str,
    conf: Mapping[str, str],
    progress: Progress | None = None,
    file_system: FileSystem | None = None,
) -> list[str]:
    """Return the paths of the jars that `kinds` need; fetch those that the cache lacks.

    Args:
        kinds: kinds of catalog and warehouse, e.g. `("rest", "local")`.
        cache_dir: where they are kept.
        conf: `lake.spark.conf`, for repositories.
        progress: called after each piece.
        file_system: of the cache.

    Raises:
        CorruptionError: if a file does not have the pinned SHA-256.
        Unavailable: if a jar cannot be fetched.
    """
    wanted = list(kinds)
    files = file_system or RealFileSystem()
    missing = missing_jars(wanted, cache_dir, file_system=files)
    if missing:
        fetch = _Fetch(cache_dir, files, sum(jar.bytes for jar in missing), progress)
        roots = _repositories(conf)
        for jar in missing:
            _fetch_from_any(fetch, jar, roots)
    return [os.path.join(cache_dir, jar.file_name) for jar in jars_of(wanted)]


def _repositories(conf: Mapping[str, str]) -> list[str]:
    """Return the addresses of the repositories, in the order in which they are tried.

    Raises:
        Unavailable: if none is configured and Spark's own default is not found.
    """
    given = [each.strip() for each in conf.get(REPOSITORIES, "").split(",")]
    found = [each for each in given if each]
    if found:
        return found
    directory = os.path.join(spark_home(), "jars")
    for name in RealFileSystem().list_directory(directory):
        if name.startswith("ivy-"):
            with (
                contextlib.suppress(KeyError, OSError, zipfile.BadZipFile),
                zipfile.ZipFile(os.path.join(directory, name)) as jar,
            ):
                text = jar.read(DEFAULTS).decode()
                found += re.findall(r"https?://[^\s=]+/maven2/?", text)
    if not found:
        raise Unavailable(f"no repository is known, set {REPOSITORIES} in lake.spark.conf")
    return found[:1]


def _fetch_from_any(fetch: _Fetch, jar: Jar, roots: Iterable[str]) -> None:
    reasons: list[str] = []
    for root in roots:
        url = f"{root.rstrip('/')}/{jar.path}"
        if urllib.parse.urlsplit(url).scheme not in {"http", "https", "file"}:
            raise InvalidRequest("a repository must be an http, https or file address", uri=root)
        try:
            fetch.take(jar, url, "a mirror may have changed it")
        except _NotFetchedError as error:
            reasons.append(str(error))
        else:
            return
    raise Unavailable(
        f"the lake's jars cannot be fetched: check the network, set https_proxy, name a mirror as "
        f"{REPOSITORIES} in lake.spark.conf, or run frazil lake setup --jars DIR; everything but "
        "the lake works without",
        lacking=jar.file_name,
        reason="; ".join(reasons),
    )


def copy_jars(
    kinds: Iterable[str],
    directory: str,
    *,
    cache_dir: str,
    progress: Progress | None = None,
    file_system: FileSystem | None = None,
) -> list[str]:
    """Take the jars from a directory instead of a network; return their paths in the cache.

    Raises:
        NotFound: if the directory lacks one, with the names of all that it has to hold.
        CorruptionError: if a file does not have the pinned SHA-256.
    """
    files = file_system or RealFileSystem()
    jars = jars_of(kinds)
    paths = {jar: os.path.join(os.path.abspath(directory), jar.file_name) for jar in jars}
    lacking = [jar.file_name for jar, path in paths.items() if files.stat(path) is None]
    if lacking:
        raise NotFound(
            "the directory lacks jars, fetch them on a machine with a network",
            directory=directory,
            lacking=", ".join(lacking),
        )
    fetch = _Fetch(cache_dir, files, sum(jar.bytes for jar in jars), progress)
    try:
        for jar, path in paths.items():
            fetch.take(jar, pathlib.Path(path).as_uri(), "fetch the file again")
    except _NotFetchedError as error:
        raise Unavailable("jar cannot be read", directory=directory, reason=error) from error
    return [os.path.join(cache_dir, jar.file_name) for jar in jars]


def _state(jar: Jar, cache_dir: str, files: FileSystem) -> JarState:
    path = os.path.join(cache_dir, jar.file_name)
    info = files.stat(path)
    if info is None:
        return JarState(jar, path, "missing")
    seen = f"{jar.sha256} {info.size} {info.modified_ns}\n"
    if info.size == jar.bytes and read_text(f"{path}.seen", files) == seen:
        return JarState(jar, path, "ok", jar.sha256)
    found = _sha256(path, files)
    if found != jar.sha256:
        return JarState(jar, path, "wrong", found)
    with contextlib.suppress(OSError):
        # A cache that cannot be written is read anew at each start; nothing else is lost.
        put_file(f"{path}.seen", seen, files)
    return JarState(jar, path, "ok", found)


class _NotFetchedError(Exception):
    """A repository does not have a jar or cannot be reached."""


class _Fetch:
    """Takes jars into the cache and reports the progress of all of them together."""

    def __init__(
        self, cache_dir: str, files: FileSystem, total: int, progress: Progress | None
    ) -> None:
        self._cache_dir = cache_dir
        self._files = files
        self._total = total
        self._done = 0
        self._progress = progress or (lambda _done, _total: None)

    def take(self, jar: Jar, url: str, advice: str) -> None:
        """Copy a file into the cache, check the copy, then give it its name.

        Raises:
            CorruptionError: it does not have the pinned SHA-256.
            Unavailable: the cache cannot be written.
            _NotFetchedError: it cannot be read there.
        """
        target = os.path.join(self._cache_dir, jar.file_name)
        draft = f"{target}.{os.getpid()}.draft"
        try:
            try:
                self._files.make_directory(self._cache_dir)
                with contextlib.suppress(FileNotFoundError):
                    self._files.unlink(draft)
                self._copy(jar, url, draft, advice)
                self._files.rename(draft, target)
                self._files.sync_directory(self._cache_dir)
            except BaseException:
                with contextlib.suppress(OSError):
                    self._files.unlink(draft)
                raise
        except OSError as error:
            raise Unavailable(
                "the lake's cache directory cannot be written, free room there or set "
                "XDG_CACHE_HOME",
                path=self._cache_dir,
                bytes=jar.bytes,
                error=error,
            ) from error
        _state(jar, self._cache_dir, self._files)

    def _copy(self, jar: Jar, url: str, draft: str, advice: str) -> None:
        """Write what an address gives, at most a byte too much, and check its SHA-256."""
        digest = hashlib.sha256()
        try:
            source = urllib.request.urlopen(url, timeout=FETCH_TIMEOUT_S)  # noqa: S310 - checked
        except (OSError, http.client.HTTPException) as error:
            raise _NotFetchedError(f"{url}: {error}") from error
        writing = self._files.open(draft, "create")
        begun, position = self._done, 0
        try:
            while position <= jar.bytes:
                try:
                    piece = source.read(min(_PIECE_BYTES, jar.bytes + 1 - position))
                except (OSError, http.client.HTTPException) as error:
                    raise _NotFetchedError(f"{url}: {error}") from error
                if not piece:
                    break
                position += write_fully(writing, position, [piece])
                digest.update(piece)
                self._done = begun + position
                self._progress(min(self._done, self._total), self._total)
            writing.sync()
        finally:
            writing.close()
            source.close()
        if digest.hexdigest() != jar.sha256:
            raise _wrong(jar, url, digest.hexdigest(), advice)


def _wrong(jar: Jar, path: str, found: str, advice: str) -> CorruptionError:
    return CorruptionError(
        f"jar does not have the pinned sha-256 and is not used, {advice}",
        path=path,
        expected=jar.sha256,
        found=found,
    )


def _sha256(path: str, files: FileSystem) -> str:
    digest = hashlib.sha256()
    file = files.open(os.path.realpath(path), "read")
    try:
        position = 0
        while piece := file.read_at(position, _PIECE_BYTES):
            digest.update(piece)
            position += len(piece)
    finally:
        file.close()
    return digest.hexdigest()


class Ready(NamedTuple):
    """What a session is built with."""

    java: Java
    jars: list[str]


def jars_directory(settings: Settings, environment: Mapping[str, str]) -> str:
    """Return where the jars are kept: `lake.spark.jars_dir`, else the user's cache directory."""
    given = settings.lake.spark.jars_dir
    return os.path.abspath(given) if given else cache_directory(environment)


def prepare(
    settings: Settings,
    *,
    environment: Mapping[str, str] | None = None,
    announce: Callable[[list[Jar]], None] | None = None,
    progress: Progress | None = None,
    file_system: FileSystem | None = None,
) -> Ready:
    """Find Java and have all jars in place; fetch them if they are not.

    `announce` is called with the jars that are missing, before they are fetched.

    Raises:
        Unavailable: if there is no usable Java, or the jars cannot be fetched.
        CorruptionError: if a jar is not the pinned one.
    """
    variables = os.environ if environment is None else environment
    java = find_java(variables, cache_dir=cache_directory(variables), file_system=file_system)
    kinds = kinds_for(settings.lake.catalog.kind, settings.lake.warehouse)
    directory = jars_directory(settings, variables)
    missing = missing_jars(kinds, directory, file_system=file_system)
    if missing and announce is not None:
        announce(missing)
    jars = ensure_jars(
        kinds,
        cache_dir=directory,
        conf=settings.lake.spark.conf,
        progress=progress,
        file_system=file_system,
    )
    return Ready(java, jars)


def take_jars(
    settings: Settings,
    directory: str,
    *,
    environment: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    file_system: FileSystem | None = None,
) -> list[str]:
    """Take the jars from a directory, for machines without a network; return their paths.

    Raises:
        NotFound: if the directory lacks one.
        CorruptionError: if a jar is not the pinned one.
    """
    variables = os.environ if environment is None else environment
    return copy_jars(
        kinds_for(settings.lake.catalog.kind, settings.lake.warehouse),
        directory,
        cache_dir=jars_directory(settings, variables),
        progress=progress,
        file_system=file_system,
    )
