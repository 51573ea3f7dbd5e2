"""Inspect the journal of a data directory without changing it: segments, frames, damage."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs

from frazil.errors import CorruptionError, FrazilError, NotFound, Unavailable
from frazil.fs import LockTaken, read_fully
from frazil.log import RANGE_LOST, Found, OpenFiles, Scan, Scanner, Survey, body_hash, read_footer
from frazil.log import format as fmt
from frazil.offsets import RangeSet

if TYPE_CHECKING:
    from collections.abc import Iterator

    from frazil.fs import File, FileSystem
    from frazil.log import DataDirectory, Footer, TopicState
    from frazil.log.index import TopicEntry

__all__ = [
    "Access",
    "FrameFacts",
    "JournalFacts",
    "LostRange",
    "frames_of",
    "inspect_journal",
    "locked_for_reading",
    "verify_segment",
]

OPEN_FILES_MAX = 16


class LostRange(NamedTuple):
    """Offsets `[first, end)` of a topic that were acked and cannot be read any more."""

    topic_id: int
    topic: str
    first: int
    end: int
    reason: str


@attrs.define
class JournalFacts:
    """The state of a data directory's journal."""

    directory: str
    journal_id: str = ""
    lsn: int = 0
    segments: list[dict[str, Any]] = attrs.Factory(list)
    """Each segment file with its topics' offsets `[first, end)` in it, ready for JSON."""
    topics: dict[int, dict[str, Any]] = attrs.Factory(dict)
    bytes_torn: int = 0
    warnings: list[str] = attrs.Factory(list)
    lost: list[LostRange] = attrs.Factory(list)
    hopeless: list[str] = attrs.Factory(list)
    """Files in which neither the header nor any frame is valid."""
    error: str = ""
    """The error if the journal could not be read at all."""
    survey: Survey | None = None


class Access(NamedTuple):
    """Whether a directory can be inspected without a writer."""

    writer: str = ""
    """The process that has the directory open; empty if there is none."""
    fault: str = ""
    """The error if the lock could not be taken."""


@contextlib.contextmanager
def locked_for_reading(file_system: FileSystem, paths: DataDirectory) -> Iterator[Access]:
    """Keep writers out while a directory is inspected, or name its writer.

    No file is created: without a lock file there is no writer.

    Raises:
        NotFound: if there is no such directory.
    """
    access, handle = Access(), None
    try:
        found = file_system.stat(paths.root)
        if found is None or not found.is_directory:
            raise NotFound("there is no data directory, choose one with --data", path=paths.root)
        if file_system.stat(paths.lock) is not None:
            handle = file_system.lock(paths.lock, f"pid={os.getpid()} inspecting")
    except LockTaken as error:
        access = Access(writer=error.holder or "another process")
    except OSError as error:
        access = Access(fault=str(error))
    try:
        yield access
    finally:
        if handle is not None:
            handle.release()


def inspect_journal(file_system: FileSystem, paths: DataDirectory) -> JournalFacts | None:
    """Survey the journal; faults are part of the result. None if there is no journal.

    Raises:
        OSError: if the data directory cannot be read.
    """
    directory = paths.journal
    if file_system.stat(directory) is None:
        return None
    survey = Survey(
        file_system,
        directory,
        files=OpenFiles(file_system, count_max=OPEN_FILES_MAX),
    )
    try:
        survey.run()
    except (FrazilError, OSError) as error:
        return JournalFacts(directory, error=str(error))
    report, topics = survey.report, survey.state.topics.values()
    facts = JournalFacts(
        directory,
        journal_id=survey.found[-1].header.journal.hex() if survey.found else "",
        lsn=survey.state.lsn,
        topics={topic.id: _topic_facts(topic) for topic in topics},
        bytes_torn=report.bytes_torn,
        warnings=list(report.warnings),
        lost=[
            LostRange(topic.id, topic.spec.name, special.first, special.end, special.reason)
            for topic in topics
            for special in topic.ranges
            if special.kind == RANGE_LOST
        ],
        hopeless=list(report.quarantined),
        survey=survey,
    )
    facts.segments = [_segment_facts(found, facts) for found in survey.found]
    return facts


def _topic_facts(topic: TopicState) -> dict[str, Any]:
    return {
        "name": topic.spec.name,
        "partitions": topic.spec.partitions,
        "deleted": bool(topic.spec.deleted_us),
        "start": topic.start,
        "next": topic.next,
    }


def _segment_facts(found: Found, facts: JournalFacts) -> dict[str, Any]:
    segment, header = found.segment, found.header
    ranges = []
    for topic_id in sorted(segment.topics):
        summary = segment.summary(topic_id)
        if summary is not None:
            first, end, size, *_ = summary
            named = {"topic_id": topic_id, "topic": _topic_name(facts, topic_id)}
            ranges.append({**named, "first": first, "end": end, "bytes": size})
    return {
        "id": segment.id,
        "path": found.path,
        "bytes": found.size,
        "body_end": segment.body_end,
        "sealed": found.sealed,
        "generation": header.generation,
        "format_version": header.format_version,
        "lsn_first": header.previous_lsn + 1,
        "lsn_last": segment.lsn_last,
        "created_us": header.created_us,
        "topics": ranges,
        "damage": list(found.damaged),
    }


