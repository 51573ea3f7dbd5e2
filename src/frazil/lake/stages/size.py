"""The last stage: as many files as the rows are worth, not as many as they came in."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from frazil.lake.stages.context import Context

__all__ = ["file_count", "size_files"]


def file_count(staged_bytes: int, *, ratio: float, target_file_bytes: int) -> int:
    """Return into how many files staged bytes go, each of about the target's size."""
    return max(1, round(staged_bytes * ratio / target_file_bytes))


def size_files(frame: DataFrame, context: Context) -> DataFrame:
    """Join the tasks of small files: each task writes one file for each partition of the table."""
    count = file_count(
        context.staged_bytes, ratio=context.ratio, target_file_bytes=context.target_file_bytes
    )
    return frame.coalesce(count)
