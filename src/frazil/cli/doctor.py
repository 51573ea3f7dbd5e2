"""`frazil doctor`: say what is wrong with a data directory and what to do; never a traceback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import attrs
import typer

from frazil.cli.doctor_objects import doctor_objects
from frazil.cli.output import print_json, print_table
from frazil.cli.session import session_of
from frazil.engine import Report, examine, oldest_kept_by
from frazil.errors import CODES, CorruptionError, InvalidRequest
from frazil.fs import RealFileSystem

if TYPE_CHECKING:
    from frazil.engine import JournalFacts

__all__ = ["doctor"]


def doctor(
    context: typer.Context,
    quick: Annotated[bool, typer.Option("--quick", help="Do not read sealed segments.")] = False,  # noqa: FBT002 - a flag
    objects: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--objects", help="Try the object store instead.")
    ] = False,
) -> None:
    """Say what is wrong with the data directory, what is lost, and what to do.

    Nothing is changed. The exit code is 0, also with warnings, and 8 if acked data is damaged or
    lost. With --objects the store of the settings is tried instead: a
    wrong setting is named, with the exit code 2, and 5 if the store cannot be reached.
    """
    session = session_of(context)
    settings = session.settings()
    if objects:
        if quick:
            raise InvalidRequest("--objects goes with no other option of doctor")
        doctor_objects(settings, as_json=session.as_json)
        return
    file_system = RealFileSystem()
    report = examine(settings, file_system=file_system, read_all=not quick)
    for facts in report.journals:
        for kept in _kept(facts):
            what = f"the oldest segment is kept by hold {kept['hold']} of {kept['topic']}"
            advice = "advance or drop the hold if nothing needs it any more"
            report.add("info", facts.name, f"{what} at offset {kept['offset']}", advice)
    if session.as_json:
        print_json(_values(report))
    else:
        _print(report)
    if report.health == "damaged":
        raise typer.Exit(CODES[CorruptionError].exit)


def _kept(facts: JournalFacts) -> list[dict[str, Any]]:
    if facts.survey is None:
        return []
    segments = [found.segment for found in facts.survey.found]
    return oldest_kept_by(segments, facts.survey.state.topics)


def _values(report: Report) -> dict[str, Any]:
    metadata = report.metadata
    return {
        "path": report.path,
        "health": report.health,
        "writer": report.writer or None,
        "findings": [attrs.asdict(finding) for finding in report.findings],
        "lost": [lost._asdict() for lost in report.lost],
        "quarantined": report.quarantined,
        "files": report.files,
        "journals": [
            {
                "name": facts.name,
                "journal_id": facts.journal_id,
                "lsn": facts.lsn,
                "segments": len(facts.segments),
                "bytes": sum(segment.bytes for segment in facts.segments),
                "bytes_torn": facts.bytes_torn,
                "oldest_kept_by": _kept(facts),
                "format_versions": sorted({each.format_version for each in facts.segments}),
                "error": facts.error or None,
            }
            for facts in report.journals
        ],
        "metadata": None
        if metadata is None
        else {"state": metadata.state, "detail": metadata.detail, "topics": metadata.topics},
    }


def _print(report: Report) -> None:
    order = {"damage": 0, "warning": 1, "info": 2}
    findings = sorted(report.findings, key=lambda finding: order[finding.level])
    print_table(
        ("level", "where", "what", "what to do"),
        [(each.level, each.area, each.what, each.advice) for each in findings],
    )
    counts = sum(lost.end - lost.first for lost in report.lost)
    ending = f", {counts} records lost" if counts else ""
    typer.echo(f"{report.path}: {report.health}{ending}")
