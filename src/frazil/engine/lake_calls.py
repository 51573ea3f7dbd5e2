"""What an engine's topics have to do with the lake: who gets a table, and what is refused."""

from __future__ import annotations

import contextlib
import importlib.util
from typing import TYPE_CHECKING, Any, Final

import attrs
import pyarrow as pa

from frazil.engine.hold_calls import HoldCalls
from frazil.errors import Closed, InvalidRequest, NotFound
from frazil.lake import check_lake_name, check_lake_schema
from frazil.model import full_topic_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from frazil.model import PartitionField, TopicSpec
    from frazil.topic import TopicRequest, TopicRuntime

PACKAGES: Final = ("pyspark", "pyiceberg", "starlette", "uvicorn")
"""What the extra `lake` brings, by the names under which it is imported."""


def lake_missing() -> list[str]:
    """Return the packages that the lake needs and that are not installed."""
    return [name for name in PACKAGES if importlib.util.find_spec(name) is None]


def check_lake_installed(topic: str) -> None:
    """Refuse a table for a topic where the lake is not installed.

    Raises:
        InvalidRequest: with what to install.
    """
    missing = lake_missing()
    if missing:
        raise InvalidRequest(
            'a topic with a lake needs more packages, pip install "frazil[lake]", or create the '
            "topic with lake=False",
            topic=topic,
            missing=", ".join(missing),
        )


class LakeCalls(HoldCalls):
    """The part of an engine that decides about tables when topics come, change and go."""

    def _with_lake(self, request: TopicRequest) -> TopicRequest:
        """Return a request that says whether the topic has a lake, checked if it has.

        Raises:
            InvalidRequest: if the topic cannot be a table; nothing was made.
        """
        wanted = request.options.get("lake", self.settings.lake.default)
        if wanted:
            self._check_lake(request.name, request.schema, request.partition_by)
        return attrs.evolve(request, options={**request.options, "lake": bool(wanted)})

    def _check_lake(
        self, name: str, schema: pa.Schema | None, partition_by: Sequence[PartitionField]
    ) -> None:
        if self.tiers is None:
            raise InvalidRequest("a topic with a lake needs memory.enabled", topic=name)
        check_lake_installed(name)
        others = [each for each in self.lake_names() if each != name]
        check_lake_name(name, others)
        if schema is not None:
            check_lake_schema(schema, partition_by)

    def _check_lake_option(
        self, runtimes: Sequence[TopicRuntime], options: Mapping[str, Any]
    ) -> None:
        """Refuse to give a topic a lake that cannot have one."""
        spec = runtimes[0].state.spec
        if options.get("lake") and not spec.lake:
            schema = None if spec.kind == "message" else runtimes[0].codec.schema
            self._check_lake(self._whole_name(spec), schema, spec.partition_by)

    def _leave_lake(self, name: str, *, confirm: bool) -> None:
        """End a topic's way into its table, before its definition says so.

        A crash in between leaves a topic with a lake whose hold is made again, never a hold that
        nobody moves.

        Raises:
            InvalidRequest: if the topic has a lake and `confirm` is missing.
        """
        self._check_open()
        spec, _runtimes = self.whole_topic(full_topic_name(name))
        if not spec.lake or spec.part_of:
            return
        if not confirm:
            raise InvalidRequest(
                "without its lake the topic no longer keeps records for the table: those that are "
                "not committed go with its retention; give confirm=True",
                topic=spec.name,
                committed=self.lake.committed(spec.name),
            )
        self.lake.leave(spec.name)

    def _check_lake_columns(self, spec: TopicSpec, schema: pa.Schema) -> None:
        """Refuse changed columns that a table cannot have."""
        if spec.lake:
            _spec, runtimes = self.whole_topic(self._whole_name(spec))
            schemas = runtimes[0].state.schemas
            # The table's partitions keep names that they got from columns of long ago.
            former = [pa.ipc.read_schema(pa.py_buffer(each)) for each in schemas.values()]
            check_lake_schema(schema, spec.partition_by, former=former)

    def _whole_name(self, spec: TopicSpec) -> str:
        """Return a topic's name; of a part, that of the partitioned topic."""
        if not spec.part_of:
            return spec.name
        return self.log.journal.state.topics[spec.part_of].spec.name

    def _note_lake(self, name: str) -> None:
        """Tell the lake that a topic came or changed, or that nothing came of it."""
        with contextlib.suppress(NotFound, Closed):
            self.lake.changed(full_topic_name(name))

    def _forget_lake(self, spec: TopicSpec, *, drop_table: bool) -> None:
        """Tell the lake that a topic was deleted."""
        self.lake.deleted(spec, drop_table=drop_table)
