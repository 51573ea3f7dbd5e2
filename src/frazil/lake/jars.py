"""The lake's jars: pinned in `jars.toml`, fetched once, checked, then used without a network.

Spark's own resolver fetches them in a short-lived child process, so mirrors, proxies and settings
of Ivy in `lake.spark.conf` work as with any Spark program. A file is in the cache only under its
final name after its SHA-256 was right; a note beside it says for which size and time of the file
that was seen, so that it is read again only when it has changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pkgutil
import tomllib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from frazil.errors import CorruptionError, InvalidRequest, NotFound, Unavailable
from frazil.fs import FileSystem, RealFileSystem, write_fully
from frazil.lake.launch import put_file, read_text

if TYPE_CHECKING:
    from frazil.lake.java import Java

__all__ = [
    "DEFAULT_KINDS",
    "Jar",
    "JarState",
    "Pins",
    "Progress",
    "copy_jars",
    "ensure_jars",
    "inspect_jars",
    "jars_of",
    "kinds_for",
    "missing_jars",
    "pins",
]

DEFAULT_KINDS: Final = ("rest", "local")
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
    def coordinate(self) -> str:
        """Return its name for Spark's resolver."""
        return f"{self.group}:{self.artifact}:{self.version}"

    @property
    def file_name(self) -> str:
        """Return the name it has in the cache and in every repository."""
        return f"{self.artifact}-{self.version}.jar"

    @property
    def retrieved_name(self) -> str:
        """Return the name that Spark's resolver gives it."""
        return f"{self.group}_{self.file_name}"


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
    java: Java,
    conf: Mapping[str, str],
    progress: Progress | None = None,
    file_system: FileSystem | None = None,
    environment: Mapping[str, str] | None = None,
) -> list[str]:
    """Return the paths of the jars that `kinds` need; fetch those that the cache lacks.

    Args:
        kinds: kinds of catalog and warehouse, e.g. `("rest", "local")`.
        cache_dir: where they are kept.
        java: runs the resolver; unused if nothing is missing.
        conf: `lake.spark.conf`, for mirrors and proxies.
        progress: called from time to time.
        file_system: of the cache.
        environment: of the resolver; the process's own without it.

    Raises:
        CorruptionError: if a file does not have the pinned SHA-256.
        Unavailable: if a jar cannot be fetched.
    """
    wanted = list(kinds)
    files = file_system or RealFileSystem()
    missing = missing_jars(wanted, cache_dir, file_system=files)
    if missing:
        from frazil.lake.resolver import resolved

        variables = os.environ if environment is None else environment
        with resolved(missing, cache_dir, java, conf, progress, files, variables) as found:
            for jar, path in zip(missing, found, strict=True):
                _take(jar, path, cache_dir, files, "a mirror may have changed it")
    return [os.path.join(cache_dir, jar.file_name) for jar in jars_of(wanted)]


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
    names = [_in_directory(jar, directory, files) for jar in jars]
    lacking = [jar.file_name for jar, path in zip(jars, names, strict=True) if not path]
    if lacking:
        raise NotFound(
            "the directory lacks jars, fetch them on a machine with a network",
            directory=directory,
            lacking=", ".join(lacking),
        )
    total, done = sum(jar.bytes for jar in jars), 0
    paths: list[str] = []
    for jar, path in zip(jars, names, strict=True):
        paths.append(_take(jar, path, cache_dir, files, "fetch the file again"))
        done += jar.bytes
        if progress is not None:
            progress(done, total)
    return paths


def _in_directory(jar: Jar, directory: str, files: FileSystem) -> str:
    for name in (jar.file_name, jar.retrieved_name):
        path = os.path.join(directory, name)
        if files.stat(path) is not None:
            return path
    return ""


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


def _take(jar: Jar, source: str, cache_dir: str, files: FileSystem, cause: str) -> str:
    """Copy a file into the cache, check the copy, then give it its name."""
    target = os.path.join(cache_dir, jar.file_name)
    draft = f"{target}.{os.getpid()}.draft"
    try:
        files.make_directory(cache_dir)
        with contextlib.suppress(FileNotFoundError):
            files.unlink(draft)
        _copy(source, draft, files)
        found = _sha256(draft, files)
        if found != jar.sha256:
            files.unlink(draft)
            raise _wrong(jar, source, found, cause)
        files.rename(draft, target)
        files.sync_directory(cache_dir)
    except OSError as error:
        with contextlib.suppress(OSError):
            files.unlink(draft)
        raise Unavailable(
            "the lake's cache directory cannot be written, free room there or set XDG_CACHE_HOME",
            path=cache_dir,
            bytes=jar.bytes,
            error=error,
        ) from error
    return _state(jar, cache_dir, files).path


def _wrong(jar: Jar, path: str, found: str, advice: str) -> CorruptionError:
    return CorruptionError(
        f"jar does not have the pinned sha-256 and is not used, {advice}",
        path=path,
        expected=jar.sha256,
        found=found,
    )


def _copy(source: str, target: str, files: FileSystem) -> None:
    # Links are followed on purpose: a directory of jars is often made of links.
    reading = files.open(os.path.realpath(source), "read")
    try:
        writing = files.open(target, "create")
        try:
            position = 0
            while piece := reading.read_at(position, _PIECE_BYTES):
                position += write_fully(writing, position, [piece])
            writing.sync()
        finally:
            writing.close()
    finally:
        reading.close()


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
