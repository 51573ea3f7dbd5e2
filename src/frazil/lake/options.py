"""The lake as an option of topics: which topics can have a table, and with which columns."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from frazil.errors import InvalidRequest
from frazil.lake.table import check_lake_name
from frazil.lake.types import check_lake_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frazil.model import PartitionField, TopicSpec
    from frazil.topic import Instance

__all__ = ["check_lake_columns", "check_lake_topic", "lake_missing"]

PACKAGES: Final = ("pyspark", "pyiceberg", "starlette", "uvicorn")
"""The packages of the extra `lake`, by the names under which they are imported."""


def lake_missing() -> list[str]:
    """Return the packages that the lake needs and that are not installed."""
    return [name for name in PACKAGES if importlib.util.find_spec(name) is None]


def check_lake_topic(
    engine: Instance,
    name: str,
    schema: pa.Schema | None,
    partition_by: Sequence[PartitionField],
    *,
    has_tiers: bool,
) -> None:
    """Refuse a table for a topic that cannot have one.

    Raises:
        InvalidRequest: with the reason, or with the package to install.
    """
    if not has_tiers:
        raise InvalidRequest("a topic with a lake needs memory.enabled", topic=name)
    missing = lake_missing()
    if missing:
        raise InvalidRequest(
            'a topic with a lake needs more packages, pip install "frazil[lake]", or create the '
            "topic with lake=False",
            topic=name,
            missing=", ".join(missing),
        )
    check_lake_name(name, [each for each in engine.lake_names() if each != name])
    if schema is not None:
        check_lake_schema(schema, partition_by)


def check_lake_columns(engine: Instance, spec: TopicSpec, schema: pa.Schema) -> None:
    """Refuse changed columns that the topic's table cannot have."""
    if spec.lake:
        _spec, runtimes = engine.whole_topic(engine.whole_name(spec))
        # The table's partitions keep the names of former columns.
        former = [
            pa.ipc.read_schema(pa.py_buffer(each)) for each in runtimes[0].state.schemas.values()
        ]
        check_lake_schema(schema, spec.partition_by, former=former)
