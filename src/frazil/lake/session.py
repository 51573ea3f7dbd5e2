"""The one module that builds a Spark session, with settings for a small driver.

`session_conf` is pure: the settings of Spark, where every key of `lake.spark.conf` wins.
`build_session` starts the JVM with it. Library code takes a session as an argument.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from frazil.errors import Unavailable
from frazil.fs import FileSystem, RealFileSystem
from frazil.lake.jars import pins
from frazil.lake.java import (
    INSTALL,
    properties_text,
    put_file,
    read_text,
    spark_environment,
    spark_home,
    spark_version,
)
from frazil.telemetry import LOGGER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from frazil.lake.connection import CatalogAddress
    from frazil.lake.java import Java

__all__ = [
    "CATALOG_NAME",
    "HEAP_BYTES",
    "build_session",
    "cause_of_end",
    "check_versions",
    "log_properties",
    "session_conf",
    "writers_of",
]

CATALOG_NAME: Final = "frazil"
HEAP_BYTES: Final = 1 << 30
CORES: Final = 2
CONNECT_MS: Final = 10_000
ANSWER_MS: Final = 60_000
LOG_BYTES_MAX: Final = 10_000_000
_MIB: Final = 1 << 20
_LAST_WORDS: Final = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"^Caused by: [\w.$]+: (.+)$",
        r'^Exception in thread "main" [\w.$]+: (.+)$',
        r"^.*\bERROR SparkContext: .*\n[\w.$]+: (.+)$",
        r"^((?:Invalid|Unrecognized|Conflicting|Incompatible|Unsupported|Could not) .+)$",
        r"^(?:Error|ERROR):? (.+)$",
    )
)


def session_conf(
    *,
    jars: Sequence[str],
    catalog: CatalogAddress,
    run_dir: str,
    conf: Mapping[str, str] | None = None,
    heap_bytes: int = HEAP_BYTES,
) -> dict[str, str]:
    """Return the settings of the lake's session.

    Args:
        jars: paths of the jars, from `ensure_jars`.
        catalog: the catalog that Spark knows as `frazil`.
        run_dir: a directory of this session alone, for scratch files and the log's settings.
        conf: `lake.spark.conf`; each of its keys overrides a default.
        heap_bytes: the most that Java's heap may take.
    """
    given = dict(conf or {})
    scratch = os.path.join(run_dir, "scratch")
    ours = {
        "spark.master": f"local[{CORES}]",
        "spark.app.name": "frazil-lake",
        "spark.driver.memory": f"{max(heap_bytes // _MIB, 1)}m",
        # Frazil sets the default options, so that the user's extraJavaOptions are added to them.
        "spark.driver.defaultJavaOptions": _java_options(run_dir, scratch),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.local.dir": scratch,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.scheduler.mode": "FAIR",
        "spark.default.parallelism": str(CORES),
        "spark.sql.shuffle.partitions": str(CORES),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.ansi.enabled": "true",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": f"file:{scratch}/tables",
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
        **_catalog_conf(catalog),
    }
    if given.get("spark.master", "local").startswith("local"):
        # On the class path: `spark.jars` would be copied to the scratch directory at each start.
        ours["spark.driver.extraClassPath"] = os.pathsep.join(jars)
    else:
        ours["spark.jars"] = ",".join(jars)
    return {**ours, **given}


def _java_options(run_dir: str, scratch: str) -> str:
    """Return options for a small heap that ends the process when it is full.

    A driver without memory answers nothing and never recovers; an ended one is restarted.
    """
    options = (
        "-XX:+UseSerialGC",
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:-UsePerfData",
        "-Duser.timezone=UTC",
        _quoted(f"-Djava.io.tmpdir={scratch}"),
        _quoted(f"-Dlog4j2.configurationFile=file:{run_dir}/log4j2.properties"),
    )
    return " ".join(options)


def _quoted(option: str) -> str:
    escaped = option.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _catalog_conf(catalog: CatalogAddress) -> dict[str, str]:
    prefix = f"spark.sql.catalog.{CATALOG_NAME}"
    values = {
        "type": "rest",
        "uri": catalog.uri,
        # A cached table would hide another program's commit from the look before a commit.
        "cache-enabled": "false",
        "rest-metrics-reporting-enabled": "false",
        "rest.client.connection-timeout-ms": str(CONNECT_MS),
        "rest.client.socket-timeout-ms": str(ANSWER_MS),
        # The token is fixed; no server exchanges it for another one.
        "token": catalog.token,
        "token-refresh-enabled": "false",
    }
    return {
        prefix: "org.apache.iceberg.spark.SparkCatalog",
        **{f"{prefix}.{key}": value for key, value in values.items()},
    }


def log_properties(log_path: str) -> str:
    """Return Spark's logging settings: one file that is rotated, nothing on the terminal."""
    values = {
        "status": "error",
        "rootLogger.level": "warn",
        "rootLogger.appenderRef.file.ref": "file",
        "appender.file.type": "RollingFile",
        "appender.file.name": "file",
        "appender.file.fileName": log_path,
        "appender.file.filePattern": f"{log_path}.%i",
        "appender.file.layout.type": "PatternLayout",
        "appender.file.layout.pattern": "%d{yyyy-MM-dd'T'HH:mm:ss.SSS'Z'}{UTC} %p %c{1}: %m%n%ex",
        "appender.file.policies.type": "Policies",
        "appender.file.policies.size.type": "SizeBasedTriggeringPolicy",
        "appender.file.policies.size.size": str(LOG_BYTES_MAX),
        "appender.file.strategy.type": "DefaultRolloverStrategy",
        "appender.file.strategy.max": "3",
    }
    return properties_text(values)


