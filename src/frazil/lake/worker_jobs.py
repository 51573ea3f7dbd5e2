"""The lake worker's operations, and the threads that run them.

The engine imports this module too, so Spark and the modules of an operation are imported at the
operation's first request. One operation at a time runs for a table.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import msgspec

from frazil.config import SecretText, Settings, load_settings
from frazil.errors import Closed, FrazilError, InvalidRequest, Unavailable
from frazil.lake.commit import CommitRequest, commit
from frazil.lake.connection import CatalogAddress
from frazil.lake.java import read_text
from frazil.lake.plan import TableName
from frazil.lake.wire import Answer, body_of
from frazil.struct_types import learnt
from frazil.telemetry import LOGGER, event, warn

if TYPE_CHECKING:
    from frazil.clock import Clock
    from frazil.fs import FileSystem
    from frazil.lake.wire import Request
    from frazil.lake.worker_spark import Spark

__all__ = [
    "VARIABLE",
    "Failpoints",
    "Jobs",
    "SparkJob",
    "WorkerConfig",
    "commit_plan",
    "hello_body",
    "maintain_table",
    "table_of_body",
]

JOBS_MAX: Final = 2
"""The limit of concurrent tables; a small driver has no more cores."""


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The worker's options for the start of Spark; `settings` has all settings by dotted path."""

    data_dir: str
    settings: dict[str, Any]
    catalog: CatalogAddress

    def to_settings(self) -> Settings:
        """Return the settings as the engine has them, with an absolute data directory."""
        return load_settings(environment={}, overrides=self.settings | {"data_dir": self.data_dir})


def hello_body(settings: Settings, catalog: CatalogAddress) -> dict[str, Any]:
    """Return the body of `hello`: the settings and addresses for a worker."""
    # The worker does not use the object store, whose secrets must not leave this process.
    known = {
        name: each for name, each in settings.values().items() if not isinstance(each, SecretText)
    }
    data_dir = os.path.abspath(settings.data_dir)
    return body_of(WorkerConfig(data_dir=data_dir, settings=known, catalog=catalog))


def commit_plan(job: SparkJob) -> Mapping[str, Any]:
    """Move a plan into its table; on return all of its files are synced."""
    request = _converted(job.body, CommitRequest)
    plan = request.plan
    result = commit(
        job.spark.tables, job.spark.stages, request, pause=job.pause, progress=job.progress
    )
    if result.state in {"committed", "already"}:
        from frazil.lake.durable import settled_ends

        settled = settled_ends(request.remembered, request.choice, request.chosen)
        if result.rows_rejected or result.state == "already":
            job.spark.tables.make_durable(plan.table.rejects, settled)
        job.spark.tables.make_durable(plan.table, settled)
    made = job.spark.tables.made(result.sid)
    if made is not None and result.state == "committed":
        result.files = made.number("added-data-files")
        result.bytes = made.number("added-files-size")
    return body_of(result)


def maintain_table(job: SparkJob) -> Mapping[str, Any]:
    """Expire snapshots of the body's `table` when it has more than `snapshots_max`."""
    limits = {name: job.body[name] for name in ("snapshots_max",) if name in job.body}
    return _maintain(job, TableName(*job.body["table"]), **limits, progress=job.progress)


def _maintain(job: SparkJob, table: TableName, **options: Any) -> dict[str, int]:
    from frazil.lake.expiry import expire_snapshots

    return expire_snapshots(job.spark.tables, job.spark.catalog, table, **options)


def verify_table(job: SparkJob) -> Mapping[str, Any]:
    """Verify a table."""
    from frazil.lake.verify_job import verify

    return verify(job)


def _operation(name: str) -> Callable[[SparkJob], Mapping[str, Any]]:
    operations = {"commit": commit_plan, "maintain": maintain_table, "verify": verify_table}
    if name not in operations:
        raise InvalidRequest("the lake worker has no such operation", op=name)
    return operations[name]


def table_of_body(body: Mapping[str, Any]) -> str:
    """Return which table a request is about, empty if about none: one job a table at a time."""
    plan = body.get("plan")
    table = plan.get("table") if isinstance(plan, dict) else body.get("table")
    return ".".join(map(str, table)) if isinstance(table, (list, tuple)) else ""


def _converted(body: Mapping[str, Any], kind: type[Any]) -> Any:
    try:
        return msgspec.convert(body, learnt(kind), str_keys=True)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(
            "request to the lake worker cannot be read", kind=kind.__name__, reason=error
        ) from error


