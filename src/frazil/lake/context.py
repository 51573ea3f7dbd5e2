"""What a topic on its way into its table needs: a catalog, a worker, and the engine around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import pyarrow as pa

    from frazil.clock import Clock
    from frazil.lake.plan import TableName
    from frazil.lake.plans import LakePlans
    from frazil.lake.table import Ends, View
    from frazil.lake.watermark import Known
    from frazil.lake.worker_client import LakeWorker
    from frazil.model import PartitionField
    from frazil.tiers import Tiers
    from frazil.topic import TopicRuntime

__all__ = ["Definition", "LakeWorld", "Tables"]


class Definition(NamedTuple):
    """A topic as its table has to be."""

    name: str
    uid: str
    table: TableName
    version: int
    schema: pa.Schema
    partition_by: tuple[PartitionField, ...]
    parts: int
    """How many parts it has, 0 for a topic without."""
    ends: Ends
    """Where a new table begins, by part; all parts are in it."""
    sort_by: tuple[str, ...] = ()


class Tables(Protocol):
    """The catalog, as the engine uses it: without Spark. Every call may raise `Unavailable`.

    `columns` gives the topic's columns at a version.
    """

    def look(self, table: TableName) -> View:
        """Read how far a table is; `NotFound` if there is none."""

    def make_durable(self, table: TableName, known: Known) -> None:
        """Have on the disk what a table and its side table took beyond what is remembered.

        Raises:
            CorruptionError: a file of a commit was lost with the machine's power.
        """

    def bind(self, definition: Definition, columns: Callable[[int], pa.Schema]) -> int:
        """Make the table if it is not there, or check the one that is; return its version.

        Raises:
            Conflict: it has other columns, another format or is of another topic.
        """

    def evolve(self, definition: Definition, columns: Callable[[int], pa.Schema]) -> int:
        """Bring the table's columns to the definition's version; return the one it then has.

        Raises:
            Conflict: somebody else changed them.
        """

    def take_over(self, table: TableName, uid: str, adopted: Mapping[int, tuple[int, int]]) -> None:
        """Make a table of another topic this one's; the rows in `adopted`, by part, are not."""

    def advance(self, table: TableName, ends: Ends) -> None:
        """Have a table stand at `ends` at least, without a row; for whose topic it is now."""

    def declare(self, table: TableName, key: str, ranges: Mapping[int, tuple[int, int]]) -> None:
        """Write ranges, by part, into a table's property; see `frazil.lake.declared`."""

    def drop(self, table: TableName, uid: str) -> None:
        """Remove a topic's table and its side table with all their files."""


class LakeWorld(Protocol):
    """What a topic on its way into its table needs of the engine."""

    clock: Clock
    plans: LakePlans
    worker: LakeWorker

    @property
    def tiers(self) -> Tiers:
        """Return memory and disk."""

    def tables(self) -> Tables:
        """Return the catalog; raises `Unavailable` while it does not answer."""

    def wake(self) -> None:
        """Have the lake's thread look again soon."""

    def set_hold(self, runtime: TopicRuntime, offset: int | None) -> None:
        """Move the lake's hold of a topic or part; durable on return."""
