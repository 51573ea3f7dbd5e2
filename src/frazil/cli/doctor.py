"""`frazil doctor`: report problems of a data directory with remedies; never a traceback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import attrs
import typer

from frazil.cli.session import Session, session_of
from frazil.clock import SystemClock
from frazil.engine import Report, examine, examine_store, oldest_kept_by
from frazil.errors import CODES, CorruptionError, InvalidRequest, codes_of
from frazil.fs import RealFileSystem

if TYPE_CHECKING:
    from frazil.config.objects import ObjectsSettings
    from frazil.engine import JournalFacts, Step

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
        _try_store(session, settings.objects)
        return
    report = examine(settings, file_system=RealFileSystem(), read_all=not quick)
    for kept in _kept(report.journal):
        what = f"the oldest segment is kept by hold {kept['hold']} of {kept['topic']}"
        advice = "advance or drop the hold if nothing needs it any more"
        report.add("info", "journal", f"{what} at offset {kept['offset']}", advice)
    order = {"damage": 0, "warning": 1, "info": 2}
    findings = sorted(report.findings, key=lambda finding: order[finding.level])
    names = ("level", "where", "what", "what to do")
    rows = [(each.level, each.area, each.what, each.advice) for each in findings]
    session.table(_values(report), names, rows)
    if not session.as_json:
        counts = sum(lost.end - lost.first for lost in report.lost)
        ending = f", {counts} records lost" if counts else ""
        typer.echo(f"{report.path}: {report.health}{ending}")
    if report.health == "damaged":
        raise typer.Exit(CODES[CorruptionError].exit)


def _kept(facts: JournalFacts | None) -> list[dict[str, Any]]:
    if facts is None or facts.survey is None:
        return []
    segments = [found.segment for found in facts.survey.found]
    return oldest_kept_by(segments, facts.survey.state.topics)


def _values(report: Report) -> dict[str, Any]:
    return {
        "path": report.path,
        "health": report.health,
        "writer": report.writer or None,
        "findings": [attrs.asdict(finding) for finding in report.findings],
        "lost": [lost._asdict() for lost in report.lost],
        "quarantined": report.quarantined,
        "files": report.files,
        "journal": report.journal and _journal_values(report.journal),
        "metadata": report.metadata,
    }


def _journal_values(facts: JournalFacts) -> dict[str, Any]:
    return {
        "journal_id": facts.journal_id,
        "lsn": facts.lsn,
        "segments": len(facts.segments),
        "bytes": sum(segment["bytes"] for segment in facts.segments),
        "bytes_torn": facts.bytes_torn,
        "oldest_kept_by": _kept(facts),
        "format_versions": sorted({each["format_version"] for each in facts.segments}),
        "error": facts.error or None,
    }


def _step_values(step: Step) -> dict[str, Any]:
    return {
        "name": step.name,
        "ok": step.error is None,
        "error": step.error and str(step.error),
        "setting": step.setting or None,
        "advice": step.advice or None,
    }


def _try_store(session: Session, settings: ObjectsSettings) -> None:
    """Print what works with the object store, and the setting at fault if something does not.

    The exit code is that of the error: 2 for a wrong setting, 5 for a store that is not there.
    """
    steps = list(examine_store(settings, clock=SystemClock()))
    error = steps[-1].error
    found = {
        "store": settings.store,
        "root": settings.root,
        "ok": error is None,
        "steps": [_step_values(step) for step in steps],
    }
    rows = [(step.name, str(step.error or "ok"), step.advice) for step in steps]
    session.table(found, ("step", "result", "what to do"), rows)
    if not session.as_json:
        store = f"{settings.store} {settings.root}".strip()
        typer.echo(f"{store}: {'cannot be used' if error else 'ok'}")
    if error is not None:
        raise typer.Exit(codes_of(error).exit)
