"""The stages of a plan in order, and the verdict for the commit protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeAlias

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from frazil.errors import InvalidRequest
from frazil.lake.commit import Verdict
from frazil.lake.stages.columns import OFFSET, PART, REJECT, by_name, decode_schema
from frazil.lake.stages.context import Context, sources_of
from frazil.lake.stages.footers import staged_facts
from frazil.lake.stages.project import check_columns, project
from frazil.lake.stages.read import read_staged
from frazil.lake.stages.size import size_files
from frazil.lake.stages.split import keep_accepted, keep_rejected
from frazil.lake.stages.validate import validate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql import types as T  # noqa: N812 - as F

    from frazil.lake.plan import Plan, TableName
    from frazil.lake.table import Ends, Rows

__all__ = ["REJECT_STAGES", "STAGES", "SparkStages", "Stage", "run_stages"]

Stage: TypeAlias = Callable[[DataFrame, Context], DataFrame]

STAGES: Final[tuple[Stage, ...]] = (validate, keep_accepted, project, size_files)
"""From staged rows to rows of the table."""
REJECT_STAGES: Final[tuple[Stage, ...]] = (validate, keep_rejected)
"""From staged rows to rows of the side table."""


def run_stages(frame: DataFrame, context: Context, stages: tuple[Stage, ...]) -> DataFrame:
    """Apply stages to staged rows; Spark runs no job yet."""
    for stage in stages:
        frame = stage(frame, context)
    return frame


class SparkStages:
    """Computes the verdicts of plans with Spark, before a commit. It writes nothing.

    Args:
        spark: the session, in UTC.
        columns: returns the current columns of a table.
        target_file_bytes: the target size of a table's files.
    """

    def __init__(
        self,
        spark: SparkSession,
        columns: Callable[[TableName], T.StructType],
        *,
        target_file_bytes: int,
    ) -> None:
        self._spark = spark
        self._columns = columns
        self._target_file_bytes = target_file_bytes

    def verdict(self, plan: Plan, from_offsets: Ends) -> Verdict:
        """Return the verdict for a plan's records; parts missing in `from_offsets` have none.

        Spark runs only if the footers leave doubt, and then counts in one pass.

        Raises:
            CorruptionError: a staged file is missing, damaged, or not the planned one.
            InvalidRequest: the table lacks columns of the topic.
        """
        schema = decode_schema(plan.schema)
        count, doubtful = staged_facts(sources_of(plan, from_offsets), schema)
        context = Context(
            plan=plan,
            schema=schema,
            table=self._columns(plan.table),
            from_offsets=from_offsets,
            raw=doubtful,
            target_file_bytes=self._target_file_bytes,
        )
        check_columns(context)
        staged = read_staged(self._spark, context)
        rows = run_stages(staged, context, STAGES)
        if not context.raw:
            return Verdict(rows, None, count, count, 0, 0)
        found = validate(staged, context).agg(F.count(F.lit(1)), F.count(by_name(REJECT))).first()
        assert found is not None
        count, rejected = int(found[0]), int(found[1])
        rejects = run_stages(staged, context, REJECT_STAGES)
        return Verdict(rows, rejects, count, count - rejected, rejected, 0)

    def rejects_from(self, verdict: Verdict, from_offsets: Ends) -> Rows:
        """Return the rejects at or above the side table's watermark."""
        rejects = verdict.rejects
        if not isinstance(rejects, DataFrame):
            raise InvalidRequest("verdict has no rejects")
        offset = by_name(OFFSET)
        keep = F.lit(False)
        for part, start in from_offsets.items():
            here = offset >= F.lit(start)
            keep |= here if part < 0 else (by_name(PART) == F.lit(part)) & here
        return rejects.where(keep).coalesce(1)
