"""The stages between staged files and a table: pure functions `DataFrame -> DataFrame`.

`STAGES` is the way of a record that fits, `REJECT_STAGES` that of one that does not;
`read.read_staged` is before both.
"""

from __future__ import annotations

from frazil.lake.stages.context import Context
from frazil.lake.stages.pipeline import REJECT_STAGES, STAGES, SparkStages, Stage, run_stages

__all__ = ["REJECT_STAGES", "STAGES", "Context", "SparkStages", "Stage", "run_stages"]
