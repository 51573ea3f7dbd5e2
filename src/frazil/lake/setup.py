"""Make ready what Spark needs on this machine, from the settings: Java and the jars."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from frazil.lake.jars import Jar, Progress, copy_jars, ensure_jars, kinds_for, missing_jars
from frazil.lake.java import Java, find_java
from frazil.lake.launch import cache_directory

if TYPE_CHECKING:
    from frazil.config import Settings
    from frazil.fs import FileSystem

__all__ = ["Ready", "jars_directory", "prepare", "take_jars"]


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
        java=java,
        conf=settings.lake.spark.conf,
        progress=progress,
        file_system=file_system,
        environment=variables,
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
