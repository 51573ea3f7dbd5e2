"""What to do with a topic's directory after a start: a pure decision over sets of files.

The rule behind every case: a range of offsets is held by one set, never by two, and a file that
may be the only copy of a record is never removed. `docs/internals/disk.md` has the crash table.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

import attrs

from frazil.tiers.disk.format import DiskFile, parse_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from frazil.tiers.disk.catalog import TopicFiles

_SetKey = tuple[int, int, str]
_first = attrgetter("first")


class FoundSet(NamedTuple):
    """Files of one flush or merge."""

    id: str
    first: int
    end: int
    files: tuple[DiskFile, ...]
    whole: bool
    """All of its files are there."""

    @property
    def names(self) -> list[str]:
        """Return the names of the files."""
        return [file.name for file in self.files]


@attrs.define
class OpenPlan:
    """What happens to files and their metadata.

    Attributes:
        adopt: sets to register, each with the registered files that it replaces.
        unlink: files whose records other files hold.
        quarantine: files that contradict others, with the reason.
        waiting: unreadable files that stay until the others of their sets are put aside: a start
            that is cut off between the two must find the set again as it is.
        forget: registered files whose range others hold.
        damaged: registered files that are gone or have another size, with the reason.
    """

    adopt: list[tuple[FoundSet, tuple[DiskFile, ...]]] = attrs.Factory(list)
    unlink: list[str] = attrs.Factory(list)
    quarantine: dict[str, str] = attrs.Factory(dict)
    waiting: list[str] = attrs.Factory(list)
    forget: list[DiskFile] = attrs.Factory(list)
    damaged: dict[str, str] = attrs.Factory(dict)


def sets_of(files: Iterable[DiskFile]) -> list[FoundSet]:
    """Group files by their sets, in the order of offsets."""
    groups: dict[_SetKey, list[DiskFile]] = defaultdict(list)
    for file in files:
        groups[_set_key(file.name)].append(file)
    return [
        FoundSet(set_id, first, end, tuple(group), _whole(group))
        for (first, end, set_id), group in sorted(groups.items())
    ]


def _whole(files: Sequence[DiskFile]) -> bool:
    count = max(file.set_files for file in files)
    names = [parse_name(file.name) for file in files]
    return count > 0 and {name.number for name in names if name} == set(range(count))


def plan_topic(
    known: TopicFiles,
    sizes: Mapping[str, int],
    unknown: Sequence[DiskFile],
    *,
    suspect: bool,
    unreadable: Mapping[str, str],
) -> OpenPlan:
    """Decide what to do with a topic's files.

    Args:
        known: the topic as the metadata has it.
        sizes: the files in the directory.
        unknown: files of the directory that the metadata lacks, as their footers describe them.
        suspect: the metadata may have lost rows: unfinished sets are put aside, not removed.
        unreadable: unknown files without a readable footer, with the reason.
    """
    plan = OpenPlan()
    damaged_sets = _put_unreadable_aside(plan, unreadable, unknown)
    held, broken = _Held(), _Held()
    for found in sets_of(known.files):
        (broken if any(_fault(file, sizes) for file in found.files) else held).add(found)
    candidates: list[FoundSet] = []
    for found in sets_of(unknown):
        if _set_key(found.files[0].name) in damaged_sets:
            # All its files existed: it may have been registered, and the log may have freed it.
            _put_aside(plan, found, "a file of its set cannot be read")
        elif found.end <= known.start or held.covers(found):
            plan.unlink += found.names
        elif found.whole:
            candidates.append(found)
        elif suspect:
            _put_aside(plan, found, "a file of its set is missing")
        else:
            # It was never registered: the log still has the range.
            plan.unlink += found.names
    _adopt(plan, held, broken, candidates)
    _settle_broken(plan, held, broken, sizes)
    return plan


def _settle_broken(plan: OpenPlan, held: _Held, broken: _Held, sizes: Mapping[str, int]) -> None:
    """Plan for registered sets with a fault: forgotten where others hold their range."""
    for found in broken.sets:
        if held.covers(found):
            plan.forget += found.files
            plan.unlink += [name for name in found.names if name in sizes]
        else:
            faults = {file.name: _fault(file, sizes) for file in found.files}
            plan.damaged.update({name: fault for name, fault in faults.items() if fault})


def _put_unreadable_aside(
    plan: OpenPlan, unreadable: Mapping[str, str], unknown: Sequence[DiskFile]
) -> set[_SetKey]:
    """Plan for files that cannot be read; return the sets that they belong to."""
    described = {_set_key(file.name) for file in unknown}
    for name, reason in unreadable.items():
        if _set_key(name) in described:
            plan.waiting.append(name)
        else:
            plan.quarantine[name] = reason
    return {_set_key(name) for name in unreadable}


def _set_key(name: str) -> _SetKey:
    parsed = parse_name(name)
    # All files of the directory were found by their names.
    assert parsed is not None
    return parsed.first, parsed.end, parsed.id


def _fault(file: DiskFile, sizes: Mapping[str, int]) -> str:
    size = sizes.get(file.name)
    if size is None:
        return "file is missing"
    return "" if size == file.bytes else f"file has {size} bytes instead of {file.bytes}"


def _adopt(plan: OpenPlan, held: _Held, broken: _Held, candidates: Sequence[FoundSet]) -> None:
    """Adopt candidates that fit with what is registered; `held` has them afterwards."""
    adopted: set[str] = set()
    for found in _chain(candidates):
        clashing = [*held.overlapping(found), *broken.overlapping(found)]
        if any(each.first < found.first or each.end > found.end for each in clashing):
            continue
        # A whole set that covers registered ones was registered before metadata was lost.
        gone = tuple(file for each in held.overlapping(found) for file in each.files)
        held.replace(found)
        adopted.add(found.id)
        plan.adopt.append((found, gone))
        plan.unlink += [file.name for file in gone]
    for found in candidates:
        if found.id in adopted:
            continue
        if held.covers(found):
            plan.unlink += found.names
        else:
            _put_aside(plan, found, "its range is held in part by another set")


def _chain(candidates: Sequence[FoundSet]) -> list[FoundSet]:
    """Choose sets without overlap: at each offset the one whose successors reach furthest."""
    furthest: dict[int, int] = {}
    reach: dict[str, int] = {}
    for found in sorted(candidates, key=lambda each: -each.first):
        reach[found.id] = furthest.get(found.end, found.end)
        furthest[found.first] = max(furthest.get(found.first, 0), reach[found.id])
    chosen: list[FoundSet] = []
    at = 0
    for found in sorted(candidates, key=lambda each: (each.first, -reach[each.id], each.id)):
        if found.first >= at:
            chosen.append(found)
            at = found.end
    return chosen


def _put_aside(plan: OpenPlan, found: FoundSet, reason: str) -> None:
    plan.quarantine.update(dict.fromkeys(found.names, reason))


class _Held:
    """Sets without overlap, by their range."""

    def __init__(self) -> None:
        self.sets: list[FoundSet] = []

    def add(self, found: FoundSet) -> None:
        insort(self.sets, found, key=_first)

    def replace(self, found: FoundSet) -> None:
        """Replace the sets that a set overlaps."""
        low, high = self._between(found)
        self.sets[low:high] = [found]

    def overlapping(self, found: FoundSet) -> list[FoundSet]:
        low, high = self._between(found)
        return self.sets[low:high]

    def covers(self, found: FoundSet) -> bool:
        """Tell whether the sets together hold the whole range of another one."""
        reached = found.first
        for each in self.overlapping(found):
            if each.first > reached:
                return False
            reached = each.end
        return reached >= found.end

    def _between(self, found: FoundSet) -> tuple[int, int]:
        low = bisect_right(self.sets, found.first, key=_first)
        if low and self.sets[low - 1].end > found.first:
            low -= 1
        return low, max(low, bisect_left(self.sets, found.end, key=_first))