def writers_of(conf: Mapping[str, str]) -> int:
    """Return how many tasks of one commit write at once, as `lake.spark.conf` has it."""
    found = re.match(r"local\[(\d+)", conf.get("spark.master", ""))
    return max(int(found.group(1)), 1) if found else CORES


def check_versions() -> None:
    """Check that the installed PySpark has the version of the Iceberg runtime.

    Raises:
        Unavailable: it has not; the message names the package to install.
    """
    installed, wanted = spark_version(), pins()
    if ".".join(installed.split(".")[:2]) != wanted.spark:
        raise Unavailable(
            f"the installed PySpark does not fit, run {INSTALL}",
            pyspark=installed,
            needed=f"{wanted.spark}.*",
        )


def build_session(
    conf: Mapping[str, str],
    *,
    java: Java,
    run_dir: str,
    log_path: str,
    file_system: FileSystem | None = None,
) -> SparkSession:
    """Start Spark's JVM and return its session. One process has one.

    Takes 5 to 20 s. The JVM ends with this process. `run_dir` may be removed once it has.

    Args:
        conf: from `session_conf`.
        java: the Java that runs it.
        run_dir: the same directory that `conf` was made for.
        log_path: the file for Spark's log and the JVM's output.
        file_system: the file system of `run_dir`.

    Raises:
        Unavailable: if versions do not fit or Spark does not start; the log has the rest.
    """
    check_versions()
    files = file_system or RealFileSystem()
    try:
        files.make_directory(os.path.join(run_dir, "scratch"))
        files.make_directory(os.path.dirname(log_path))
        properties = os.path.join(run_dir, "spark.properties")
        put_file(properties, properties_text(conf).encode(), files)
        put_file(f"{run_dir}/log4j2.properties", log_properties(log_path).encode(), files)
    except OSError as error:
        raise Unavailable(
            "spark's run directory cannot be written", path=run_dir, error=error
        ) from error
    return _start(java, properties, log_path, files)


def _start(java: Java, properties: str, log_path: str, files: FileSystem) -> SparkSession:
    from py4j.protocol import Py4JError
    from pyspark.core.context import SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    launch: Callable[..., Any] = launch_gateway  # PySpark gives it no types.
    output = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    before = os.fstat(output).st_size
    try:
        with _variables(java, properties):
            gateway = launch(popen_kwargs={"stdout": output, "stderr": output})
            return SparkSession(SparkContext(gateway=gateway))
    except (PySparkException, Py4JError, OSError) as error:
        said = read_text(log_path, files).encode()[before:].decode(errors="replace")
        details = {"facts": {"java": java.version}, "trace": f"{error}\n{said}"}
        LOGGER.warning("spark_does_not_start", extra=details)
        raise Unavailable(
            "spark does not start, correct lake.spark.conf or run frazil lake doctor",
            cause=cause_of_end(said) or type(error).__name__,
            java=java.version,
            log=log_path,
        ) from error
    finally:
        os.close(output)


def cause_of_end(said: str) -> str:
    """Return the most useful line of a JVM's last output; empty if there is none."""
    for pattern in _LAST_WORDS:
        found = pattern.search(said)
        if found is not None:
            return re.sub(r"\s+", " ", found.group(1)).strip()
    return ""


@contextlib.contextmanager
def _variables(java: Java, properties: str) -> Iterator[None]:
    """Set the environment variables that PySpark reads at the start of the JVM."""
    before = dict(os.environ)
    quoted = properties.replace("\\", "\\\\").replace('"', '\\"')
    wanted = {
        **spark_environment(java, before),
        "PYSPARK_SUBMIT_ARGS": f'--properties-file "{quoted}" pyspark-shell',
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    assert wanted["SPARK_HOME"] == spark_home()
    _replace_environment(wanted)
    try:
        yield
    finally:
        _replace_environment(before)


def _replace_environment(wanted: Mapping[str, str]) -> None:
    for key in set(os.environ) - set(wanted):
        del os.environ[key]
    os.environ.update(wanted)
