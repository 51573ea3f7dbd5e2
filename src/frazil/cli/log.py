"""`frazil log`: look into the journals without opening them for writing."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated, Any

import attrs
import typer

from frazil.cli.output import note, size_text, stamp
from frazil.cli.session import Session, session_of
from frazil.engine import (
    FrameFacts,
    JournalFacts,
    frames_of,
    inspect_journal,
    journal_directories,
    locked_for_reading,
)
from frazil.errors import CODES, Conflict, CorruptionError, NotFound, Unavailable
from frazil.fs import RealFileSystem
from frazil.log import format as fmt
from frazil.model import full_topic_name

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["app"]

app = typer.Typer(help="Look into the journals: segments, frames, damage.", no_args_is_help=True)

Force = Annotated[
    bool,
    typer.Option("--force-read", help="Look although a process writes; the end may look torn."),
]
HEAD_FIELDS = (
    *("offset", "length", "crc", "flags", "runs", "topic", "records", "schema", "lsn"),
    *("synced", "generation", "size", "time", "head_crc"),
)


@contextlib.contextmanager
def _journals(session: Session, *, force: bool) -> Iterator[list[JournalFacts]]:
    file_system, paths = RealFileSystem(), session.paths()
    with locked_for_reading(file_system, paths) as access:
        if access.writer and not force:
            raise Conflict(
                "the data directory is being written, stop that process or use --force-read",
                path=paths.root,
                holder=access.writer,
            )
        try:
            directories = journal_directories(file_system, paths)
        except OSError as error:
            raise Unavailable(
                "the directory cannot be listed", path=paths.root, error=error
            ) from error
        if not directories:
            raise NotFound("the data directory has no journal", path=paths.root)
        found = [inspect_journal(file_system, each, name=name) for name, each in directories]
        for facts in found:
            if facts.error:
                note(f"error: {facts.name} cannot be read: {facts.error}")
        yield found


def _end(found: list[JournalFacts]) -> None:
    if any(facts.error for facts in found):
        raise typer.Exit(CODES[CorruptionError].exit)


@app.command("ls")
def list_segments(context: typer.Context, force_read: Force = False) -> None:  # noqa: FBT002 - a flag
    """List the segments with their sizes, topics and offset ranges."""
    session = session_of(context)
    with _journals(session, force=force_read) as found:
        names = ("journal", "segment", "state", "size", "lsn", "created", "topics", "damage")
        rows = [row for facts in found for row in _segment_rows(facts)]
        session.table([_segment_values(facts) for facts in found], names, rows)
        _end(found)


def _segment_values(facts: JournalFacts) -> dict[str, Any]:
    segments = []
    for segment in facts.segments:
        values = attrs.asdict(segment, recurse=False)
        values["topics"] = [each._asdict() for each in segment.topics]
        segments.append({**values, "created": stamp(segment.created_us)})
    return {"name": facts.name, "journal_id": facts.journal_id, "segments": segments}


def _segment_rows(facts: JournalFacts) -> Iterator[tuple[object, ...]]:
    for segment in facts.segments:
        topics = [f"{each.topic} {each.first}..{each.end - 1}" for each in segment.topics]
        if len(topics) > 3:
            topics = [*topics[:3], f"and {len(topics) - 3} more"]
        yield (
            facts.name,
            segment.id,
            "sealed" if segment.sealed else "open",
            size_text(segment.bytes),
            f"{segment.lsn_first}..{segment.lsn_last}",
            stamp(segment.created_us),
            ", ".join(topics),
            "; ".join(segment.damage),
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
    with _journals(session, force=force_read) as found:
        rows: list[dict[str, Any]] = []
        for facts, frame in _frames(found, segment, wanted):
            rows.append(_frame_values(facts, frame))
            if len(rows) >= limit:
                break
        names = list(rows[0]) if rows else []
        session.table(rows, names, [list(row.values()) for row in rows])
        _end(found)


def _frames(
    found: list[JournalFacts], segment: int | None, topic: str | None
) -> Iterator[tuple[JournalFacts, FrameFacts]]:
    known = {info["name"] for facts in found for info in facts.topics.values()}
    if topic is not None and topic not in known:
        raise NotFound("the log knows no such topic", topic=topic)
    for facts in found:
        ids = {topic_id for topic_id, info in facts.topics.items() if info["name"] == topic}
        for each in facts.survey.found if facts.survey is not None else ():
            if segment is not None and each.segment.id != segment:
                continue
            for frame in frames_of(each):
                if topic is None or (frame.head is not None and frame.head.topic in ids):
                    yield facts, frame


def _frame_values(facts: JournalFacts, frame: FrameFacts) -> dict[str, Any]:
    head = frame.head
    values: dict[str, Any] = {
        "journal": facts.name,
        "segment": frame.segment,
        "position": frame.position,
        "bytes": frame.bytes,
        "kind": frame.fault if head is None else fmt.KIND_NAMES.get(head.kind, str(head.kind)),
    }
    for name in HEAD_FIELDS:
        values[name] = None if head is None else getattr(head, name)
    if head is not None:
        values["time"] = stamp(head.time)
        values["topic"] = facts.topics.get(head.topic, {}).get("name", head.topic or None)
    return values
