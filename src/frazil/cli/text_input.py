"""Records in text files: lines of bounded length, and how each format decodes and converts them.

Decoding needs the line alone; converting needs the topic's columns. Between the two steps a topic
that does not exist yet is created from the decoded records.
"""

from __future__ import annotations

import base64
import binascii
import csv
import datetime as dt
import re
from functools import partial
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

from frazil.errors import InvalidRequest
from frazil.schema import (
    IngestLimits,
    JsonRowReader,
    declare_schema,
    infer_schema,
    parse_csv_row,
    parse_json_row,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

__all__ = [
    "CsvRows",
    "JsonRows",
    "Line",
    "TextFormat",
    "parse_envelope",
    "parse_message",
    "read_lines",
]

SKIP_BYTES: Final = 1 << 20
BOM: Final = b"\xef\xbb\xbf"
_STAMP: Final = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?"
_CSV_TYPES: Final = [
    (re.compile(rf"(?:{pattern})\Z", re.ASCII), name)
    for pattern, name in (
        (r"[+-]?\d{1,18}", "long"),
        (r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", "double"),
        (r"(?i:true|false)", "boolean"),
        (_STAMP, "timestamp"),
        (rf"{_STAMP}(?:Z|[+-]\d\d:?\d\d)", "timestamptz"),
    )
]
"""The forms of a CSV cell, the narrowest first, and their types."""


class Line(NamedTuple):
    """One record of a text file; `decoded` is its value in the file's format."""

    number: int
    raw: bytes
    decoded: Any = None
    error: str = ""


def read_lines(
    stream: BinaryIO, *, bytes_max: int, passed: Callable[[int], None]
) -> Iterator[Line]:
    """Yield the lines of a stream without their ends; one that is too long has an error instead.

    No more than a line is in memory. `passed` is called with the bytes of each line.
    """
    for number, line in enumerate(iter(partial(stream.readline, bytes_max + 2), b""), 1):
        raw = rest = line
        passed(len(raw))
        is_long = len(raw) > bytes_max and not raw.endswith(b"\n")
        while is_long and rest and not rest.endswith(b"\n"):
            rest = stream.readline(SKIP_BYTES)
            passed(len(rest))
        if number == 1:
            raw = raw.removeprefix(BOM)
        raw = raw.removesuffix(b"\n").removesuffix(b"\r")
        if is_long:
            yield Line(number, raw[:1024], error=f"line is too long (bytes_max={bytes_max})")
        else:
            yield Line(number, raw)


class TextFormat:
    """A format with one record in each line, by default the messages of a message topic."""

    def __init__(self, decode: Callable[[bytes], Any], *, skips_blank: bool = True) -> None:
        self._decode = decode
        self._skips_blank = skips_blank

    def lines(self, lines: Iterator[Line]) -> Iterator[Line]:
        """Yield the records of a file, decoded or with an error."""
        for line in lines:
            if line.error:
                yield line
            elif line.raw.strip() or not self._skips_blank:
                try:
                    yield line._replace(decoded=self._decode(line.raw))
                except InvalidRequest as error:
                    yield line._replace(error=str(error))

    def schema(self, decoded: Sequence[Any], limits: IngestLimits) -> pa.Schema | None:
        """Return the columns for a new topic, None for a message topic."""
        del decoded, limits
        return None

    def convert(self, decoded: Any, schema: pa.Schema) -> Any:
        """Return the record for the topic; may raise `InvalidRequest`."""
        del schema
        return decoded


class JsonRows(TextFormat):
    """Each line is a JSON object: a row of a table topic."""

    _reader: tuple[pa.Schema, JsonRowReader] | None = None

    def schema(self, decoded: Sequence[Any], limits: IngestLimits) -> pa.Schema | None:
        return infer_schema(*decoded, limits=limits)

    def convert(self, decoded: Any, schema: pa.Schema) -> Any:
        if self._reader is None or self._reader[0] is not schema:
            self._reader = (schema, JsonRowReader(schema))
        return self._reader[1].convert(decoded)


def parse_message(raw: bytes, *, key_column: str | None) -> object:
    """Return a JSON object as the payload of a message; a field of it may be its key."""
    row = parse_json_row(raw)
    if key_column is None:
        return raw
    key = row.get(key_column)
    if isinstance(key, int) and not isinstance(key, bool):
        key = str(key)
    if key is not None and not isinstance(key, str):
        raise InvalidRequest("key must be a text or an integer", column=key_column)
    return {"payload": raw, "key": key}


def parse_envelope(raw: bytes) -> dict[str, object]:
    """Return a message as `frazil read` writes it: payload, key, attributes, publish_time.

    A payload is text or {"base64": "..."}. Fields that start with `_` are ignored.
    """
    row: dict[str, Any] = {
        name: value for name, value in parse_json_row(raw).items() if not name.startswith("_")
    }
    row["payload"] = _payload(row.get("payload"))
    time = row.get("publish_time")
    if isinstance(time, str):
        try:
            row["publish_time"] = dt.datetime.fromisoformat(time)
        except ValueError as error:
            raise InvalidRequest("publish_time is not ISO 8601", publish_time=time) from error
    return row


def _payload(value: object) -> bytes:
    if isinstance(value, str):
        return value.encode(errors="surrogatepass")
    if isinstance(value, dict) and list(value) == ["base64"] and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except binascii.Error as error:
            raise InvalidRequest("payload is not base64", reason=error) from error
    raise InvalidRequest('payload must be a text or {"base64": "..."}')


class CsvRows(TextFormat):
    """Rows of a table topic as RFC 4180 writes them; the first row names the columns."""

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self.names: list[str] = []

    def lines(self, lines: Iterator[Line]) -> Iterator[Line]:
        csv.field_size_limit(self._bytes_max)
        taken: list[Line] = []

        def texts() -> Iterator[str]:
            for line in lines:
                taken.append(line)
                # Invalid UTF-8 becomes lone surrogates here and is refused with its row.
                yield line.raw.decode("utf-8", "surrogateescape") + "\n"

        reader = csv.reader(texts(), strict=True)
        while True:
            first = reader.line_num + 1
            taken.clear()
            cells: list[str] = []
            try:
                cells = next(reader)
                fault = _not_utf8(cells)
            except StopIteration:
                return
            except csv.Error as error:
                fault = f"CSV is invalid: {error}"
            fault = next((line.error for line in taken if line.error), fault)
            raw = b"\n".join([line.raw for line in taken])
            if fault:
                yield Line(first, raw, error=fault)
            elif not self.names:
                self.names = _checked_header(cells)
            elif cells:
                yield Line(first, raw, decoded=cells)

    def schema(self, decoded: Sequence[Any], limits: IngestLimits) -> pa.Schema | None:
        rows = [cells for cells in decoded if len(cells) == len(self.names)]
        columns = {
            name: _csv_type([cells[index] for cells in rows])
            for index, name in enumerate(self.names)
        }
        return declare_schema(columns, limits=limits)

    def convert(self, decoded: Any, schema: pa.Schema) -> Any:
        return parse_csv_row(self.names, decoded, schema)


def _not_utf8(cells: Sequence[str]) -> str:
    try:
        "".join(cells).encode()
    except UnicodeEncodeError:
        return "text is not valid UTF-8"
    return ""


def _checked_header(cells: list[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    for name in names:
        if names.count(name) > 1:
            raise InvalidRequest("column comes twice in the CSV header", line=1, column=name)
    return names


def _csv_type(cells: Sequence[str]) -> str:
    """Return the narrowest type that all cells parse as; empty cells fit each."""
    texts = [cell.strip() for cell in cells if cell.strip()]
    for pattern, name in _CSV_TYPES:
        if texts and all(map(pattern.match, texts)):
            return name
    return "string"
