"""The records of the guided run: they carry who wrote them, a number and a checksum. Pure."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa

__all__ = ["CITIES", "COLUMNS", "Fields", "Tally", "encode_message", "encode_row", "fields_of"]

FILLER: Final = b"." * 64
COLUMNS: Final = {
    "writer": "long not null",
    "number": "long not null",
    "city": "string",
    "celsius": "double",
    "checksum": "long not null",
}
CITIES: Final = ("Tromsø", "Yakutsk", "Ushuaia", "Sapporo", "Nuuk")

Fields = tuple[int, int, bool]
"""writer, number, whether the content is what was written"""


def encode_message(writer: int, number: int) -> bytes:
    """Return the payload of a message."""
    text = b"%d %d %b" % (writer, number, FILLER)
    return b"%08x %b" % (zlib.crc32(text), text)


def encode_row(writer: int, number: int) -> dict[str, object]:
    """Return a row of the table topic."""
    city = CITIES[number % len(CITIES)]
    celsius = (number * 7 % 600 - 300) / 10
    checksum = _checksum(writer, number, city, celsius)
    return {
        "writer": writer,
        "number": number,
        "city": city,
        "celsius": celsius,
        "checksum": checksum,
    }


def _checksum(*values: object) -> int:
    return zlib.crc32(repr(values).encode())


def fields_of(batch: pa.RecordBatch) -> Iterator[Fields]:
    """Yield writer and number of each record, and whether its checksum fits."""
    if "payload" in batch.schema.names:
        for payload in batch.column("payload").to_pylist():
            yield _message_fields(payload)
        return
    columns = [batch.column(name).to_pylist() for name in COLUMNS]
    for writer, number, city, celsius, checksum in zip(*columns, strict=True):
        yield writer, number, checksum == _checksum(writer, number, city, celsius)


def _message_fields(payload: bytes) -> Fields:
    checksum, _, text = payload.partition(b" ")
    parts = text.split(b" ", 2)
    if len(parts) != 3 or b"%08x" % zlib.crc32(text) != checksum:
        return -1, -1, False
    return int(parts[0]), int(parts[1]), True


@attrs.define
class Tally:
    """What reading a topic back found, compared with what was acked."""

    acked_end: int = 0
    """The offset behind the last record that the ledger knows to be acked."""
    first: int | None = None
    offset_next: int = 0
    records: int = 0
    acked: int = 0
    last: dict[int, int] = attrs.Factory(dict)
    """The last number of each writer."""
    problems: list[str] = attrs.Factory(list)

    def take(self, batch: pa.RecordBatch, offset: int) -> None:
        """Check the records of the next batch: content, order, and that none is missing or twice."""
        if self.first is None:
            self.first = self.offset_next = offset
        if offset != self.offset_next:
            self._problem(f"offsets {self.offset_next}..{offset - 1} are missing")
        for index, fields in enumerate(self._fields(batch)):
            if fields is None:
                continue
            writer, number, is_whole = fields
            if not is_whole:
                self._problem(f"offset {offset + index}: the content is not what was written")
                continue
            expected = self.last.get(writer, number - 1) + 1
            if number != expected:
                self._problem(
                    f"offset {offset + index}: writer {writer} has number {number}, not {expected}"
                )
            self.last[writer] = number
        self.records += batch.num_rows
        self.acked += max(0, min(batch.num_rows, self.acked_end - offset))
        self.offset_next = offset + batch.num_rows

    def _fields(self, batch: pa.RecordBatch) -> Iterator[Fields | None]:
        """Yield the fields of each record; None if they cannot be known."""
        return fields_of(batch)

    def finish(self) -> None:
        """Check that the topic reaches as far as the ledger."""
        if self.offset_next < self.acked_end:
            self._problem(f"acked up to {self.acked_end - 1}, the topic ends at {self.offset_next}")

    def _problem(self, text: str) -> None:
        if len(self.problems) < 20:
            self.problems.append(text)
