"""One Spark session, one catalog and one warehouse for all tests of a process that need them.

Starting the JVM takes most of the time of these tests, so there is one; each test has topics and
tables of its own in it.
"""

from __future__ import annotations

import atexit
import base64
import functools
import itertools
import shutil
import tempfile
from pathlib import Path

import attrs
import duckdb
import duckdb_extensions
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from frazil.clock import SystemClock
from frazil.config import load_settings
from frazil.lake import (
    CommitRequest,
    PartRange,
    Plan,
    StagedFile,
    build_session,
    prepare,
    session_conf,
)
from frazil.lake.binding import bind
from frazil.lake.catalog.process import CatalogOptions, CatalogProcess
from frazil.lake.commit import commit
from frazil.lake.connection import CatalogAddress, connect
from frazil.lake.table import TableDefinition
from frazil.lake.worker_spark import Spark
from frazil.model import WHOLE
from frazil.schema import MESSAGE_SCHEMA, declare_schema
from frazil.tiers import file_schema

MARKS = [
    pytest.mark.integration,
    pytest.mark.timeout(600),
    # PySpark leaves sockets to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
QUICK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
    # To compile a query takes longer than to run it over the few rows of a test. The whole way in
    # tests/integration/engine/test_lake_spark.py goes as users have it.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""What makes Spark start and answer sooner where little is asked of it."""
TIME_US = 1_790_000_000_000_000
_numbers = itertools.count(1)


@attrs.frozen
class World:
    """What there is once a process."""

    root: Path
    address: CatalogAddress
    catalog_process: CatalogProcess
    spark: Spark

    @property
    def session(self):
        return self.spark.session

    @property
    def tables(self):
        return self.spark.tables

    @property
    def stages(self):
        return self.spark.stages

    @property
    def catalog(self):
        return self.spark.catalog

    def topic(self, columns=None, **options):
        """Make a topic with a table of its own; without columns it is a message topic."""
        number = next(_numbers)
        schema = MESSAGE_SCHEMA if columns is None else _schema_of(columns)
        return Topic(self, f"/lake/t{number}", schema, options)


def _schema_of(columns):
    return columns if isinstance(columns, pa.Schema) else declare_schema(columns)


@functools.cache
def shared_world():
    """Start catalog and Spark when they are first needed."""
    root = Path(tempfile.mkdtemp(prefix="frazil-lake-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    catalog = CatalogProcess(
        CatalogOptions(
            run_directory=str(root / "run"),
            db=str(root / "catalog.db"),
            warehouse=str(root / "warehouse"),
            port=0,
            log_path=str(root / "catalog.log"),
        ),
        clock=SystemClock(),
    )
    found = catalog.start(timeout=120)
    atexit.register(catalog.stop)
    address = CatalogAddress(uri=found.uri, token=found.token or "")
    settings = load_settings(overrides={"data_dir": str(root)})
    ready = prepare(settings)
    run_dir = str(root / "run" / "session")
    conf = session_conf(
        jars=ready.jars,
        catalog=address,
        run_dir=run_dir,
        conf=QUICK,
    )
    session = build_session(
        conf, java=ready.java, run_dir=run_dir, log_path=str(root / "spark.log")
    )
    spark = Spark.of_session(session, settings, connect(address), run_dir)
    atexit.register(spark.end)
    # Before its JVM goes: threads of PySpark would complain about that at length.
    atexit.register(session.stop)
    return World(root, address, catalog, spark)


class Topic:
    """A topic as the lake sees it: columns, staged files, and how far they are planned."""

    def __init__(self, world, name, schema, options):
        self.world = world
        self.name = name
        self.uid = f"{abs(hash(name)):016x}"[:16]
        self.schema = schema
        self.parts = options.pop("parts", 0)
        self.definition = TableDefinition(
            topic=name,
            uid=self.uid,
            schema=schema,
            schema_version=1,
            root=str(world.root / "warehouse"),
            parts=self.parts,
            **options,
        )
        bind(world.catalog, self.definition, clock=SystemClock())
        self.table = self.definition.table
        self.directory = world.root / "disk" / self.uid
        self.directory.mkdir(parents=True)
        self.ends = dict(self.definition.ends)
        self._files = itertools.count()

    @property
    def spark_name(self):
        return f"frazil.`{self.table.namespace}`.`{self.table.name}`"

    # -- staging --

    def stage(self, rows, *, first=None, part=WHOLE, offsets=None, times=None):
        """Write rows (a table, or dicts) to a staged file as the disk tier does."""
        start = self.ends[part] if first is None else first
        if isinstance(rows, list):
            rows = pa.Table.from_pylist(rows, schema=self.schema)
        count = len(rows)
        offsets = list(range(start, start + count)) if offsets is None else offsets
        times = [TIME_US + each for each in offsets] if times is None else times
        schema = file_schema(self.schema, keyed=False)
        system = [pa.array(offsets, pa.int64()), pa.array(times, pa.int64()).view(schema[1].type)]
        data = pa.table(
            [*system, *(rows.column(name) for name in self.schema.names)], schema=schema
        )
        path = self.directory / f"{start:016x}-{next(self._files)}.parquet"
        pq.write_table(
            data,
            path,
            compression="zstd",
            write_page_checksum=True,
            write_page_index=True,
            version="2.6",
        )
        return StagedFile(str(path), count, path.stat().st_size, offsets[0], offsets[-1])

    def plan(self, *files, lo=None, hi=None, part=WHOLE, gaps=()):
        """Make a plan of one part's files, from where the topic stands."""
        return self.plan_of(self.range(*files, lo=lo, hi=hi, part=part, gaps=gaps))

    def range(self, *files, lo=None, hi=None, part=WHOLE, gaps=()):
        lo = self.ends[part] if lo is None else lo
        hi = max(file.offset_last for file in files) + 1 if hi is None else hi
        return PartRange(part, 7, lo, hi, tuple(files), gaps)

    def plan_of(self, *ranges):
        return Plan(
            id=f"{self.name}-{next(_numbers)}",
            topic=self.name,
            topic_id=self.uid,
            table=self.table,
            kind="table",
            schema_version=1,
            schema=base64.b64encode(self.schema.serialize().to_pybytes()).decode(),
            parts=tuple(ranges),
            created_us=TIME_US,
        )

    def request(self, plan, **options):
        durable = dict(self.ends)
        for each in plan.parts:
            durable[each.part] = max(durable.get(each.part, 0), each.hi)
        known = {"remembered": dict(self.ends), "durable": durable, "held": {}}
        return CommitRequest(plan=plan, **{**known, **options})

    def commit(self, plan, *, tables=None, progress=lambda _step: None, **options):
        """Run the commit protocol and move where the topic stands."""
        result = commit(
            tables or self.world.tables,
            self.world.stages,
            self.request(plan, **options),
            pause=lambda _seconds: None,
            progress=progress,
        )
        if result.state in {"committed", "already"}:
            self.ends |= result.ends
        return result

    # -- reading back --

    def by_spark(self, *columns):
        """Return the table's rows as Spark reads them, as Arrow, sorted."""
        frame = self.world.session.table(self.spark_name)
        return _sorted((frame.select(*columns) if columns else frame).toArrow())

    def by_pyiceberg(self, *columns):
        scan = self.world.catalog.load_table(tuple(self.table)).scan(
            selected_fields=columns or ("*",)
        )
        return _sorted(scan.to_arrow())

    def by_duckdb(self, *columns):
        table = self.world.catalog.load_table(tuple(self.table))
        connection = duckdb.connect()
        for name in ("avro", "iceberg"):
            duckdb_extensions.import_extension(name, con=connection)
            connection.load_extension(name)
        connection.execute("SET TimeZone = 'UTC'")
        names = ", ".join(f'"{each}"' for each in columns) or "*"
        found = connection.execute(
            f"SELECT {names} FROM iceberg_scan(?)",
            [table.metadata_location.removeprefix("file://")],
        )
        return _sorted(found.to_arrow_table())

    def offsets(self, reader="by_spark"):
        return getattr(self, reader)("_offset").column(0).to_pylist()

    def rejects(self):
        name = f"frazil.`{self.table.rejects.namespace}`.`{self.table.rejects.name}`"
        return _sorted(self.world.session.table(name).toArrow()).to_pylist()

    def snapshots(self):
        return self.world.catalog.load_table(tuple(self.table)).metadata.snapshots

    def foreign(self, text):
        """Run a statement of somebody else; `{table}` is the table."""
        self.world.session.sql(text.format(table=self.spark_name)).collect()


def _sorted(table):
    keys = [name for name in ("_part", "_offset") if name in table.column_names]
    return table.sort_by([(name, "ascending") for name in keys]) if keys else table
