"""The doctor: report faults and losses of a data directory, with advice. It changes no file.

Findings are plain values; `frazil doctor` prints them. Opening the directory repairs some of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import stat
import tempfile
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

from frazil.clock import SystemClock
from frazil.engine.inspection import (
    Access,
    JournalFacts,
    LostRange,
    inspect_journal,
    locked_for_reading,
    verify_segment,
)
from frazil.errors import CorruptionError, FrazilError
from frazil.fs import RealFileSystem
from frazil.log import NETWORK_FILE_SYSTEMS, DataDirectory, file_system_kind
from frazil.metadata import SqliteStore
from frazil.tiers import FileLabel, open_parquet, read_facts
from frazil.topic import SHARED_ID, known_topics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from frazil.config import Settings
    from frazil.fs import FileSystem
    from frazil.metadata import MetadataStore

__all__ = ["Finding", "Report", "examine"]

Level = Literal["info", "warning", "damage"]
OPEN_FILES_MIN: Final = 4096
JOURNAL: Final = "journal"
REASON_BYTES_MAX: Final = 1 << 20
PLAIN_FILES: Final = ("LOCK", "meta.db", "meta.db-lock", "meta.db-journal", "ballast")
RESTORE: Final = (
    "restore the missing files from a copy, or open the directory: the remaining records are kept"
)


@attrs.frozen
class Finding:
    """One finding: the level `damage` means that acked data is damaged or lost."""

    level: Level
    area: str
    what: str
    advice: str = ""


@attrs.define
class Report:
    """The state of a data directory."""

    path: str
    writer: str = ""
    findings: list[Finding] = attrs.Factory(list)
    journal: JournalFacts | None = None
    lost: list[LostRange] = attrs.Factory(list)
    quarantined: list[dict[str, Any]] = attrs.Factory(list)
    files: int = 0
    """The number of files of the disk tier that were examined."""
    metadata: dict[str, Any] | None = None
    """`state` of the metadata compared with the log, `detail`, and the count of `topics`."""

    @property
    def health(self) -> str:
        """Return `damaged`, `warnings` or `ok`."""
        levels = {finding.level for finding in self.findings}
        return "damaged" if "damage" in levels else ("warnings" if "warning" in levels else "ok")

    def add(self, level: Level, area: str, what: str, advice: str = "") -> None:
        """Add a finding."""
        self.findings.append(Finding(level, area, what, advice))


def examine(settings: Settings, *, file_system: FileSystem, read_all: bool = True) -> Report:
    """Examine the whole data directory; `read_all` verifies sealed segments too.

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
            report.journal = inspect_journal(file_system, paths)
        except OSError as error:
            report.add("damage", "directory", f"cannot be read: {error}", "check its rights")
        if report.journal is not None:
            _check_journal(report, report.journal)
            if read_all and not access.writer:
                _verify(report, report.journal)
        _check_quarantine(report, file_system, paths)
        if not access.writer:
            _check_files(report, file_system, paths, read_all=read_all)
            _check_metadata(report, paths)
    if access.writer:
        _soften(report)
    for lost in report.lost:
        report.add(
            "damage",
            "records",
            f"{lost.topic}: offsets {lost.first}..{lost.end - 1} are lost ({lost.reason})",
            "restore them from their source or a copy",
        )
    return report


def _soften(report: Report) -> None:
    """Turn damage into information: writes in progress may look like damage."""
    report.lost = []
    report.findings = [
        attrs.evolve(finding, level="info") if finding.level == "damage" else finding
        for finding in report.findings
    ]


# -- directory -----------------------------------------------------------------------------------


def _check_lock(report: Report, access: Access, paths: DataDirectory) -> None:
    if access.writer:
        report.writer = access.writer
        report.add(
            "warning",
            "lock",
            f"in use by {access.writer}; current writes cannot be checked",
            "stop that process and run this again",
        )
    elif access.fault:
        report.add(
            "damage",
            "lock",
            f"{paths.lock} cannot be locked: {access.fault}",
            "check the rights of the directory and of this file",
        )


def _check_plain_files(report: Report, file_system: FileSystem) -> None:
    """Find directories and links at the paths of files that the engine opens by name."""
    for name in PLAIN_FILES:
        path = f"{report.path}/{name}"
        try:
            found = file_system.stat(path)
            is_odd = os.path.islink(path) or (found is not None and found.is_directory)
        except OSError:
            is_odd = True
        if is_odd:
            report.add(
                "damage",
                "directory",
                f"{path} is not a regular file: the directory cannot be opened",
                "move it away: the file is rebuilt from the log",
            )


