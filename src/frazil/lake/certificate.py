"""What a verification is asked, what it found, and what that means. Pure: no Spark, no files.

Nothing that is wrong is passed over: lost, doubled and altered rows make a table damaged. Rows that
others deleted are listed, and are no damage.
"""

from __future__ import annotations

import datetime as dt
import hashlib
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from frazil.errors import CODES, CorruptionError
from frazil.lake.plan import Plan, TableName

if TYPE_CHECKING:
    from collections.abc import Iterable

    from frazil.lake.table import Ends

__all__ = [
    "Certificate",
    "Findings",
    "Kind",
    "PartFacts",
    "Problem",
    "StagedRows",
    "VerifyRequest",
    "joined_problems",
    "offset_text",
    "ranges_text",
]

SHOWN_MAX: Final = 20
EXIT_GOOD: Final = 0
EXIT_DELETED: Final = 2
EXIT_DAMAGED: Final = CODES[CorruptionError].exit

Kind = Literal[
    "missing", "doubled", "altered", "unmatched", "extra", "miscounted", "unchained", "file"
]
Verdict = Literal["good", "rows deleted by others", "damaged"]

_MEANINGS: Final[dict[Kind, str]] = {
    "missing": "offsets in neither the table nor its rejects",
    "doubled": "offsets that are there more than once",
    "altered": "rows that differ from the disk tier's",
    "unmatched": "rows of the disk tier without their row in the table, or the other way round",
    "extra": "rows at offsets that have no record",
    "miscounted": "snapshots whose numbers of rows do not add up",
    "unchained": "snapshots that do not go on where the one before ended",
    "file": "files that are not there as the table says",
}


class PartFacts(msgspec.Struct, frozen=True):
    """What the log knows of one part: the ranges `[first, end)` that have no record.

    `lost` are those that had one which the log and the tiers have lost: the table may have it.
    `committed` is how far the table has been seen to be: it never goes back, a table may.
    """

    part: int
    gaps: tuple[tuple[int, int], ...] = ()
    lost: tuple[tuple[int, int], ...] = ()
    committed: int = 0


class StagedRows(msgspec.Struct, frozen=True):
    """Files of the disk tier of one schema version, as a plan would name them.

    `names` tells what each of their columns is called now; one that was dropped is not in it.
    `added` are the columns that came later: they are null in these rows.
    """

    plan: Plan
    names: dict[str, str]
    added: tuple[str, ...] = ()


class VerifyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A table, and everything outside of it that it can be compared with."""

    topic: str
    topic_id: str
    table: TableName
    parts: tuple[PartFacts, ...]
    staged: tuple[StagedRows, ...] = ()

    @property
    def gaps(self) -> dict[int, tuple[tuple[int, int], ...]]:
        """Return the declared gaps, by part."""
        return {each.part: each.gaps for each in self.parts}

    @property
    def lost(self) -> dict[int, tuple[tuple[int, int], ...]]:
        """Return the ranges that the log has lost, by part."""
        return {each.part: each.lost for each in self.parts if each.lost}

    @property
    def committed(self) -> Ends:
        """Return how far the table has been seen to be, by part."""
        return {each.part: each.committed for each in self.parts if each.committed}


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong: how often, and the first places."""

    kind: Kind
    count: int
    places: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return it as one line."""
        shown = ", ".join(self.places[:SHOWN_MAX])
        more = ", …" if self.count > len(self.places[:SHOWN_MAX]) and self.places else ""
        return f"{self.kind}: {self.count:,} {_MEANINGS[self.kind]}: {shown}{more}"


def joined_problems(problems: Iterable[Problem]) -> tuple[Problem, ...]:
    """Return problems with one for each kind: counts added up, places one behind the other."""
    found: dict[Kind, Problem] = {}
    for each in problems:
        before = found.get(each.kind, Problem(each.kind, 0))
        places = (*before.places, *each.places)[:SHOWN_MAX]
        found[each.kind] = Problem(each.kind, before.count + each.count, places)
    return tuple(found.values())


class Findings(msgspec.Struct, kw_only=True):
    """What Spark found in one snapshot of a table.

    `begins` and `ends` are, by part, between which offsets it has to have every record.
    """

    topic: str
    topic_id: str
    table: TableName
    sid: int | None
    begins: dict[int, int]
    ends: dict[int, int]
    rows: int = 0
    rejected: int = 0
    gaps: int = 0
    skipped: int = 0
    """Offsets that an operator gave up and that are not there."""
    skipped_places: tuple[str, ...] = ()
    adopted: int = 0
    """Offsets of another log, which this one goes on behind: compared with nothing."""
    adopted_places: tuple[str, ...] = ()
    behind: dict[int, int] = {}
    """Where the table ends, for the parts of which it has lost committed rows behind that."""
    staged: int = 0
    """Files of the disk tier that it was compared with."""
    compared: int = 0
    snapshots: int = 0
    files: int = 0
    content: str = ""
    """A fingerprint of all rows, whatever files they are in."""
    problems: tuple[Problem, ...] = ()
    deleted: int = 0
    deleted_places: tuple[str, ...] = ()
    foreign: tuple[int, ...] = ()
    """Snapshots of others that removed rows."""
    versions: dict[str, str] = {}


class Certificate(msgspec.Struct, frozen=True):
    """The findings of a moment, as they are shown and judged."""

    findings: Findings
    time_us: int

    @property
    def verdict(self) -> Verdict:
        """Return what the findings mean."""
        if self.findings.problems:
            return "damaged"
        return "rows deleted by others" if self.findings.deleted else "good"

    @property
    def exit_code(self) -> int:
        """Return the exit code of `frazil verify`."""
        codes = {"good": EXIT_GOOD, "rows deleted by others": EXIT_DELETED}
        return codes.get(self.verdict, EXIT_DAMAGED)

    @property
    def digest(self) -> str:
        """Return the SHA-256 of what was found; the same table gives the same one at any time."""
        facts = msgspec.to_builtins(self.findings, str_keys=True)
        facts.pop("versions")
        return hashlib.sha256(msgspec.json.encode(facts, order="sorted")).hexdigest()

    @property
    def lines(self) -> list[str]:
        """Return the certificate for people."""
        found = self.findings
        time = dt.datetime.fromtimestamp(self.time_us // 1_000_000, dt.UTC).isoformat()
        lines = [
            f"verdict    {self.verdict}",
            f"topic      {found.topic} ({found.topic_id})",
            f"table      {found.table} at snapshot {found.sid or 'none'}",
            f"rows       {found.rows:,} and {found.rejected:,} rejected in {found.files:,} files",
            f"offsets    {_spans(found)}",
            f"gaps       {found.gaps:,} offsets without a record",
            f"compared   {_compared(found)}",
            f"snapshots  {found.snapshots:,} chained",
            f"content    {found.content or '-'}",
            *(f"PROBLEM    {problem.text}" for problem in found.problems),
        ]
        if found.behind:
            lines.append(f"behind     {_behind(found)}: rolled back or replaced by others")
        if found.skipped:
            shown = ", ".join(found.skipped_places[:SHOWN_MAX])
            lines.append(f"skipped    {found.skipped:,} offsets given up by an operator: {shown}")
        if found.adopted:
            shown = ", ".join(found.adopted_places[:SHOWN_MAX])
            lines.append(f"adopted    {found.adopted:,} offsets of another log: {shown}")
        if found.deleted:
            lines.append(f"deleted    {_deleted(found)}")
        versions = ", ".join(f"{name} {text}" for name, text in sorted(found.versions.items()))
        return [*lines, f"result     sha256 {self.digest}", f"at         {time} with {versions}"]

    def facts(self) -> dict[str, object]:
        """Return the certificate ready for JSON."""
        body: dict[str, object] = msgspec.to_builtins(self.findings, str_keys=True)
        judged = {"verdict": self.verdict, "exit_code": self.exit_code, "sha256": self.digest}
        return {**judged, "time_us": self.time_us, **body}


def _spans(found: Findings) -> str:
    spans = [
        ("" if part < 0 else f"part {part}: ") + f"{found.begins.get(part, 0):,} .. {end:,}"
        for part, end in sorted(found.ends.items())
    ]
    return ", ".join(spans) or "none"


def _compared(found: Findings) -> str:
    if found.compared:
        return f"{found.compared:,} rows with the disk tier, column by column"
    if found.staged:
        return f"none: the table has no row of the disk tier's {found.staged:,} files"
    if any(each.kind == "file" for each in found.problems):
        return "none: the table cannot be read"
    return "none: the disk tier holds no files of it"


def _behind(found: Findings) -> str:
    return ", ".join(
        ("" if part < 0 else f"part {part}: ")
        + f"the table ends at {end:,}, committed were {found.ends[part]:,}"
        for part, end in sorted(found.behind.items())
    )


def _deleted(found: Findings) -> str:
    shown = ", ".join(found.deleted_places[:SHOWN_MAX])
    snapshots = ", ".join(map(str, found.foreign))
    return f"{found.deleted:,} rows by others, in snapshots {snapshots}: {shown}"


def offset_text(part: int, offset: int) -> str:
    """Return one place."""
    return str(offset) if part < 0 else f"part {part}: {offset}"


def ranges_text(part: int, ranges: Iterable[tuple[int, int]]) -> list[str]:
    """Return ranges `[first, end)` as places."""
    return [
        offset_text(part, first) + (f"..{end - 1}" if end - first > 1 else "")
        for first, end in ranges
    ]
