"""The jobs of a worker: each in a thread, one at a time for a table, cancelled when asked to."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from frazil.errors import Closed, FrazilError, Unavailable
from frazil.lake.wire import Answer
from frazil.lake.worker_calls import operation, table_of_body
from frazil.telemetry import LOGGER, event, warn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from frazil.clock import Clock
    from frazil.config import Settings
    from frazil.lake.halting import Halt
    from frazil.lake.spark_table import SparkTables
    from frazil.lake.stages import SparkStages
    from frazil.lake.wire import Request
    from frazil.lake.worker_spark import Spark

__all__ = ["Jobs"]

JOBS_MAX: Final = 2
"""So many tables are worked on at once; a small driver has no more cores."""


class SparkJob:
    """One request while it is worked on; see `frazil.lake.worker_calls.Job`."""

    def __init__(
        self,
        request: Request,
        spark: Spark,
        *,
        answer: Callable[[Answer], None],
        halt: Halt,
    ) -> None:
        self.request = request
        self._spark = spark
        self._answer = answer
        self._halt = halt
        self._cancelled = threading.Event()
        self._later: list[Callable[[], object]] = []

    @property
    def spark(self) -> SparkSession:
        return self._spark.session

    @property
    def catalog(self) -> Catalog:
        return self._spark.catalog

    @property
    def tables(self) -> SparkTables:
        return self._spark.tables

    @property
    def stages(self) -> SparkStages:
        return self._spark.stages

    @property
    def settings(self) -> Settings:
        return self._spark.settings

    @property
    def body(self) -> Mapping[str, Any]:
        return self.request.body

    @property
    def group(self) -> str:
        """Return the name under which Spark knows the job."""
        return f"frazil-{self.request.id}"

    def progress(self, step: str, /, **facts: object) -> None:
        self._refuse_cancelled()
        self._answer(Answer(self.request.id, "progress", {"step": step, **facts}))
        self._halt.reached(step)

    def pause(self, seconds: float) -> None:
        self._cancelled.wait(seconds)
        self._refuse_cancelled()

    def afterwards(self, action: Callable[[], object]) -> None:
        self._later.append(action)

    def do_later(self) -> None:
        """Do what was left for after the answer; a failure of it is nobody's failure."""
        for action in self._later:
            try:
                action()
            except FrazilError as error:
                warn("lake_upkeep_failed", op=self.request.op, id=self.request.id, error=error)

    def cancel(self) -> None:
        """Let the job end at its next step; what Spark is doing for it ends now."""
        self._cancelled.set()
        self.spark.sparkContext.cancelJobGroup(self.group)

    def _refuse_cancelled(self) -> None:
        if self._cancelled.is_set():
            raise Closed("job was cancelled", id=self.request.id, op=self.request.op)


class Jobs:
    """Takes requests and answers each with one `done` or `failed`. Any thread may call.

    Args:
        answer: says something to the engine.
        halt: the tests' hook at each step.
    """

    def __init__(self, answer: Callable[[Answer], None], halt: Halt, clock: Clock) -> None:
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
        """Tell whether jobs can be taken."""
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

    def cancel(self, number: int) -> bool:
        """Cancel a job; tell whether there is one of that id."""
        with self._changed:
            job = self._jobs.get(number)
        if job is not None:
            job.cancel()
        return job is not None

    def drain(self, seconds: float) -> bool:
        """Take no more jobs and wait for the running ones; tell whether they came to an end."""
        self._closed = True
        deadline = self._clock.monotonic() + seconds
        with self._changed:
            while self._jobs and self._clock.monotonic() < deadline:
                self._changed.wait(0.1)
            return not self._jobs

    def _run(self, job: SparkJob) -> None:
        """Do a job in a thread of the pool; whatever it raises is an answer."""
        request = job.request
        begun = self._clock.monotonic()
        try:
            with self._lock(table_of_body(request.body)):
                job.spark.sparkContext.setJobGroup(job.group, request.op, interruptOnCancel=False)
                body = dict(operation(request.op)(job))
                seconds = self._clock.monotonic() - begun
                event("lake_job_done", op=request.op, id=request.id, seconds=f"{seconds:.3f}")
                self._answer(Answer(request.id, "done", body))
                # Still in the table's turn: its next commit waits the short while.
                job.do_later()
        except FrazilError as error:
            warn("lake_job_failed", op=request.op, id=request.id, error=error)
            self._failed(request, error)
        except Exception as error:  # noqa: BLE001 - the top of a thread: a bug is an answer
            LOGGER.exception("lake_job_broke", extra={"facts": {"op": request.op}})
            told = FrazilError(
                "the lake worker has a bug, logs/lake.log has the trace",
                op=request.op,
                error=repr(error),
            )
            self._failed(request, told)
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
            return self._tables.setdefault(table or "", threading.Lock())