class SparkJob:
    """One running request of the worker, with its Spark session."""

    def __init__(
        self,
        request: Request,
        spark: Spark,
        *,
        answer: Callable[[Answer], None],
        halt: Failpoints,
    ) -> None:
        self.request = request
        self.body: Mapping[str, Any] = request.body
        self.spark = spark
        self._answer = answer
        self._halt = halt

    def progress(self, step: str) -> None:
        """Report a step to the engine."""
        self._answer(Answer(self.request.id, "progress", {"step": step}))
        self._halt.reached(step)

    def pause(self, seconds: float) -> None:
        """Wait."""
        threading.Event().wait(seconds)

    def maintain_large(self) -> None:
        """Expire snapshots of a plan's tables that have too many; a failure is only logged."""
        if "plan" not in self.body:
            return
        table = TableName(*self.body["plan"]["table"])
        for each in {table, table.rejects} & self.spark.tables.large:
            self.spark.tables.large.discard(each)
            try:
                _maintain(self, each)
            except FrazilError as error:
                warn("lake_upkeep_failed", op=self.request.op, id=self.request.id, error=error)


class Jobs:
    """Runs requests and answers each with one `done` or `failed`. Any thread may call.

    Args:
        answer: sends an answer to the engine.
        halt: the tests' hook at each step.
    """

    def __init__(self, answer: Callable[[Answer], None], halt: Failpoints, clock: Clock) -> None:
        self._answer = answer
        self._halt = halt
        self._clock = clock
        self._pool = ThreadPoolExecutor(JOBS_MAX, thread_name_prefix="frazil-lake-job")
        self._changed = threading.Condition()
        self._jobs: dict[int, SparkJob] = {}
        self._tables: dict[str, threading.Lock] = {}
        self._spark: Spark | None = None
        self._closed = False

    @property
    def ready(self) -> bool:
        """Return whether jobs can be accepted."""
        return self._spark is not None and not self._closed

    def open(self, spark: Spark) -> None:
        """Take jobs from now on."""
        self._spark = spark

    def running(self) -> list[int]:
        """Return the ids of the requests that have no answer yet."""
        with self._changed:
            return sorted(self._jobs)

    def take(self, request: Request) -> None:
        """Begin a job, or refuse it while Spark is not there."""
        spark = self._spark
        if spark is None or self._closed:
            why = "is ending" if self._closed else "is starting"
            self._failed(request, Unavailable(f"the lake worker {why}", op=request.op))
            return
        job = SparkJob(request, spark, answer=self._answer, halt=self._halt)
        with self._changed:
            self._jobs[request.id] = job
        self._pool.submit(self._run, job)

    def drain(self, seconds: float) -> bool:
        """Take no more jobs and wait for the running ones; return whether all ended."""
        self._closed = True
        deadline = self._clock.monotonic() + seconds
        with self._changed:
            while self._jobs and self._clock.monotonic() < deadline:
                self._changed.wait(0.1)
            return not self._jobs

    def _run(self, job: SparkJob) -> None:
        """Run a job in a thread of the pool; its exception becomes the answer."""
        request = job.request
        begun = self._clock.monotonic()
        try:
            with self._lock(table_of_body(request.body)):
                body = dict(_operation(request.op)(job))
                seconds = self._clock.monotonic() - begun
                event("lake_job_done", op=request.op, id=request.id, seconds=f"{seconds:.3f}")
                self._answer(Answer(request.id, "done", body))
                # Still in the table's turn: its next commit waits the short while.
                job.maintain_large()
        except FrazilError as error:
            warn("lake_job_failed", op=request.op, id=request.id, error=error)
            self._failed(request, error)
        except Exception as error:  # noqa: BLE001 - the top of a thread: a bug is an answer
            LOGGER.exception("lake_job_broke", extra={"facts": {"op": request.op}})
            bug = FrazilError(
                "the lake worker has a bug, logs/lake.log has the trace",
                op=request.op,
                error=repr(error),
            )
            self._failed(request, bug)
        finally:
            with self._changed:
                self._jobs.pop(request.id, None)
                self._changed.notify_all()

    def _failed(self, request: Request, error: FrazilError) -> None:
        facts = {key: str(value) for key, value in error.details.items()}
        try:
            self._answer(
                Answer(request.id, "failed", facts, error=error.code, message=error.message)
            )
        except Closed:
            event("lake_answer_unheard", op=request.op, id=request.id)

    def _lock(self, table: str) -> threading.Lock:
        with self._changed:
            return self._tables.setdefault(table, threading.Lock())


VARIABLE: Final = "FRAZIL_TEST_LAKE_HALT_AT"
_ACTIONS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class Failpoints:
    """Ends or freezes this worker at a step, for tests; does nothing without the variable.

    The variable names a file, which a test writes with `step:kill` or `step:stop`.
    """

    def __init__(self, environment: Mapping[str, str], file_system: FileSystem) -> None:
        self._path = environment.get(VARIABLE, "")
        self._file_system = file_system

    def reached(self, step: str) -> None:
        """Signal the process group of this worker if the file names this step; obey it once."""
        text = read_text(self._path, self._file_system) if self._path else ""
        wanted, _, action = text.strip().partition(":")
        if wanted and wanted == step:
            self._file_system.unlink(self._path)
            os.killpg(os.getpgid(0), _ACTIONS[action])
