"""The last stage: set the number of files by the size of the rows, not by the input files."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from frazil.lake.stages.context import Context

__all__ = ["size_files"]


def size_files(frame: DataFrame, context: Context) -> DataFrame:
    """Join the tasks of small files: each task writes one file for each partition of the table.

    Staged files are compressed as the table's are, so that bytes stay about the same.
    """
    return frame.coalesce(max(1, round(context.staged_bytes / context.target_file_bytes)))
