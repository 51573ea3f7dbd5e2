"""Say what is wrong with a data directory, what is lost, and what to do; rebuild the metadata.

Nothing is changed by looking. Findings are plain values; `frazil doctor` prints them.
"""

from __future__ import annotations

import json
import os
import resource
import stat
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

from frazil.engine.doctor_disk import check_files
from frazil.engine.doctor_metadata import MetadataFacts, inspect_metadata
from frazil.engine.engine import Engine
from frazil.engine.inspection import (
    Access,
    JournalFacts,
    LostRange,
    inspect_journal,
    journal_directories,
    locked_for_reading,
    verify_segment,
)
from frazil.errors import Unavailable
from frazil.fs import write_fully
from frazil.log import NETWORK_FILE_SYSTEMS, DataDirectory, file_system_kind, take_lock
from frazil.metadata import move_aside

if TYPE_CHECKING:
    from frazil.clock import Clock
    from frazil.config import Settings
    from frazil.fs import FileSystem

__all__ = ["Finding", "Report", "examine", "rebuild_metadata"]

Level = Literal["info", "warning", "damage"]
OPEN_FILES_MIN: Final = 4096
REASON_BYTES_MAX: Final = 1 << 20
PLAIN_FILES: Final = ("LOCK", "meta.db", "meta.db-lock", "meta.db-journal", "ballast")
RESTORE: Final = (
    "restore the missing files from a copy, or open the directory: what is left is kept"
)


@attrs.frozen
class Finding:
    """One thing to know: `damage` means that acked data is damaged or gone."""

    level: Level
    area: str
    what: str
    advice: str = ""


@attrs.define
class Report:
    """What a directory looks like."""

    path: str
    writer: str = ""
    findings: list[Finding] = attrs.Factory(list)
    journals: list[JournalFacts] = attrs.Factory(list)
    lost: list[LostRange] = attrs.Factory(list)
    quarantined: list[dict[str, Any]] = attrs.Factory(list)
    files: int = 0
    """Files of the disk tier that were looked at."""
    metadata: MetadataFacts | None = None

    @property
    def health(self) -> str:
        """Return `damaged`, `warnings` or `ok`."""
        levels = {finding.level for finding in self.findings}
        return "damaged" if "damage" in levels else ("warnings" if "warning" in levels else "ok")

    def add(self, level: Level, area: str, what: str, advice: str = "") -> None:
        """Note a finding."""
        self.findings.append(Finding(level, area, what, advice))


def examine(settings: Settings, *, file_system: FileSystem, read_all: bool = True) -> Report:
    """Look at everything in the data directory; `read_all` verifies sealed segments too.

    Raises:
        NotFound: if there is no such directory.
    """
    paths = DataDirectory(os.path.abspath(settings.data_dir))
    report = Report(paths.root)
    with locked_for_reading(file_system, paths) as access:
        _check_lock(report, access, paths)
        _check_machine(report, settings, file_system)
        _check_plain_files(report, file_system)
        try:
            directories = journal_directories(file_system, paths)
        except OSError as error:
            report.add("damage", "directory", f"cannot be listed: {error}", "check its rights")
            directories = []
        for name, directory in directories:
            facts = inspect_journal(file_system, directory, name=name)
            report.journals.append(facts)
            _check_journal(report, facts)
            if read_all and not access.writer:
                _verify(report, facts)
        _check_quarantine(report, file_system, paths)
        if not access.writer:
            report.files = check_files(report, file_system, paths, read_all=read_all)
            report.metadata = inspect_metadata(file_system, paths, report.journals)
            _check_metadata(report, report.metadata)
    if access.writer:
        _soften(report)
    for lost in report.lost:
        what = f"{lost.topic}: offsets {lost.first}..{lost.end - 1} are lost ({lost.reason})"
        report.add("damage", "records", what, "restore them from their source or a copy")
    return report


def _soften(report: Report) -> None:
    """Take back what may only look like damage because somebody writes just now."""
    report.lost = []
    report.findings = [
        attrs.evolve(finding, level="info") if finding.level == "damage" else finding
        for finding in report.findings
    ]


