"""Bring a topic's directory and its metadata together when the tier is opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from frazil.errors import CorruptionError
from frazil.telemetry import event, warn
from frazil.tiers.disk.catalog import TopicFiles, TopicMarks
from frazil.tiers.disk.file import FileLabel, file_of
from frazil.tiers.disk.parquet_file import read_facts
from frazil.tiers.disk.plan import plan_topic

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frazil.tiers.disk.directory import DiskDirectory, Scanned
    from frazil.tiers.disk.file import DiskFile
    from frazil.tiers.disk.plan import FoundSet, OpenPlan
    from frazil.tiers.disk.tier import DiskTier

__all__ = ["open_topic"]


def open_topic(
    tier: DiskTier, known: TopicFiles | None, topic: int, *, suspect: bool
) -> TopicFiles | None:
    """Return the topic's files after reconciling them, None if there is nothing of it.

    Rows change before names do: a crash in between leaves names without rows, which the next
    start meets again.
    """
    if known is not None and known.marks.dropped:
        tier.finish_drop(known)
        return None
    directory = tier.directory
    scanned = directory.scan(topic)
    if known is None and not scanned.files:
        _remove(directory, topic, scanned.leftovers)
        return None
    picture = known if known is not None else TopicFiles(topic, (), TopicMarks())
    unknown, unreadable = _described(tier, topic, scanned, picture)
    plan = plan_topic(picture, scanned.files, unknown, suspect=suspect, unreadable=unreadable)
    for found, gone in sorted(plan.adopt, key=lambda each: each[0].first):
        picture = _adopted(tier, picture, found, gone)
    if plan.forget:
        for part in _parts(plan.forget):
            tier.rows.change(topic, picture.marks, remove=[file.name for file in part])
        picture = picture.changed(remove=plan.forget)
    _clean(tier, topic, plan)
    _remove(directory, topic, scanned.leftovers)
    if picture.holes:
        _tell(tier, "offsets are in no file", topic=topic, first=picture.holes[0][0])
    return picture


def _described(
    tier: DiskTier, topic: int, scanned: Scanned, picture: TopicFiles
) -> tuple[list[DiskFile], dict[str, str]]:
    """Return the files that the metadata does not know, as their footers describe them.

    Those that cannot be read are told with the reason.
    """
    found: list[DiskFile] = []
    unreadable: dict[str, str] = {}
    for name in scanned.files:
        if name in picture.by_name:
            continue
        try:
            facts, metadata = read_facts(tier.file_system, tier.directory.path(topic, name))
            label = _label(metadata, topic, name)
        except CorruptionError as error:
            unreadable[name] = str(error)
            continue
        found.append(file_of(name, label, facts, key_bytes=scanned.keys.get(name, 0)))
    return found, unreadable


def _label(metadata: dict[str, str], topic: int, name: str) -> FileLabel:
    label = FileLabel.from_metadata(metadata)
    if label.topic != topic or [each.name for each in label.members] != [name]:
        raise CorruptionError("file lies under another name", topic=label.topic)
    return label


def _adopted(
    tier: DiskTier, picture: TopicFiles, found: FoundSet, gone: Sequence[DiskFile]
) -> TopicFiles:
    """Register a set that was found whole."""
    count = len(found.files)
    files = [
        msgspec.structs.replace(
            file, members=(msgspec.structs.replace(file.members[0], set_files=count),)
        )
        for file in found.files
    ]
    fresh = picture.marks.flushed == 0 and not picture.files
    marks = msgspec.structs.replace(
        picture.marks,
        start=found.first if fresh else picture.marks.start,
        flushed=max(picture.marks.flushed, found.end),
    )
    tier.rows.change(picture.topic, marks, add=files, remove=[file.name for file in gone])
    event("disk_adopted", topic=picture.topic, first=found.first, end=found.end, files=count)
    return picture.changed(add=files, remove=gone, marks=marks)


def _clean(tier: DiskTier, topic: int, plan: OpenPlan) -> None:
    for name in dict.fromkeys(plan.unlink):
        tier.directory.remove(topic, name)
    for name, reason in plan.quarantine.items():
        tier.directory.put_aside(topic, name, reason)
        _tell(tier, "file was put aside", topic=topic, file=name, reason=reason)
    for name in plan.waiting:
        _tell(tier, "unknown file cannot be read, the next start puts it aside", file=name)
    for name, reason in plan.damaged.items():
        tier.damage.note_damage(topic, name, reason)
        _tell(tier, "registered file is damaged", topic=topic, file=name, reason=reason)


def _remove(directory: DiskDirectory, topic: int, names: Sequence[str]) -> None:
    for name in names:
        directory.remove_one(topic, name)


def _parts(files: Sequence[DiskFile], count: int = 500) -> list[Sequence[DiskFile]]:
    return [files[first : first + count] for first in range(0, len(files), count)]


def _tell(tier: DiskTier, what: str, **facts: object) -> None:
    warn("disk_opened_with_fault", what=what, **facts)
    told = " ".join(f"{key}={value}" for key, value in facts.items())
    tier.warnings.append(f"disk tier: {what} ({told})")