def _topic_name(facts: JournalFacts, topic_id: int) -> str:
    return str(facts.topics.get(topic_id, {}).get("name", topic_id))


# -- frames --------------------------------------------------------------------------------------


class FrameFacts(NamedTuple):
    """One frame of a segment, or a damaged range: then `fault` has the reason."""

    segment: int
    position: int
    bytes: int
    head: fmt.FrameHead | None
    fault: str = ""


def _scan(found: Found, file: File) -> Scan:
    header = found.header
    return Scanner(
        file,
        salt=header.salt,
        generation=header.generation,
        start=fmt.SEGMENT_HEADER_BYTES,
        end=min(found.segment.body_end, file.size()),
        lsn=header.previous_lsn,
    ).run()


def frames_of(found: Found) -> Iterator[FrameFacts]:
    """Yield all frames of a segment in order, and the damaged ranges between them.

    Raises:
        Unavailable: if the file cannot be read.
    """
    try:
        file = found.segment.file()
        faults = _scan(found, file).faults
        position = fmt.SEGMENT_HEADER_BYTES
        end = min(found.segment.body_end, file.size())
        while position + fmt.FRAME_HEAD_BYTES <= end:
            while faults and faults[0].end <= position:
                faults.pop(0)
            if faults and faults[0].position <= position:
                fault = faults.pop(0)
                size = fault.end - position
                yield FrameFacts(found.segment.id, position, size, None, fault.reason)
                position = fault.end
                continue
            head = fmt.read_head(read_fully(file, position, fmt.FRAME_HEAD_BYTES), 0)
            size = fmt.FRAME_PREFIX_BYTES + head.length
            yield FrameFacts(found.segment.id, position, size, head)
            position += size
    except OSError as error:
        raise Unavailable("segment cannot be read", path=found.path, error=error) from error


# -- verification --------------------------------------------------------------------------------


def verify_segment(
    facts: JournalFacts, found: Found, successor: Found | None
) -> tuple[int, list[str], list[LostRange]]:
    """Read a whole segment; return its number of frames, its problems and its lost ranges.

    Checks every frame's CRC, the hash of a sealed segment, and that its successor continues it.
    """
    problems = list(found.damaged)
    lost: list[LostRange] = []
    try:
        file = found.segment.file()
        scan = _scan(found, file)
        problems += [
            text
            for fault in scan.faults
            if (text := f"bytes {fault.position}..{fault.end}: {fault.reason}") not in problems
        ]
        footer = read_footer(file) if found.sealed else None
        if footer is not None:
            if body_hash(file, footer.body_end) != footer.sha256:
                problems.append("content does not match the hash in its footer")
            if problems:
                lost = _lost_in_sealed(facts, footer, scan)
    except (OSError, CorruptionError) as error:
        return 0, [*problems, f"cannot be read: {error}"], lost
    if successor is not None:
        problems += _chain_problems(found, successor)
    return scan.frames, problems, lost


def _chain_problems(found: Found, successor: Found) -> list[str]:
    header = successor.header
    if successor.header_damaged:
        return []
    if header.previous_segment != found.segment.id:
        return [f"its successor {found.segment.id + 1} is missing"]
    if header.previous_length != found.segment.body_end:
        return [f"ends at {found.segment.body_end}, its successor says {header.previous_length}"]
    if not found.damaged and header.previous_lsn != found.segment.lsn_last:
        return [f"ends at lsn {found.segment.lsn_last}, its successor says {header.previous_lsn}"]
    return []


def _lost_in_sealed(facts: JournalFacts, footer: Footer, scan: Scan) -> list[LostRange]:
    """Compare the offsets of a footer with those of the intact frames."""
    lost: list[LostRange] = []
    survey = facts.survey
    assert survey is not None
    for entry in footer.topics:
        state = survey.state.topics.get(entry.topic)
        known = [] if state is None else [special[:2] for special in state.ranges]
        start = 0 if state is None else state.start
        for first, end in _holes(entry, scan):
            lost += [
                LostRange(entry.topic, _topic_name(facts, entry.topic), low, high, "damaged")
                for low, high in RangeSet(known).missing(max(first, start), end)
            ]
    return lost


def _holes(entry: TopicEntry, scan: Scan) -> list[tuple[int, int]]:
    """Return the offsets of a topic in a segment that no intact frame has."""
    index = scan.indexes.get(entry.topic)
    if index is None or not index.count:
        return [(entry.first, entry.end)]
    breaks = [(first, end) for topic, first, end, _at in scan.breaks if topic == entry.topic]
    return sorted([*breaks, (entry.first, index.first), (index.end, entry.end)])
