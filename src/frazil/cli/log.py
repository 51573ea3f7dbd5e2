"""`frazil log`: read the journal without opening it for writing."""

from __future__ import annotations

import contextlib
from itertools import chain, islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.output import note, size_text, stamp
from frazil.cli.session import Session, session_of
from frazil.engine import (
    FrameFacts,
    JournalFacts,
    frames_of,
    inspect_journal,
    locked_for_reading,
)
from frazil.errors import CODES, Conflict, CorruptionError, NotFound, Unavailable
from frazil.fs import RealFileSystem
from frazil.log import format as fmt
from frazil.model import full_topic_name

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["app"]

app = typer.Typer(help="Look into the journal: segments, frames, damage.", no_args_is_help=True)

Force = Annotated[
    bool,
    typer.Option("--force-read", help="Look although a process writes; the end may look torn."),
]
HEAD_FIELDS = (
    *("offset", "length", "crc", "flags", "runs", "topic", "records", "schema", "lsn"),
    *("synced", "generation", "size", "time", "head_crc"),
)


@contextlib.contextmanager
def _journal(session: Session, *, force: bool) -> Iterator[JournalFacts]:
    file_system, paths = RealFileSystem(), session.paths()
    with locked_for_reading(file_system, paths) as access:
        if access.writer and not force:
            raise Conflict(
                "the data directory is being written, stop that process or use --force-read",
                path=paths.root,
                holder=access.writer,
            )
        try:
            facts = inspect_journal(file_system, paths)
        except OSError as error:
            raise Unavailable(
                "the directory cannot be listed", path=paths.root, error=error
            ) from error
        if facts is None:
            raise NotFound("the data directory has no journal", path=paths.root)
        yield facts
    if facts.error:
        note(f"error: the journal cannot be read: {facts.error}")
        raise typer.Exit(CODES[CorruptionError].exit)


@app.command("ls")
def list_segments(context: typer.Context, force_read: Force = False) -> None:  # noqa: FBT002 - a flag
    """List the segments with their sizes, topics and offset ranges."""
    session = session_of(context)
    with _journal(session, force=force_read) as facts:
        segments = [{**each, "created": stamp(each["created_us"])} for each in facts.segments]
        value = {"journal_id": facts.journal_id, "segments": segments}
        names = ("segment", "state", "size", "lsn", "created", "topics", "damage")
        session.table(value, names, [_segment_row(each) for each in segments])


def _segment_row(segment: dict[str, Any]) -> tuple[object, ...]:
    topics = [f"{each['topic']} {each['first']}..{each['end'] - 1}" for each in segment["topics"]]
    if len(topics) > 3:
        topics = [*topics[:3], f"and {len(topics) - 3} more"]
    return (
        segment["id"],
        "sealed" if segment["sealed"] else "open",
        size_text(segment["bytes"]),
        f"{segment['lsn_first']}..{segment['lsn_last']}",
        segment["created"],
        ", ".join(topics),
        "; ".join(segment["damage"]),
    )


@app.command()
def dump(
    context: typer.Context,
    segment: Annotated[int | None, typer.Option("--segment", help="Only this segment.")] = None,
    topic: Annotated[str | None, typer.Option("--topic", help="Only frames of this topic.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="So many frames.")] = 100,
    force_read: Force = False,  # noqa: FBT002 - a flag
) -> None:
    """Show frames with all fields of their heads."""
    session = session_of(context)
    wanted = None if topic is None else full_topic_name(topic)
    with _journal(session, force=force_read) as facts:
        frames = islice(_frames(facts, segment, wanted), limit)
        rows = [_frame_values(facts, frame) for frame in frames]
        names = list(rows[0]) if rows else []
        session.table(rows, names, [list(row.values()) for row in rows])


def _frames(facts: JournalFacts, segment: int | None, topic: str | None) -> Iterator[FrameFacts]:
    ids = {topic_id for topic_id, info in facts.topics.items() if info["name"] == topic}
    if topic is not None and not ids:
        raise NotFound("the log knows no such topic", topic=topic)
    if facts.survey is None:
        return
    chosen = [each for each in facts.survey.found if segment in {None, each.segment.id}]
    for frame in chain.from_iterable(map(frames_of, chosen)):
        if topic is None or getattr(frame.head, "topic", None) in ids:
            yield frame


def _frame_values(facts: JournalFacts, frame: FrameFacts) -> dict[str, Any]:
    head = frame.head
    values: dict[str, Any] = {
        "segment": frame.segment,
        "position": frame.position,
        "bytes": frame.bytes,
        "kind": frame.fault if head is None else fmt.KIND_NAMES.get(head.kind, str(head.kind)),
    }
    for name in HEAD_FIELDS:
        values[name] = getattr(head, name, None)
    if head is not None:
        values["time"] = stamp(head.time)
        values["topic"] = facts.topics.get(head.topic, {}).get("name", head.topic or None)
    return values
