"""`frazil publish`: records from files or stdin into a topic."""

from __future__ import annotations

import contextlib
import io
import sys
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final, Literal

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from frazil.cli.arrow_files import arrow_batches, parquet_batches
from frazil.cli.output import console, note, print_json, to_json
from frazil.cli.publishing import OnError, Publisher, PublishOptions, Reject, Stopped
from frazil.cli.session import Session, session_of
from frazil.cli.text_input import (
    CsvRows,
    Envelopes,
    JsonMessages,
    JsonRows,
    RawLines,
    TextFormat,
    read_lines,
)
from frazil.errors import CODES, FrazilError, InvalidRequest, NotFound, Unavailable
from frazil.model import full_topic_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["format_of", "publish"]

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

    With --on-error stop nothing of the batch that holds the first bad row is published; the
    batches before it are. With skip and reject-file all good rows are.
    """
    session = session_of(context)
    full_topic_name(topic)
    if reject_file is not None and on_error is None:
        on_error = "reject-file"
    if (on_error == "reject-file") != (reject_file is not None):
        raise InvalidRequest("--on-error reject-file and --reject-file PATH belong together")
    options = PublishOptions(on_error=on_error or "stop", batch=batch, ack=ack, producer=producer)
    choice = _Choice(file_format, key_column=key_column, envelope=envelope)
    with contextlib.ExitStack() as stack:
        reject = stack.enter_context(_reject_writer(reject_file))
        engine = stack.enter_context(session.engine(create=True, lake=True))
        publisher = Publisher(engine, topic, options, on_reject=reject)
        stopped = _run(publisher, files or ["-"], choice, session)
    if stopped is not None:
        raise typer.Exit(CODES[InvalidRequest].exit)


class _Choice:
    """The format that was asked for, and what it means for a file and a topic."""

    def __init__(self, name: Format, *, key_column: str | None, envelope: bool) -> None:
        self.name = name
        self.key_column = key_column
        self.envelope = envelope

    def text(self, name: Format, kind: str, bytes_max: int) -> TextFormat:
        """Return the reader of a text format for a kind of topic."""
        if self.envelope or self.key_column is not None:
            if kind == "table" or name != "ndjson":
                raise InvalidRequest(
                    "--envelope and --key-column are for NDJSON into a message topic", format=name
                )
            return Envelopes() if self.envelope else JsonMessages(self.key_column)
        if name == "lines":
            if kind == "table":
                raise InvalidRequest("a table topic takes rows, not lines", format=name)
            return RawLines()
        if name == "ndjson":
            return JsonMessages(None) if kind == "message" else JsonRows()
        if kind == "message":
            raise InvalidRequest("a message topic takes lines or NDJSON, not CSV", format=name)
        return CsvRows(bytes_max=bytes_max)


def format_of(name: Format, *, file: str, kind: str, first: bytes, message: bool) -> Format:
    """Return the format of a file: the one asked for, by suffix, by topic, or by its first bytes."""
    if name != "auto":
        return name
    suffix = file[file.rfind(".") :].lower() if "." in file else ""
    if suffix in SUFFIXES:
        return SUFFIXES[suffix]
    if message:
        return "ndjson"
    if kind:
        return "lines" if kind == "message" else "ndjson"
    return "ndjson" if first.lstrip()[:1] == b"{" else "lines"


def _run(
    publisher: Publisher, files: list[str], choice: _Choice, session: Session
) -> Stopped | None:
    """Publish all files; what was published is told whatever happens."""
    stopped: Stopped | None = None
    failed: FrazilError | None = None
    try:
        for file in files:
            _publish_file(publisher, file, choice)
    except Stopped as error:
        stopped = error
    except FrazilError as error:
        failed = error
        raise
    finally:
        _tell(publisher, session, stopped, failed)
    return stopped


def _publish_file(publisher: Publisher, file: str, choice: _Choice) -> None:
    shown = STDIN if file == "-" else file
    bytes_max = publisher.engine.settings.topics.message_bytes_max * 2
    with _opened(file) as (stream, size), _progress(shown, size) as passed:
        first = stream.peek(64)
        name = format_of(
            choice.name,
            file="" if file == "-" else file,
            kind=publisher.kind,
            first=first,
            message=choice.envelope or choice.key_column is not None,
        )
        rows = publisher.options.batch
        try:
            if name == "parquet":
                found = parquet_batches(stream, file=shown, rows_max=rows, passed=passed)
                publisher.batches(shown, found)
            elif name == "arrow":
                found = arrow_batches(stream, file=shown, rows_max=rows, passed=passed)
                publisher.batches(shown, found)
            else:
                lines = read_lines(stream, bytes_max=bytes_max, passed=passed)
                publisher.rows(shown, lines, choice.text(name, publisher.kind, bytes_max))
        except InvalidRequest as error:
            details = {"file": shown, **error.details}
            raise InvalidRequest(error.message, **details) from error
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
def _progress(file: str, size: int | None) -> Iterator[Callable[[int], None]]:
    """Show a bar on stderr if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda _count: None
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    with Progress(*columns, console=console(stderr=True), transient=True) as progress:
        task = progress.add_task(file, total=size)
        yield lambda count: progress.advance(task, count)


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
        line = {
            "file": reject.file,
            "line": reject.number,
            "reason": reject.reason,
            "original": reject.original,
        }
        target.write(to_json(line) + "\n")

    with target:
        yield write


def _tell(
    publisher: Publisher, session: Session, stopped: Stopped | None, failed: FrazilError | None
) -> None:
    """Print the counts; rejected rows with their numbers go to stderr."""
    summary: dict[str, object] = {
        "topic": full_topic_name(publisher.name),
        "created": publisher.created,
        "accepted": publisher.accepted,
        "already_published": publisher.already,
        "rejected": publisher.rejected,
        "offset_first": publisher.offset_first,
        "offset_last": publisher.offset_last,
        "errors": [
            {"file": each.file, "line": each.number, "reason": each.reason}
            for each in publisher.rejects
        ],
        "stopped": stopped is not None or failed is not None,
    }
    for each in publisher.rejects:
        note(f"rejected: {each.file}:{each.number}: {each.reason}")
    hidden = publisher.rejected - len(publisher.rejects)
    if hidden:
        note(f"rejected: {hidden} more")
    if session.as_json:
        print_json(summary)
    else:
        typer.echo(_sentence(publisher))
    if stopped is not None:
        note(
            f"error: stopped at {stopped.reject.file}:{stopped.reject.number}; nothing of its "
            "batch was published, what is counted as accepted was; mend the row, or use "
            "--on-error skip or --reject-file PATH"
        )


def _sentence(publisher: Publisher) -> str:
    text = f"{publisher.accepted} accepted, {publisher.rejected} rejected"
    if publisher.already:
        text += f", {publisher.already} published by an earlier run"
    if publisher.created:
        text += f"; topic {full_topic_name(publisher.name)} was created"
    return text
