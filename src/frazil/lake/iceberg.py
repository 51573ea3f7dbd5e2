"""The Iceberg table metadata that Frazil reads: snapshots, references, schemas, properties.

Decoding only these fields is ten times faster than PyIceberg's model for a table of 500 snapshots.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec

from frazil.errors import CorruptionError
from frazil.lake.table import OFFSET_END, Ends, ends_of
from frazil.model import WHOLE
from frazil.offsets import Range, RangeSet

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from frazil.lake.plan import TableName
    from frazil.lake.table import Ends

__all__ = [
    "ADOPTED",
    "MAIN",
    "SKIPPED",
    "Ranges",
    "Reference",
    "Snapshot",
    "TableMetadata",
    "decode_ranges",
    "encode_ranges",
    "parse_metadata",
    "ranges_between",
    "readable",
    "united",
    "without",
]

MAIN: Final = "main"


class Snapshot(msgspec.Struct, frozen=True, rename="kebab", gc=False):
    """One snapshot."""

    snapshot_id: int
    parent_snapshot_id: int | None = None
    manifest_list: str = ""
    summary: dict[str, str] = {}

    def number(self, key: str) -> int:
        """Return a count of the summary, 0 without it."""
        return int(self.summary.get(key, "0"))

    @property
    def ends(self) -> Ends:
        """Return the watermarks of the summary, by part; a whole topic's without a loop."""
        whole = self.summary.get(OFFSET_END)
        return ends_of(self.summary) if whole is None else {WHOLE: int(whole)}


class Reference(msgspec.Struct, frozen=True, rename="kebab", gc=False):
    """A branch or tag."""

    snapshot_id: int


class Field(msgspec.Struct, frozen=True, gc=False):
    """A top-level column."""

    id: int
    name: str


class Schema(msgspec.Struct, frozen=True, rename="kebab"):
    """The columns of a table at one of its schemas."""

    fields: list[Field]
    schema_id: int = 0


class TableMetadata(msgspec.Struct, frozen=True, rename="kebab"):
    """One version of a table's metadata."""

    location: str
    schemas: list[Schema] = []
    current_schema_id: int = 0
    current_snapshot_id: int | None = None
    properties: dict[str, str] = {}
    snapshots: list[Snapshot] = []
    refs: dict[str, Reference] = {}

    def ancestors(self) -> Iterator[Snapshot]:
        """Yield the snapshots of `main`, newest first, as far as they still exist."""
        by_id = {snapshot.snapshot_id: snapshot for snapshot in self.snapshots}
        main = self.refs.get(MAIN)
        following = self.current_snapshot_id if main is None else main.snapshot_id
        while following is not None:
            # Popped, so that a damaged chain that leads back to itself ends.
            snapshot = by_id.pop(following, None)
            if snapshot is None:
                return
            yield snapshot
            following = snapshot.parent_snapshot_id


_decoder: Final = msgspec.json.Decoder(TableMetadata)


def parse_metadata(data: bytes, table: TableName) -> TableMetadata:
    """Decode a table's metadata.

    Raises:
        CorruptionError: it is not Iceberg metadata.
    """
    with readable(table):
        return _decoder.decode(data)


@contextlib.contextmanager
def readable(table: TableName) -> Iterator[None]:
    """Report a value of a table's metadata that cannot be read as `CorruptionError`."""
    try:
        yield
    except (msgspec.MsgspecError, ValueError) as error:
        raise CorruptionError(
            "metadata of the table cannot be read", table=table, reason=error
        ) from error


SKIPPED: Final = "frazil.skipped"
ADOPTED: Final = "frazil.adopted"
Ranges: TypeAlias = dict[int, RangeSet]
_ranges_decoder: Final = msgspec.json.Decoder(dict[int, tuple[Range, ...]], strict=False)


def united(*sources: Mapping[int, Iterable[Range]]) -> Ranges:
    """Return the ranges of several sources, by part."""
    return {
        part: RangeSet(each for source in sources for each in source.get(part, ()))
        for part in sorted({part for source in sources for part in source})
    }


def without(ranges: Ranges, others: Ranges) -> Ranges:
    """Subtract other ranges from ranges, by part."""
    return {part: own - others.get(part, ()) for part, own in ranges.items()}


def ranges_between(lows: Ends, highs: Ends) -> Ranges:
    """Return, by part, the range between two ends; parts with nothing between are left out."""
    return {
        part: RangeSet([(lows.get(part, 0), high)])
        for part, high in sorted(highs.items())
        if high > lows.get(part, 0)
    }


def decode_ranges(properties: Mapping[str, str], key: str) -> Ranges:
    """Return the value of a table's property.

    Raises:
        CorruptionError: if that cannot be read.
    """
    try:
        found = _ranges_decoder.decode(properties.get(key, "{}"))
    except msgspec.MsgspecError as error:
        raise CorruptionError(
            "the table's declared ranges cannot be read", property=key, reason=error
        ) from error
    return {part: RangeSet(ranges) for part, ranges in found.items()}


def encode_ranges(known: Ranges, new: Ranges) -> str:
    """Return the property's text with more ranges in it."""
    return msgspec.json.encode(msgspec.to_builtins(united(known, new), str_keys=True)).decode()