# -- the place -----------------------------------------------------------------------------------


def _check_lock(report: Report, access: Access, paths: DataDirectory) -> None:
    if access.writer:
        report.writer = access.writer
        report.add(
            "warning",
            "lock",
            f"in use by {access.writer}; what is written just now cannot be judged",
            "stop that process and look again",
        )
    elif access.fault:
        what = f"{paths.lock} cannot be locked: {access.fault}"
        report.add("damage", "lock", what, "check the rights of the directory and of this file")


def _check_plain_files(report: Report, file_system: FileSystem) -> None:
    """Find what stands in the way of files that the engine opens by name."""
    for name in PLAIN_FILES:
        path = f"{report.path}/{name}"
        try:
            found = file_system.stat(path)
            is_odd = os.path.islink(path) or (found is not None and found.is_directory)
        except OSError:
            is_odd = True
        if is_odd:
            what = f"{path} is no plain file: the directory cannot be opened"
            report.add("damage", "directory", what, "move it away: it is made anew from the log")


def _check_machine(report: Report, settings: Settings, file_system: FileSystem) -> None:
    path = report.path
    log = settings.log
    try:
        space = file_system.space(path)
        mark = max(log.free_bytes_min, int(space.total_bytes * log.free_ratio_min))
        room = f"{space.free_bytes / 1e9:.1f} GB of {space.total_bytes / 1e9:.1f} GB free"
        if space.free_bytes < mark:
            what = f"{room}, below the mark of {mark / 1e9:.1f} GB: publishing stops"
            report.add("warning", "disk", what, "make room, or lower log.free_bytes_min")
        else:
            report.add("info", "disk", f"{room}; publishing stops below {mark / 1e9:.1f} GB")
    except OSError as error:
        report.add("warning", "disk", f"its room is not known: {error}", "check the disk")
    kind = file_system_kind(path)
    if kind in NETWORK_FILE_SYSTEMS:
        what = f"lies on a network file system ({kind}), whose syncs and locks may lie"
        report.add("warning", "disk", what, "move it to a local disk")
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < OPEN_FILES_MIN:
        what = f"only {soft} files may be open at once"
        report.add("warning", "limits", what, f"raise it: ulimit -n {OPEN_FILES_MIN}")
    _check_rights(report)


def _check_rights(report: Report) -> None:
    try:
        found = os.stat(report.path)
    except OSError as error:
        report.add("warning", "rights", f"cannot be looked at: {error}", "check its rights")
        return
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        what = f"others may enter the directory (mode {mode:04o})"
        report.add("warning", "rights", what, f"chmod 700 {report.path}")
    if found.st_uid != os.geteuid():
        what = f"belongs to user {found.st_uid}, this is user {os.geteuid()}"
        report.add("warning", "rights", what, "run as that user, or chown the directory")


# -- journals ------------------------------------------------------------------------------------


def _check_journal(report: Report, facts: JournalFacts) -> None:
    if facts.error:
        report.add("damage", facts.name, f"cannot be read: {facts.error}", RESTORE)
        return
    report.lost += facts.lost
    for warning in facts.warnings:
        report.add("damage", facts.name, warning, RESTORE)
    for path in facts.hopeless:
        what = f"{path} holds nothing that can be read"
        report.add("damage", facts.name, what, "the next opening puts it into quarantine")
    if facts.bytes_torn:
        what = f"{facts.bytes_torn} bytes behind the last whole frame: a crash cut a write short"
        report.add("info", facts.name, what, "nothing: they were never acked and will be cut")
    versions = sorted({segment.format_version for segment in facts.segments})
    what = f"{len(facts.segments)} segments, format {versions}, lsn {facts.lsn}"
    report.add("info", facts.name, what)


