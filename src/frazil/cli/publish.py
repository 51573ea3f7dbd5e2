"""`frazil publish`: records from files or stdin into a topic."""

from __future__ import annotations

import contextlib
import io
import os.path
import sys
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final, Literal, NamedTuple

import typer

from frazil.cli.arrow_files import arrow_batches, parquet_batches
from frazil.cli.output import note, progress_bar, to_json
from frazil.cli.publishing import OnError, Publisher, Reject, Stopped
from frazil.cli.session import Session, session_of
from frazil.cli.text_input import (
    CsvRows,
    JsonRows,
    TextFormat,
    parse_envelope,
    parse_message,
    read_lines,
)
from frazil.errors import CODES, InvalidRequest, NotFound, Unavailable
from frazil.model import full_topic_name
from frazil.schema import parse_json_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["Wanted", "format_of", "publish", "text_format"]

Format = Literal["auto", "ndjson", "csv", "parquet", "arrow", "lines"]
STDIN: Final = "<stdin>"
SUFFIXES: Final[dict[str, Format]] = {
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".json": "ndjson",
    ".csv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".arrows": "arrow",
    ".ipc": "arrow",
    ".feather": "arrow",
    ".txt": "lines",
    ".log": "lines",
}
BATCH_MAX: Final = 100_000
_MISFITS: Final = {
    ("table", "lines"): "a table topic takes rows, not lines",
    ("message", "csv"): "a message topic takes lines or NDJSON, not CSV",
}


def publish(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="The topic; an absent one is created.")],
    files: Annotated[
        list[str] | None, typer.Argument(help="Files; stdin without any, or as `-`.")
    ] = None,
    file_format: Annotated[
        Format, typer.Option("--format", "-f", help="`auto` goes by the suffix and the topic.")
    ] = "auto",
    on_error: Annotated[
        OnError | None, typer.Option("--on-error", help="What a bad row does; stop without it.")
    ] = None,
    reject_file: Annotated[
        str | None, typer.Option("--reject-file", help="Where bad rows go, as NDJSON.")
    ] = None,
    batch: Annotated[
        int, typer.Option("--batch", min=1, max=BATCH_MAX, help="Rows published at once.")
    ] = 1000,
    key_column: Annotated[
        str | None, typer.Option("--key-column", help="Field of a JSON message that is its key.")
    ] = None,
    envelope: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--envelope", help="NDJSON has payload, key, attributes as fields.")
    ] = False,
    ack: Annotated[
        str | None, typer.Option("--ack", help="received, fsynced, uploaded or committed.")
    ] = None,
    producer: Annotated[
        str | None, typer.Option("--producer", help="Publish each row once, also when run again.")
    ] = None,
) -> None:
    """Publish records from files or stdin.

    With --on-error stop the batches before the first bad row are published, and no record of its
    batch. With skip and reject-file all good rows are published.
    """
    session = session_of(context)
    full_topic_name(topic)
    on_error = on_error or ("reject-file" if reject_file is not None else "stop")
    if (on_error == "reject-file") != (reject_file is not None):
        raise InvalidRequest("--on-error reject-file and --reject-file PATH belong together")
    wanted = Wanted(file_format, key_column, envelope)
    with (
        _reject_writer(reject_file) as reject,
        session.engine(create=True, lake=True) as engine,
    ):
        publisher = Publisher(engine, topic, on_error, batch, ack, producer, on_reject=reject)
        is_whole = False
        try:
            for file in files or ["-"]:
                _publish_file(publisher, file, wanted)
            is_whole = True
        except Stopped as error:
            note(
                f"error: stopped at {error.reject.file}:{error.reject.number}; nothing of its "
                "batch was published, what is counted as accepted was; correct the row, or use "
                "--on-error skip or --reject-file PATH"
            )
            raise typer.Exit(CODES[InvalidRequest].exit) from None
        finally:
            _report(publisher, session, is_whole=is_whole)


class Wanted(NamedTuple):
    """The format that the options request."""

    name: Format = "auto"
    key_column: str | None = None
    envelope: bool = False

    @property
    def is_message(self) -> bool:
        """Return whether an option for NDJSON messages is set."""
        return self.envelope or self.key_column is not None


