"""One Spark session with the product's own settings, and topics whose plans are committed in it.

Commits go through the very call that a worker makes for an engine, what it leaves for afterwards
included; only the socket between the two is not there. Plain Spark works in the same session.
"""

from __future__ import annotations

import base64
import itertools
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.parquet as pq

from frazil.clock import SystemClock
from frazil.config import load_settings
from frazil.fs import RealFileSystem
from frazil.lake import (
    CATALOG_NAME,
    CommitRequest,
    CommitResult,
    Failpoints,
    PartRange,
    Plan,
    Request,
    StagedFile,
    TableName,
    build_session,
    prepare,
    session_conf,
)
from frazil.lake.binding import bind
from frazil.lake.catalog.process import CatalogOptions, CatalogProcess
from frazil.lake.connection import CatalogAddress, connect
from frazil.lake.table import TableDefinition
from frazil.lake.worker_jobs import SparkJob, commit_plan
from frazil.lake.worker_spark import Spark
from frazil.model import WHOLE
from frazil.schema import declare_schema
from frazil.tiers import file_schema

TIME_US = 1_790_000_000_000_000
NAMESPACE = "bench"


@attrs.frozen
class LakeSession:
    """A catalog, a warehouse and the session."""

    root: str
    spark: Spark

    def sql(self, text: str) -> None:
        """Run a statement."""
        self.spark.session.sql(text).collect()

    def name_of(self, table: TableName | str) -> str:
        """Return what Spark calls a table."""
        name = table if isinstance(table, str) else table.name
        return f"{CATALOG_NAME}.`{NAMESPACE}`.`{name}`"

    def jvm_heap_bytes_max(self) -> int:
        """Return the most that Java's heap may take, by its own word."""
        java: Any = self.spark.session.sparkContext._jvm  # noqa: SLF001 - Java tells it itself
        return int(java.java.lang.Runtime.getRuntime().maxMemory())


@contextmanager
def lake_session(root: str) -> Iterator[LakeSession]:
    """Start the embedded catalog and Spark, both as an engine would."""
    catalog = CatalogProcess(
        CatalogOptions(
            run_directory=f"{root}/run",
            db=f"{root}/catalog.db",
            warehouse=f"{root}/warehouse",
            port=0,
            log_path=f"{root}/catalog.log",
        ),
        clock=SystemClock(),
    )
    with catalog:
        found = catalog.wait_ready()
        address = CatalogAddress(uri=found.uri, token=found.token or "")
        settings = load_settings(overrides={"data_dir": root})
        ready = prepare(settings)
        run_dir = f"{root}/run/session"
        conf = session_conf(jars=ready.jars, catalog=address, run_dir=run_dir)
        session = build_session(
            conf, java=ready.java, run_dir=run_dir, log_path=f"{root}/spark.log"
        )
        spark = Spark.of_session(session, settings, connect(address), run_dir)
        spark.catalog.create_namespace_if_not_exists((NAMESPACE,))
        try:
            yield LakeSession(root, spark)
        finally:
            session.stop()
            spark.end()


class BenchTopic:
    """A topic as the worker sees it: columns, staged files, and how far its table is."""

    def __init__(
        self, lake: LakeSession, name: str, columns: Mapping[str, str], **options: Any
    ) -> None:
        self._lake = lake
        self.name = f"/{NAMESPACE}/{name}"
        self.schema = declare_schema(dict(columns))
        self.definition = TableDefinition(
            topic=self.name,
            uid=os.urandom(8).hex(),
            schema=self.schema,
            schema_version=1,
            root=f"{lake.root}/warehouse",
            **options,
        )
        bind(lake.spark.catalog, self.definition, clock=SystemClock())
        self.table = self.definition.table
        found = lake.spark.catalog.load_table(tuple(self.table))
        self.location = found.location().removeprefix("file:")
        self.end = 0
        self.upkeep_s: list[float] = []
        """How long each thing took that was done after an answer."""
        self._directory = f"{lake.root}/staged/{self.definition.uid}"
        os.makedirs(self._directory)
        self._numbers = itertools.count()

    def stage(self, rows: pa.Table | pa.RecordBatch) -> StagedFile:
        """Write rows behind the table's end to a file as the disk tier has them."""
        schema = file_schema(self.schema, keyed=False)
        offsets = pa.array(range(self.end, self.end + len(rows)), pa.int64())
        times = pa.array([TIME_US] * len(rows), pa.int64()).view(schema[1].type)
        columns = [rows.column(name) for name in self.schema.names]
        data = pa.table([offsets, times, *columns], schema=schema)
        path = f"{self._directory}/{next(self._numbers):08d}.parquet"
        pq.write_table(
            data,
            path,
            compression="zstd",
            write_page_checksum=True,
            write_page_index=True,
            version="2.6",
        )
        size = os.stat(path).st_size
        return StagedFile(path, len(rows), size, self.end, self.end + len(rows) - 1)

    def commit(self, files: Sequence[StagedFile]) -> float:
        """Move files into the table as a worker does; return the seconds until its answer."""
        request = Request(1, "commit", self._request(files).body())
        begin = time.perf_counter()
        job = SparkJob(
            request,
            self._lake.spark,
            answer=lambda _answer: None,
            halt=Failpoints({}, RealFileSystem()),
        )
        result = CommitResult.of(commit_plan(job))
        seconds = time.perf_counter() - begin
        if result.state != "committed":
            raise SystemExit(f"a commit ended as {result.state}: {result.message}")
        self.end = result.ends[WHOLE]
        begin = time.perf_counter()
        job.do_later()
        self.upkeep_s.append(time.perf_counter() - begin)
        return seconds

    def _request(self, files: Sequence[StagedFile]) -> CommitRequest:
        end = max(file.offset_last for file in files) + 1
        plan = Plan(
            id=f"{self.name}-{next(self._numbers)}",
            topic=self.name,
            topic_id=self.definition.uid,
            table=self.table,
            kind="table",
            schema_version=1,
            schema=base64.b64encode(self.schema.serialize().to_pybytes()).decode(),
            parts=(PartRange(WHOLE, 7, self.end, end, tuple(files)),),
            created_us=TIME_US,
        )
        ends = {WHOLE: self.end}
        return CommitRequest(plan=plan, remembered=ends, durable={WHOLE: end}, held=ends)

    def drop(self) -> None:
        """Drop the table with its files."""
        for table in (self.table, self.table.rejects):
            self._lake.spark.catalog.purge_table(tuple(table))


class PlainTable:
    """What somebody writes who has Spark, Parquet files and a fresh Iceberg table."""

    def __init__(self, lake: LakeSession, name: str, model: BenchTopic) -> None:
        self._lake = lake
        self._name = lake.name_of(name)
        self._identifier = (NAMESPACE, name)
        self._schema = lake.spark.tables.columns(model.table)
        columns = ", ".join(
            f"`{each.name}` {each.dataType.simpleString()}" for each in self._schema
        )
        lake.sql(f"CREATE TABLE {self._name} ({columns}) USING iceberg")

    def append(self, paths: Sequence[str]) -> float:
        """Read files, whose columns are known, and append their rows; return the seconds."""
        begin = time.perf_counter()
        rows = self._lake.spark.session.read.schema(self._schema).parquet(*paths)
        rows.writeTo(self._name).append()
        return time.perf_counter() - begin

    def drop(self) -> None:
        """Drop the table with its files."""
        self._lake.spark.catalog.purge_table(self._identifier)
