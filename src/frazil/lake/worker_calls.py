"""What the lake worker can be asked to do: the bodies of requests, and who does each.

Without Spark: the engine imports this module too. An operation is found by its name when it is
asked for, so that a module that adds one is loaded only then.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import msgspec

from frazil.config import SecretText, Settings, load_settings
from frazil.errors import InvalidRequest
from frazil.lake.commit import CommitRequest, CommitResult, commit
from frazil.lake.connection import CatalogAddress
from frazil.lake.plan import TableName
from frazil.struct_types import learnt

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession

    from frazil.lake.expiry import Expired
    from frazil.lake.spark_table import SparkTables
    from frazil.lake.stages import SparkStages

__all__ = [
    "Job",
    "MaintainRequest",
    "Operation",
    "WorkerConfig",
    "commit_body",
    "commit_plan",
    "commit_result",
    "hello_body",
    "maintain_table",
    "operation",
    "table_of_body",
]

RATIO_BYTES_MIN: Final = 1 << 20
"""Smaller commits are mostly footers: they tell nothing of how rows compress."""
RATIO_MIN: Final = 0.1
RATIO_MAX: Final = 10.0


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is told before it starts Spark; `settings` are all of them by dotted path."""

    data_dir: str
    settings: dict[str, Any]
    catalog: CatalogAddress

    def to_settings(self) -> Settings:
        """Return the settings as the engine has them, with an absolute data directory."""
        values = self.settings | {"data_dir": self.data_dir}
        return load_settings(environment={}, overrides=values)


class MaintainRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A table whose metadata is to be kept small; limits of 0 mean the usual ones."""

    table: TableName
    snapshots_max: int = 0
    metadata_bytes_max: int = 0


class Job(Protocol):
    """One request while it is worked on, with everything that the worker has."""

    @property
    def spark(self) -> SparkSession:
        """Return the worker's session."""

    @property
    def catalog(self) -> Catalog:
        """Return PyIceberg's catalog."""

    @property
    def tables(self) -> SparkTables:
        """Return the five calls."""

    @property
    def stages(self) -> SparkStages:
        """Return the pipeline before a commit."""

    @property
    def settings(self) -> Settings:
        """Return the engine's settings."""

    @property
    def body(self) -> Mapping[str, Any]:
        """Return what was asked."""

    def progress(self, step: str, /, **facts: object) -> None:
        """Tell the engine how far it is; raises `Closed` if the job was cancelled."""

    def pause(self, seconds: float) -> None:
        """Wait; raises `Closed` if the job is cancelled."""

    def afterwards(self, action: Callable[[], object]) -> None:
        """Do something for the same table once the answer is given."""


Operation: TypeAlias = Callable[[Job], Mapping[str, Any]]

_OPERATIONS: Final[dict[str, tuple[str, str]]] = {
    "commit": ("frazil.lake.worker_calls", "commit_plan"),
    "maintain": ("frazil.lake.worker_calls", "maintain_table"),
    "verify": ("frazil.lake.verify_job", "verify"),
}
"""Which function of which module does what is asked; it is imported when it is first needed."""


def operation(name: str) -> Operation:
    """Return what does an operation.

    Raises:
        InvalidRequest: if this worker has none of that name.
    """
    found = _OPERATIONS.get(name)
    try:
        if found is not None:
            made: Operation = getattr(importlib.import_module(found[0]), found[1])
            return made
    except (ModuleNotFoundError, AttributeError) as error:
        raise InvalidRequest("the lake worker cannot do this yet", op=name) from error
    raise InvalidRequest("the lake worker does not know this operation", op=name)


def hello_body(settings: Settings, catalog: CatalogAddress) -> dict[str, Any]:
    """Return the body of `hello`: what a worker, which runs elsewhere, needs to know."""
    # It has no business with the object store, whose secrets must not leave this process.
    known = {
        name: each for name, each in settings.values().items() if not isinstance(each, SecretText)
    }
    config = WorkerConfig(
        data_dir=os.path.abspath(settings.data_dir),
        settings=known,
        catalog=catalog,
    )
    body: dict[str, Any] = msgspec.to_builtins(config, str_keys=True)
    return body


def commit_body(request: CommitRequest) -> dict[str, Any]:
    """Return the body of `commit`."""
    body: dict[str, Any] = msgspec.to_builtins(request, str_keys=True)
    return body


def commit_result(body: Mapping[str, Any]) -> CommitResult:
    """Return what the answer to `commit` says.

    Raises:
        InvalidRequest: if it is none.
    """
    result: CommitResult = _converted(body, CommitResult)
    return result


def commit_plan(job: Job) -> Mapping[str, Any]:
    """Move a plan into its table; once this says so, everything of it is on the disk."""
    request = _converted(job.body, CommitRequest)
    plan = request.plan
    result = commit(job.tables, job.stages, request, pause=job.pause, progress=job.progress)
    if result.state in {"committed", "already"}:
        from frazil.lake.durable import settled_ends

        settled = settled_ends(request.remembered, request.choice, request.chosen)
        if result.rows_rejected or result.state == "already":
            job.tables.make_durable(plan.table.rejects, settled)
        job.tables.make_durable(plan.table, settled)
    made = job.tables.facts(result.sid)
    if made is not None and result.state == "committed":
        result.files, result.bytes = made.files, made.bytes
        if plan.bytes >= RATIO_BYTES_MIN and made.bytes:
            ratio = made.bytes / plan.bytes
            job.stages.ratios[plan.table] = min(max(ratio, RATIO_MIN), RATIO_MAX)
    for table in (plan.table, plan.table.rejects):
        if table in job.tables.large:
            job.tables.large.discard(table)
            job.afterwards(partial(_maintain, job, table))
    body: dict[str, Any] = msgspec.to_builtins(result, str_keys=True)
    return body


def maintain_table(job: Job) -> Mapping[str, Any]:
    """Keep the metadata of a table small."""
    request = _converted(job.body, MaintainRequest)
    limits = {
        "snapshots_max": request.snapshots_max,
        "metadata_bytes_max": request.metadata_bytes_max,
    }
    given = {name: limit for name, limit in limits.items() if limit}
    body: dict[str, Any] = msgspec.to_builtins(
        _maintain(job, request.table, **given, progress=job.progress)
    )
    return body


def _maintain(job: Job, table: TableName, **options: Any) -> Expired:
    from frazil.lake.expiry import expire_snapshots

    return expire_snapshots(job.tables, job.catalog, table, **options)


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