def text_format(wanted: Wanted, name: Format, kind: str, bytes_max: int) -> TextFormat:
    """Return the reader of a text format for a kind of topic."""
    if wanted.is_message and (kind == "table" or name != "ndjson"):
        raise InvalidRequest(
            "--envelope and --key-column are for NDJSON into a message topic", format=name
        )
    if (kind, name) in _MISFITS:
        raise InvalidRequest(_MISFITS[kind, name], format=name)
    if wanted.envelope:
        return TextFormat(parse_envelope)
    if name == "lines":
        return TextFormat(bytes, skips_blank=False)
    if name == "csv":
        return CsvRows(bytes_max=bytes_max)
    if wanted.is_message or kind == "message":
        return TextFormat(partial(parse_message, key_column=wanted.key_column))
    return JsonRows(parse_json_row)


def format_of(wanted: Wanted, *, file: str, kind: str, first: bytes) -> Format:
    """Return a file's format: by the option, its suffix, the topic, or its first bytes."""
    if wanted.name != "auto":
        return wanted.name
    suffix = os.path.splitext(file)[1].lower()
    if suffix in SUFFIXES:
        return SUFFIXES[suffix]
    kind = kind or ("table" if first.lstrip()[:1] == b"{" else "message")
    return "ndjson" if wanted.is_message or kind == "table" else "lines"


def _publish_file(publisher: Publisher, file: str, wanted: Wanted) -> None:
    shown = STDIN if file == "-" else file
    bytes_max = publisher.engine.settings.topics.message_bytes_max * 2
    with _opened(file) as (stream, size), progress_bar() as bar:
        passed = partial(bar.advance, bar.add_task(shown, total=size))
        name = format_of(
            wanted,
            file="" if file == "-" else file,
            kind=publisher.kind,
            first=stream.peek(64),
        )
        read = {"parquet": parquet_batches, "arrow": arrow_batches}.get(name)
        try:
            if read is not None:
                found = read(stream, file=shown, rows_max=publisher.batch, passed=passed)
                publisher.batches(shown, found)
            else:
                lines = read_lines(stream, bytes_max=bytes_max, passed=passed)
                publisher.rows(shown, lines, text_format(wanted, name, publisher.kind, bytes_max))
        except InvalidRequest as error:
            raise InvalidRequest(error.message, **{"file": shown, **error.details}) from error
        except OSError as error:
            raise Unavailable("file cannot be read", file=shown, reason=error) from error


@contextlib.contextmanager
def _opened(file: str) -> Iterator[tuple[Any, int | None]]:
    if file == "-":
        stdin: Any = sys.stdin.buffer
        yield stdin if hasattr(stdin, "peek") else io.BufferedReader(stdin), None
        return
    try:
        stream: BinaryIO = open(file, "rb")  # noqa: SIM115 - closed below, after the errors of opening
        size = stream.seek(0, 2) if stream.seekable() else None
        if size is not None:
            stream.seek(0)
    except FileNotFoundError as error:
        raise NotFound("file does not exist", file=file) from error
    except (OSError, ValueError) as error:
        raise InvalidRequest("file cannot be opened", file=file, reason=error) from error
    with stream:
        yield stream, size


@contextlib.contextmanager
def _reject_writer(path: str | None) -> Iterator[Callable[[Reject], None]]:
    if path is None:
        yield lambda _reject: None
        return
    try:
        target = open(path, "w", encoding="utf-8")  # noqa: SIM115 - closed below, after the errors of opening
    except OSError as error:
        raise InvalidRequest("reject file cannot be written", file=path, reason=error) from error

    def write(reject: Reject) -> None:
        named = reject._asdict()
        target.write(to_json({"line": named.pop("number"), **named}) + "\n")

    with target:
        yield write


def _report(publisher: Publisher, session: Session, *, is_whole: bool) -> None:
    """Print the counts; rejected rows with their numbers go to stderr."""
    topic = full_topic_name(publisher.name)
    summary: dict[str, object] = {
        "topic": topic,
        "created": publisher.created,
        "accepted": publisher.accepted,
        "already_published": publisher.already,
        "rejected": publisher.rejected,
        "offset_first": publisher.offset_first,
        "offset_last": publisher.offset_last,
        "errors": [
            {"file": file, "line": number, "reason": reason}
            for file, number, reason, _original in publisher.rejects
        ],
        "stopped": not is_whole,
    }
    for file, number, reason, _original in publisher.rejects:
        note(f"rejected: {file}:{number}: {reason}")
    if publisher.rejected > len(publisher.rejects):
        note(f"rejected: {publisher.rejected - len(publisher.rejects)} more")
    text = f"{publisher.accepted} accepted, {publisher.rejected} rejected"
    if publisher.already:
        text += f", {publisher.already} published by an earlier run"
    if publisher.created:
        text += f"; topic {topic} was created"
    session.show(summary, text)