def _check_machine(report: Report, settings: Settings, file_system: FileSystem) -> None:
    path = report.path
    log = settings.log
    try:
        space = file_system.space(path)
        mark = max(log.free_bytes_min, int(space.total_bytes * log.free_ratio_min))
        room = f"{space.free_bytes / 1e9:.1f} GB of {space.total_bytes / 1e9:.1f} GB free"
        if space.free_bytes < mark:
            report.add(
                "warning",
                "disk",
                f"{room}, below the limit of {mark / 1e9:.1f} GB: publishing stops",
                "free disk space, or lower log.free_bytes_min",
            )
        else:
            report.add("info", "disk", f"{room}; publishing stops below {mark / 1e9:.1f} GB")
    except OSError as error:
        report.add("warning", "disk", f"free space is not known: {error}", "check the disk")
    kind = file_system_kind(path)
    if kind in NETWORK_FILE_SYSTEMS:
        report.add(
            "warning",
            "disk",
            f"is on a network file system ({kind}), which may not sync and lock reliably",
            "move it to a local disk",
        )
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < OPEN_FILES_MIN:
        report.add(
            "warning",
            "limits",
            f"only {soft} files may be open at once",
            f"raise it: ulimit -n {OPEN_FILES_MIN}",
        )
    _check_rights(report)


def _check_rights(report: Report) -> None:
    try:
        found = os.stat(report.path)
    except OSError as error:
        report.add("warning", "rights", f"cannot be examined: {error}", "check its rights")
        return
    mode = stat.S_IMODE(found.st_mode)
    if mode & 0o077:
        report.add(
            "warning",
            "rights",
            f"others may enter the directory (mode {mode:04o})",
            f"chmod 700 {report.path}",
        )
    if found.st_uid != os.geteuid():
        report.add(
            "warning",
            "rights",
            f"belongs to user {found.st_uid}, this is user {os.geteuid()}",
            "run as that user, or chown the directory",
        )


# -- journals ------------------------------------------------------------------------------------


def _check_journal(report: Report, facts: JournalFacts) -> None:
    if facts.error:
        report.add("damage", JOURNAL, f"cannot be read: {facts.error}", RESTORE)
        return
    report.lost += facts.lost
    for warning in facts.warnings:
        report.add("damage", JOURNAL, warning, RESTORE)
    for path in facts.hopeless:
        report.add(
            "damage",
            JOURNAL,
            f"{path} has no readable frame",
            "the next opening moves it into quarantine",
        )
    if facts.bytes_torn:
        report.add(
            "info",
            JOURNAL,
            f"{facts.bytes_torn} bytes after the last whole frame: a crash interrupted a write",
            "nothing to do: they were never acked and will be cut off",
        )
    versions = sorted({segment["format_version"] for segment in facts.segments})
    report.add(
        "info", JOURNAL, f"{len(facts.segments)} segments, format {versions}, lsn {facts.lsn}"
    )


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
            report.add(
                "damage",
                JOURNAL,
                f"segment {each.segment.id}: {problem}",
                "restore the file from a copy",
            )
        report.lost += [each_lost for each_lost in lost if each_lost not in report.lost]


# -- quarantine ----------------------------------------------------------------------------------


def _check_quarantine(report: Report, file_system: FileSystem, paths: DataDirectory) -> None:
    for folder in (paths.quarantine, f"{paths.journal}/quarantine"):
        try:
            if file_system.stat(folder) is None:
                continue
            names = file_system.list_directory(folder)
        except OSError as error:
            report.add("warning", "quarantine", f"{folder} cannot be listed: {error}", "check it")
            continue
        for name in names:
            if name.endswith(".reason.json"):
                continue
            reason = _reason(file_system, f"{folder}/{name}.reason.json")
            report.quarantined.append({"path": f"{folder}/{name}", "reason": reason})
            report.add(
                "warning",
                "quarantine",
                f"{folder}/{name}: {_reason_text(reason)}",
                "examine it; delete it when it is not needed any more",
            )


def _reason(file_system: FileSystem, path: str) -> Any:
    try:
        with contextlib.closing(file_system.open(path, "read")) as file:
            return json.loads(file.read_at(0, REASON_BYTES_MAX))
    except (OSError, ValueError, RecursionError):
        return None


def _reason_text(reason: Any) -> str:
    if isinstance(reason, dict):
        found = reason.get("damage") or reason.get("reason")
        return "; ".join(map(str, found)) if isinstance(found, list) else str(found)
    return "quarantined, no reason file"


# -- files of the disk tier ----------------------------------------------------------------------