def _verify(report: Report, facts: JournalFacts) -> None:
    if facts.survey is None:
        return
    found = facts.survey.found
    for index, each in enumerate(found):
        if not each.sealed:
            continue
        successor = found[index + 1] if index + 1 < len(found) else None
        _frames, problems, lost = verify_segment(facts, each, successor)
        for problem in problems:
            what = f"segment {each.segment.id}: {problem}"
            report.add("damage", facts.name, what, "restore the file from a copy")
        report.lost += [each_lost for each_lost in lost if each_lost not in report.lost]


# -- quarantine ----------------------------------------------------------------------------------


def _check_quarantine(report: Report, file_system: FileSystem, paths: DataDirectory) -> None:
    places = [paths.quarantine]
    places += [f"{facts.directory}/quarantine" for facts in report.journals]
    for place in places:
        try:
            if file_system.stat(place) is None:
                continue
            names = file_system.list_directory(place)
        except OSError as error:
            report.add("warning", "quarantine", f"{place} cannot be listed: {error}", "check it")
            continue
        for name in names:
            if name.endswith(".reason.json"):
                continue
            reason = _reason(file_system, f"{place}/{name}.reason.json")
            report.quarantined.append({"path": f"{place}/{name}", "reason": reason})
            report.add(
                "warning",
                "quarantine",
                f"{place}/{name}: {_reason_text(reason)}",
                "look into it; delete it when it is not needed any more",
            )


def _reason(file_system: FileSystem, path: str) -> Any:
    try:
        file = file_system.open(path, "read")
        try:
            return json.loads(file.read_at(0, REASON_BYTES_MAX))
        finally:
            file.close()
    except (OSError, ValueError, RecursionError):
        return None


def _reason_text(reason: Any) -> str:
    if isinstance(reason, dict):
        found = reason.get("damage") or reason.get("reason")
        return "; ".join(map(str, found)) if isinstance(found, list) else str(found)
    return "put aside, no reason file"


# -- metadata ------------------------------------------------------------------------------------


def _check_metadata(report: Report, facts: MetadataFacts) -> None:
    advice = "nothing: the next opening, or `frazil doctor --rebuild`, makes it from the log"
    if facts.state in ("damaged", "unreadable", "foreign"):
        advice = "run `frazil doctor --rebuild`: it is made again from the log"
        report.add("warning", "metadata", f"{facts.state}: {facts.detail}", advice)
    elif facts.state == "newer":
        report.lost += [lost for lost in facts.lost if lost not in report.lost]
        report.add("damage", "metadata", facts.detail, RESTORE)
    elif facts.state == "missing" and not any(each.segments for each in report.journals):
        report.add("info", "metadata", "the directory is empty: nothing was published yet")
    else:
        report.add("info", "metadata", facts.detail, advice if facts.state != "current" else "")


def rebuild_metadata(
    settings: Settings, *, file_system: FileSystem, clock: Clock
) -> tuple[str, list[str]]:
    """Put the metadata aside and make it again from the log.

    Returns where the old file is (empty if there was none) and the warnings of opening.

    Raises:
        Conflict: if a process has the directory open.
        FrazilError: if the directory cannot be opened; the old file stays in quarantine.
    """
    paths = DataDirectory(os.path.abspath(settings.data_dir))
    target = ""
    lock = take_lock(file_system, paths)
    try:
        if file_system.stat(paths.metadata) is not None:
            file_system.make_directory(paths.quarantine)
            file_system.sync_directory(paths.root)
            target = f"{paths.quarantine}/meta.db.{clock.now_us()}"
            _write_reason(file_system, f"{target}.reason.json")
            move_aside(paths.metadata, target, file_system=file_system)
    except OSError as error:
        raise Unavailable(
            "the metadata cannot be put aside, check the rights of the directory",
            path=paths.metadata,
            error=error,
        ) from error
    finally:
        lock.release()
    with Engine(settings, file_system=file_system, clock=clock) as engine:
        return target, list(engine.warnings)


def _write_reason(file_system: FileSystem, path: str) -> None:
    file = file_system.open(path, "create")
    try:
        reason = {"reason": "put aside by `frazil doctor --rebuild`"}
        write_fully(file, 0, [json.dumps(reason).encode()])
        file.sync()
    finally:
        file.close()
