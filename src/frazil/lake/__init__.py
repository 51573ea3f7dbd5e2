"""The lake: moves staged records into Iceberg tables, exactly once, with Spark.

`docs/internals/lake.md` has the protocol. Only the worker's side imports `pyspark`: `session`,
`stages`, `spark_table`, `worker`. Everything else runs in the engine's process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from frazil.lazy import lazy_names

if TYPE_CHECKING:
    from frazil.lake.commit import STEPS, CommitRequest, CommitResult, Verdict
    from frazil.lake.doctor import Check, examine
    from frazil.lake.expiry import expirable
    from frazil.lake.iceberg import (
        ADOPTED,
        SKIPPED,
        Reference,
        Snapshot,
        TableMetadata,
        decode_ranges,
        encode_ranges,
    )
    from frazil.lake.jars import Jar, jars_directory, prepare, take_jars
    from frazil.lake.java import cache_directory, find_java
    from frazil.lake.options import check_lake_columns, check_lake_topic, lake_missing
    from frazil.lake.originals import decode_original
    from frazil.lake.plan import (
        PartRange,
        PartSets,
        Plan,
        StagedFile,
        StagedSet,
        TableName,
        plan_parts,
    )
    from frazil.lake.plans import LakePlans
    from frazil.lake.runtime import Lake
    from frazil.lake.session import CATALOG_NAME, build_session, session_conf
    from frazil.lake.table import (
        TOPIC_ID,
        RejectRatio,
        TableState,
        check_lake_name,
        end_key,
        ends_of,
        table_of,
    )
    from frazil.lake.topics import COUNTS
    from frazil.lake.types import check_lake_schema, iceberg_schema
    from frazil.lake.verify import PartFacts, Problem, StagedRows, VerifyRequest, VerifyResult
    from frazil.lake.watermark import MISSING_RANGE, ROLLED_BACK, Known, decide, watermarks
    from frazil.lake.wire import Answer, Request, receive, send
    from frazil.lake.worker_client import Launched
    from frazil.lake.worker_jobs import VARIABLE, Failpoints

__all__ = [
    "ADOPTED",
    "CATALOG_NAME",
    "COUNTS",
    "MISSING_RANGE",
    "ROLLED_BACK",
    "SKIPPED",
    "STEPS",
    "TOPIC_ID",
    "VARIABLE",
    "Answer",
    "Check",
    "CommitRequest",
    "CommitResult",
    "Failpoints",
    "Jar",
    "Known",
    "Lake",
    "LakePlans",
    "Launched",
    "PartFacts",
    "PartRange",
    "PartSets",
    "Plan",
    "Problem",
    "Reference",
    "RejectRatio",
    "Request",
    "Snapshot",
    "StagedFile",
    "StagedRows",
    "StagedSet",
    "TableMetadata",
    "TableName",
    "TableState",
    "Verdict",
    "VerifyRequest",
    "VerifyResult",
    "build_session",
    "cache_directory",
    "check_lake_columns",
    "check_lake_name",
    "check_lake_schema",
    "check_lake_topic",
    "decide",
    "decode_original",
    "decode_ranges",
    "encode_ranges",
    "end_key",
    "ends_of",
    "examine",
    "expirable",
    "find_java",
    "iceberg_schema",
    "jars_directory",
    "lake_missing",
    "plan_parts",
    "prepare",
    "receive",
    "send",
    "session_conf",
    "table_of",
    "take_jars",
    "watermarks",
]

_MODULES = {
    "frazil.lake.commit": ("CommitRequest", "CommitResult", "STEPS", "Verdict"),
    "frazil.lake.doctor": ("Check", "examine"),
    "frazil.lake.expiry": ("expirable",),
    "frazil.lake.iceberg": (
        "ADOPTED",
        "Reference",
        "SKIPPED",
        "Snapshot",
        "TableMetadata",
        "decode_ranges",
        "encode_ranges",
    ),
    "frazil.lake.jars": ("Jar", "jars_directory", "prepare", "take_jars"),
    "frazil.lake.java": ("cache_directory", "find_java"),
    "frazil.lake.options": ("check_lake_columns", "check_lake_topic", "lake_missing"),
    "frazil.lake.originals": ("decode_original",),
    "frazil.lake.plan": (
        "PartRange",
        "PartSets",
        "Plan",
        "StagedFile",
        "StagedSet",
        "TableName",
        "plan_parts",
    ),
    "frazil.lake.plans": ("LakePlans",),
    "frazil.lake.runtime": ("Lake",),
    "frazil.lake.session": ("CATALOG_NAME", "build_session", "session_conf"),
    "frazil.lake.table": (
        "RejectRatio",
        "TOPIC_ID",
        "TableState",
        "check_lake_name",
        "end_key",
        "ends_of",
        "table_of",
    ),
    "frazil.lake.topics": ("COUNTS",),
    "frazil.lake.types": ("check_lake_schema", "iceberg_schema"),
    "frazil.lake.verify": ("PartFacts", "Problem", "StagedRows", "VerifyRequest", "VerifyResult"),
    "frazil.lake.watermark": ("Known", "MISSING_RANGE", "ROLLED_BACK", "decide", "watermarks"),
    "frazil.lake.wire": ("Answer", "Request", "receive", "send"),
    "frazil.lake.worker_client": ("Launched",),
    "frazil.lake.worker_jobs": ("Failpoints", "VARIABLE"),
}

if not TYPE_CHECKING:  # Checkers see the imports above, and no other names.
    __getattr__ = lazy_names(__name__, _MODULES)