def _check_files(
    report: Report, file_system: FileSystem, paths: DataDirectory, *, read_all: bool
) -> None:
    if file_system.stat(paths.disk) is None:
        return
    for directory in file_system.list_directory(paths.disk):
        folder = f"{paths.disk}/{directory}"
        info = file_system.stat(folder)
        if info is None or not info.is_directory:
            continue
        for name in file_system.list_directory(folder):
            if not name.endswith(".parquet"):
                continue
            report.files += 1
            fault = _file_fault(file_system, f"{folder}/{name}", read_all=read_all)
            if fault:
                advice = "open the directory: it is written again if the log still has its records"
                report.add("damage", f"disk {directory}", f"{name}: {fault}", advice)


def _file_fault(file_system: FileSystem, path: str, *, read_all: bool) -> str:
    try:
        _facts, metadata = read_facts(file_system, path)
        FileLabel.from_metadata(metadata)
        if read_all:
            _read_rows(file_system, path)
    except CorruptionError as error:
        return str(error.details.get("reason", error))
    except OSError as error:
        return f"cannot be read: {error}"
    return ""


def _read_rows(file_system: FileSystem, path: str) -> None:
    parquet, source = open_parquet(file_system, path)
    try:
        for number in range(parquet.num_row_groups):
            parquet.read_row_group(number)
    except (OSError, ValueError) as error:
        if source.error is not None:
            raise source.error from error
        raise CorruptionError("page does not match its checksum", reason=error) from error
    finally:
        parquet.close()
        source.release()


# -- metadata ------------------------------------------------------------------------------------


def _check_metadata(report: Report, paths: DataDirectory) -> None:
    state, detail, topics = _metadata_state(paths.metadata, report)
    report.metadata = {"state": state, "detail": detail, "topics": topics}
    advice = "open the directory: the metadata is rebuilt from the log"
    if state in ("damaged", "unreadable"):
        report.add("warning", "metadata", f"{state}: {detail}", advice)
    elif state == "newer":
        report.add("damage", "metadata", detail, RESTORE)
    elif state == "missing" and (report.journal is None or not report.journal.segments):
        report.add("info", "metadata", "the directory is empty: no record was published yet")
    else:
        report.add("info", "metadata", detail, advice if state != "current" else "")


def _metadata_state(path: str, report: Report) -> tuple[str, str, int]:
    """Compare a copy of the metadata with the log: opening a file of SQLite may change it."""
    if not os.path.lexists(path):
        return "missing", "there is none", 0
    with tempfile.TemporaryDirectory(prefix="frazil-doctor-") as directory:
        try:
            shutil.copyfile(path, f"{directory}/meta.db")
            if os.path.exists(f"{path}-journal"):
                shutil.copyfile(f"{path}-journal", f"{directory}/meta.db-journal")
            store = SqliteStore.open(
                f"{directory}/meta.db", file_system=RealFileSystem(), clock=SystemClock()
            )
            with contextlib.closing(store):
                return _compared(store, report)
        except CorruptionError as error:
            return "damaged", str(error), 0
        except (OSError, FrazilError) as error:
            return "unreadable", str(error), 0


def _lost_at_the_end(
    journal: JournalFacts, known: Mapping[int, Any], ends: Mapping[int, int]
) -> list[LostRange]:
    """Return the offsets that the metadata has and the log does not reach."""
    heads = {topic_id: int(facts["next"]) for topic_id, facts in journal.topics.items()}
    return [
        LostRange(topic_id, known[topic_id][0].name, heads.get(topic_id, 0), end, "log ends before")
        for topic_id, end in ends.items()
        if end > heads.get(topic_id, 0)
    ]


def _compared(store: MetadataStore, report: Report) -> tuple[str, str, int]:
    """Compare the metadata with the log; offsets that only the metadata has are lost."""
    if store.get(SHARED_ID) is not None:
        return "current", "topics and schemas are in etcd, which was not read", 0
    known, ends = known_topics(store)
    journal = report.journal or JournalFacts("")
    # A journal without segments has no id.
    applied = (store.applied_lsn(journal.journal_id) or 0) if journal.journal_id else 0
    lost = [] if journal.error else _lost_at_the_end(journal, known, ends)
    report.lost += [each for each in lost if each not in report.lost]
    text = f"lsn {applied} of {journal.lsn}"
    if lost or applied > journal.lsn:
        return "newer", f"newer than the log: {text}", len(known)
    if applied < journal.lsn:
        return "older", f"older than the log: {text}", len(known)
    return "current", f"in line with the log, {len(known)} topics", len(known)
