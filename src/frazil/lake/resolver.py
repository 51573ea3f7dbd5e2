"""Fetch jars through Spark's own resolver, in a child process that does nothing else.

`spark-submit` resolves `spark.jars.packages` before it starts its program; the program is empty.
Repositories, Ivy's settings file, its directory and proxies are those of `lake.spark.conf`.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from frazil.errors import Unavailable
from frazil.lake.launch import (
    SHORT_LIVED,
    properties_text,
    put_file,
    spark_environment,
    spark_home,
)

if TYPE_CHECKING:
    from frazil.fs import FileSystem
    from frazil.lake.jars import Jar, Progress
    from frazil.lake.java import Java

__all__ = ["resolved", "resolver_conf"]

LOOK_SECONDS: Final = 0.25
SILENT_SECONDS_MAX: Final = 180.0
"""A resolver whose files and output have not grown for so long is ended: the network is dead."""
_TAKEN_OVER: Final = (
    "spark.jars.ivy",
    "spark.jars.ivySettings",
    "spark.jars.repositories",
    "spark.driver.extraJavaOptions",
    "spark.driver.defaultJavaOptions",
)
_CAUSES: Final = re.compile(
    r"(Server access error.*|unresolved dependency: .*|Connection refused.*|UnknownHost.*"
    r"|Host \S+ not found.*|.*(?:Exception|Error): .*|.*No space left.*)"
)


def resolver_conf(jars: Sequence[Jar], ivy_dir: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the resolver's process; keys of `conf` win."""
    taken = {key: conf[key] for key in _TAKEN_OVER if key in conf}
    return {
        "spark.master": "local[1]",
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.driver.defaultJavaOptions": SHORT_LIVED,
        "spark.jars.ivy": ivy_dir,
        **taken,
        "spark.jars.packages": ",".join(jar.coordinate for jar in jars),
    }


@contextlib.contextmanager
def resolved(
    jars: Sequence[Jar],
    cache_dir: str,
    java: Java,
    conf: Mapping[str, str],
    progress: Progress | None,
    file_system: FileSystem,
    environment: Mapping[str, str],
) -> Iterator[list[str]]:
    """Fetch jars into a directory that is gone afterwards; yield their paths in the same order.

    Raises:
        Unavailable: if one cannot be had, with the resolver's own words.
    """
    try:
        file_system.make_directory(cache_dir)
        work = tempfile.TemporaryDirectory(
            prefix="fetch-", dir=cache_dir, ignore_cleanup_errors=True
        )
    except OSError as error:
        raise Unavailable(
            "the lake's cache directory cannot be written, free room there or set XDG_CACHE_HOME",
            path=cache_dir,
            error=error,
        ) from error
    with work as directory:
        settings = resolver_conf(jars, os.path.join(directory, "ivy"), conf)
        said = _run(directory, settings, java, jars, progress, file_system, environment)
        ivy = settings["spark.jars.ivy"]
        paths = [os.path.join(ivy, "jars", jar.retrieved_name) for jar in jars]
        lacking = [
            jar.coordinate
            for jar, path in zip(jars, paths, strict=True)
            if file_system.stat(path) is None
        ]
        if lacking:
            raise Unavailable(
                "the lake's jars cannot be fetched: check the network, or name a mirror or proxy"
                " in lake.spark.conf (spark.jars.repositories, spark.jars.ivySettings,"
                " spark.driver.extraJavaOptions), or run frazil lake setup --jars DIR;"
                " everything but the lake works without",
                lacking=", ".join(lacking),
                reason=_cause(said),
            )
        yield paths


def _run(
    directory: str,
    settings: Mapping[str, str],
    java: Java,
    jars: Sequence[Jar],
    progress: Progress | None,
    file_system: FileSystem,
    environment: Mapping[str, str],
) -> str:
    """Run the resolver to its end and return what it said."""
    properties = os.path.join(directory, "spark.properties")
    program = os.path.join(directory, "empty.py")
    put_file(properties, properties_text(settings), file_system)
    put_file(program, "", file_system)
    submit = os.path.join(spark_home(), "bin", "spark-submit")
    variables = {**spark_environment(java, environment), "PYSPARK_PYTHON": sys.executable}
    with tempfile.TemporaryFile(dir=directory) as output:
        try:
            process = subprocess.Popen(  # noqa: S603 - Spark's own script, without a shell
                [submit, "--properties-file", properties, program],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env=variables,
                start_new_session=True,
            )
        except OSError as error:
            raise Unavailable(
                "spark's resolver does not start", path=submit, error=error
            ) from error
        try:
            _watch(process, directory, sum(jar.bytes for jar in jars), progress)
        finally:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)
                process.wait()
        output.seek(0)
        return output.read().decode(errors="replace")


def _watch(
    process: subprocess.Popen[bytes], directory: str, total: int, progress: Progress | None
) -> None:
    """Wait for the end; tell how far it is; give up when nothing moves any more."""
    silent = 0.0
    before = -1
    while True:
        try:
            process.wait(timeout=LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            now = _grown(directory)
            silent = 0.0 if now != before else silent + LOOK_SECONDS
            before = now
            if progress is not None:
                progress(min(now, total), total)
            if silent > SILENT_SECONDS_MAX:
                return
        else:
            if progress is not None and process.returncode == 0:
                progress(total, total)
            return


def _grown(directory: str) -> int:
    """Return the bytes of all files of the resolver, each once: links share their bytes."""
    total = 0
    for place, _names, files in os.walk(directory):
        if os.path.basename(place) == "jars" and os.path.basename(os.path.dirname(place)) == "ivy":
            continue  # Copies of what the cache beside it has.
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(place, name)).st_size
    return total


def _cause(said: str) -> str:
    """Return the line of the resolver's output that tells most."""
    found = [match.group(0).strip() for match in map(_CAUSES.search, said.splitlines()) if match]
    if found:
        return found[0]
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else "no answer"
