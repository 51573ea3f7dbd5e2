"""Verify a topic's table: the request to the worker, and the evaluation of its answer.

The table must have each offset once, in the rows or the rejects, each snapshot's counts must add
up, and rows that the disk tier still has must be equal. Rows that other programs deleted are listed
and do not count as damage.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import threading
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from msgspec.structs import replace

from frazil.errors import CODES, Conflict, CorruptionError, InvalidRequest, NotFound, Unavailable
from frazil.lake.plan import PartRange, Plan, TableName, part_sets, plan_of
from frazil.lake.table import ROWS_DROPPED, ROWS_IN, ROWS_OUT, ROWS_REJECTED, TOPIC_ID
from frazil.lake.wire import body_of
from frazil.log import RANGE_LOST
from frazil.offsets import RangeSet
from frazil.schema import column_id
from frazil.struct_types import learnt
from frazil.topic import special_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pyarrow as pa

    from frazil.lake.iceberg import Snapshot
    from frazil.lake.plan import StagedSet
    from frazil.lake.runtime import Lake
    from frazil.lake.topics import LakeTopic
    from frazil.lake.wire import Answer
    from frazil.log import SpecialRange

__all__ = [
    "PartFacts",
    "Problem",
    "StagedRows",
    "VerifyRequest",
    "VerifyResult",
    "column_names",
    "miscounted",
    "offset_text",
    "part_facts",
    "ranges_text",
    "removed_rows",
    "verify_topic",
]

READY_PAUSE_S: Final = 0.2
READY_TIMEOUT_S: Final = 300.0
VERIFY_TIMEOUT_S: Final = 24 * 3600.0
SHOWN_MAX: Final = 20
REMOVED: Final = ("deleted-records", "added-position-deletes", "added-equality-deletes")

Kind = Literal["missing", "doubled", "altered", "unmatched", "extra", "miscounted"]
Verdict = Literal["good", "rows deleted by others", "damaged"]

_MEANINGS: Final[dict[Kind, str]] = {
    "missing": "offsets in neither the table nor its rejects",
    "doubled": "offsets that are there more than once",
    "altered": "rows that differ from the disk tier's",
    "unmatched": "rows of the table that the disk tier does not have at their offsets",
    "extra": "rows at offsets that have no record",
    "miscounted": "snapshots whose numbers of rows do not add up",
}
EXIT_CODES: Final[dict[Verdict, int]] = {
    "good": 0,
    "rows deleted by others": 2,
    "damaged": CODES[CorruptionError].exit,
}


class PartFacts(msgspec.Struct, frozen=True):
    """The log's view of one part: the ranges `[first, end)` that have no record.

    `lost` are those whose records the log and the tiers have lost: the table may have them.
    `committed` is the highest watermark seen in the table: a table may be rolled back.
    """

    part: int
    gaps: tuple[tuple[int, int], ...] = ()
    lost: tuple[tuple[int, int], ...] = ()
    committed: int = 0


class StagedRows(msgspec.Struct, frozen=True):
    """Files of the disk tier of one schema version, as a plan names them.

    `names` maps their columns to the current names, without dropped columns; `added` are the
    columns that were added later and are null in these rows.
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


class Problem(msgspec.Struct, frozen=True):
    """One kind of damage: its count and its first occurrence."""

    kind: Kind
    count: int
    examples: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return it as one line."""
        shown = ", ".join(self.examples[:SHOWN_MAX])
        more = ", …" if self.count > len(self.examples[:SHOWN_MAX]) and self.examples else ""
        return f"{self.kind}: {self.count:,} {_MEANINGS[self.kind]}: {shown}{more}"


class VerifyResult(msgspec.Struct, kw_only=True):
    """The findings for one snapshot of a table.

    The table must have every record between `begins` and `ends`, by part. `short` has its end in
    the parts that have lost committed rows at the end. `skipped` are offsets that an operator gave
    up, `adopted` offsets of another log.
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
    skipped_ranges: tuple[str, ...] = ()
    adopted: int = 0
    adopted_ranges: tuple[str, ...] = ()
    short: dict[int, int] = {}
    compared: int = 0
    snapshots: int = 0
    problems: tuple[Problem, ...] = ()
    deleted: int = 0
    deleted_ranges: tuple[str, ...] = ()
    time_us: int = 0

    @property
    def verdict(self) -> Verdict:
        """Return the verdict on the findings."""
        if self.problems:
            return "damaged"
        return "rows deleted by others" if self.deleted else "good"

    @property
    def exit_code(self) -> int:
        """Return the exit code of `frazil verify`."""
        return EXIT_CODES[self.verdict]

    def add(self, *problems: Problem) -> None:
        """Add problems; those of one kind become one."""
        found = {each.kind: each for each in self.problems}
        for each in problems:
            before = found.get(each.kind, Problem(each.kind, 0))
            examples = (*before.examples, *each.examples)[:SHOWN_MAX]
            found[each.kind] = Problem(each.kind, before.count + each.count, examples)
        self.problems = tuple(found.values())

    @property
    def lines(self) -> list[str]:
        """Return the result for people."""
        spans = [_part(p) + f"{self.begins[p]:,} .. {end:,}" for p, end in self.ends.items()]
        time = dt.datetime.fromtimestamp(self.time_us // 1_000_000, dt.UTC).isoformat()
        lines = [
            f"verdict    {self.verdict}",
            f"topic      {self.topic} ({self.topic_id})",
            f"table      {self.table} at snapshot {self.sid or 'none'}",
            f"rows       {self.rows:,} and {self.rejected:,} rejected",
            f"offsets    {', '.join(spans) or 'none'}",
            f"gaps       {self.gaps:,} offsets without a record",
            f"compared   {self.compared:,} rows with the disk tier, column by column",
            f"snapshots  {self.snapshots:,} counted",
            *(f"PROBLEM    {problem.text}" for problem in self.problems),
        ]
        if self.short:
            short = ", ".join(
                _part(p) + f"the table ends at {end:,}, committed were {self.ends[p]:,}"
                for p, end in self.short.items()
            )
            lines.append(f"short      {short}: rolled back or replaced by others")
        for name, count, examples, what in (
            ("skipped", self.skipped, self.skipped_ranges, "offsets given up by an operator"),
            ("adopted", self.adopted, self.adopted_ranges, "offsets of another log"),
            ("deleted", self.deleted, self.deleted_ranges, "rows by others"),
        ):
            if count:
                lines.append(f"{name:<10} {count:,} {what}: {', '.join(examples[:SHOWN_MAX])}")
        return [*lines, f"at         {time}"]

    def facts(self) -> dict[str, object]:
        """Return the result ready for JSON."""
        return {"verdict": self.verdict, "exit_code": self.exit_code, **body_of(self)}


def _part(part: int) -> str:
    return "" if part < 0 else f"part {part}: "


def offset_text(part: int, offset: int) -> str:
    """Return one offset for people."""
    return f"{_part(part)}{offset}"


def ranges_text(part: int, ranges: Iterable[tuple[int, int]]) -> list[str]:
    """Return ranges `[first, end)` for people."""
    return [
        offset_text(part, first) + (f"..{end - 1}" if end - first > 1 else "")
        for first, end in ranges
    ]


def miscounted(line: Iterable[Snapshot], topic_id: str, *, side: bool = False) -> list[Problem]:
    """Check the counts in the summary of each commit of a topic."""
    wrong: list[str] = []
    for each in line:
        if each.summary.get(TOPIC_ID) != topic_id or ROWS_IN not in each.summary:
            continue
        rows_out, rejected = each.number(ROWS_OUT), each.number(ROWS_REJECTED)
        added = each.number("added-records")
        # The side table may have had a part of a plan's rejects before.
        fits = added <= rejected if side else added == rows_out
        if not fits or each.number(ROWS_IN) != rows_out + rejected + each.number(ROWS_DROPPED):
            wrong.append(str(each.snapshot_id))
    return [Problem("miscounted", len(wrong), tuple(wrong[:SHOWN_MAX]))] if wrong else []


def removed_rows(line: Iterable[Snapshot], topic_id: str) -> int:
    """Return by how many rows snapshots of others made the table smaller."""
    found = 0
    for each in line:
        if topic_id != each.summary.get(TOPIC_ID) and each.summary.get("operation") != "replace":
            # Rows that were rewritten are added again.
            rows = sum(each.number(key) for key in REMOVED)
            found += max(rows - each.number("added-records"), 0) if rows else 0
    return found


def verify_topic(
    lake: Lake,
    topic: LakeTopic,
    *,
    timeout_s: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> VerifyResult:
    """Verify a topic's table; see `Lake.verify`.

    The compared files of the disk tier are pinned until it returns.
    """
    if topic.keyed:
        raise InvalidRequest("keyed tables come later", topic=topic.name)
    report = progress or (lambda _step: None)

    def heard(answer: Answer) -> None:
        report(str(answer.body.get("step", "")))

    with lake.needed():
        # Without Spark: a table that cannot be verified is refused before Spark has started.
        view = lake.call(lambda: lake.tables().look(topic.table))
        if view.topic_id != topic.uid:
            raise Conflict(
                "the table is another topic's", table=topic.table, topic_id=view.topic_id
            )
        if view.schema_version is None:
            raise NotFound("the table has no columns of this topic", table=topic.table)
        report("starting")
        _wait_ready(lake, topic)
        disk = lake.tiers.disk
        with contextlib.ExitStack() as pins:
            for runtime in topic.runtimes:
                pins.enter_context(disk.pins.pin(disk.files(runtime.state.id)))
            body = body_of(_request(lake, topic, view.schema_version))
            answer = lake.ask_worker("verify", body, heard).result(timeout_s or VERIFY_TIMEOUT_S)
    result = msgspec.convert(answer, learnt(VerifyResult), str_keys=True)
    result.time_us = lake.clock.now_us()
    return result


def _wait_ready(lake: Lake, topic: LakeTopic) -> None:
    lake.call(lake.worker.try_again)
    deadline = lake.clock.monotonic() + READY_TIMEOUT_S
    pause = threading.Event()
    while lake.worker.state != "ready":
        if lake.worker.refused:
            raise Unavailable("Spark cannot be started", why=lake.worker.refused)
        if lake.clock.monotonic() > deadline:
            raise Unavailable("Spark did not start in time", why=lake.worker.why or topic.why)
        pause.wait(READY_PAUSE_S)


def _request(lake: Lake, topic: LakeTopic, version: int) -> VerifyRequest:
    """Return the body of the request; `version` is that of the table's columns."""
    disk = lake.tiers.disk
    message = topic.runtimes[0].state.spec.kind == "message"
    ranges: dict[int, list[PartRange]] = {}
    parts: list[PartFacts] = []
    # Before the look at the table, which may only have more by then.
    committed = topic.remembered()
    for runtime in topic.runtimes:
        part, special = runtime.part, special_ranges(runtime)
        parts.append(part_facts(part, special, committed=committed[part]))
        picture = disk.picture(runtime.state.id)
        for each in part_sets(picture, part=part, committed=0, path=disk.path).sets:
            # Columns that the table does not have yet are those of records that it does not have.
            if each.schema_version <= version:
                _extend(ranges.setdefault(each.schema_version, []), part, runtime.state.id, each)
    now = topic.columns(version)
    staged: list[StagedRows] = []
    for own, some in sorted(ranges.items()):
        schema = topic.columns(own)
        plan = plan_of(
            identity=f"verify-{own}",
            topic=topic.name,
            uid=topic.uid,
            table=topic.table,
            kind="message" if message else "table",
            version=own,
            schema=schema,
            ranges=tuple(some),
            now_us=lake.clock.now_us(),
        )
        staged.append(StagedRows(plan, *column_names(schema, now, by_id=not message)))
    return VerifyRequest(
        topic=topic.name,
        topic_id=topic.uid,
        table=topic.table,
        parts=tuple(parts),
        staged=tuple(staged),
    )


def _extend(ranges: list[PartRange], part: int, topic: int, each: StagedSet) -> None:
    """Add a set to ranges of its version; sets that touch become one range."""
    if ranges and ranges[-1].part == part and ranges[-1].hi == each.first:
        last = ranges.pop()
        files, gaps = (*last.files, *each.files), (*last.gaps, *each.gaps)
        ranges.append(replace(last, hi=each.end, files=files, gaps=gaps))
    else:
        ranges.append(PartRange(part, topic, each.first, each.end, each.files, each.gaps))


def part_facts(part: int, ranges: Sequence[SpecialRange], *, committed: int = 0) -> PartFacts:
    """Return which offsets of a part have no record, and which have lost theirs here."""
    lost = RangeSet((each.first, each.end) for each in ranges if each.kind == RANGE_LOST)
    gaps = RangeSet((each.first, each.end) for each in ranges if each.kind != RANGE_LOST)
    return PartFacts(part, gaps, lost - gaps, committed)


def column_names(
    then: pa.Schema, now: pa.Schema, *, by_id: bool
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the current names of columns, without dropped ones, and the columns added later."""
    if not by_id:
        return {name: name for name in then.names if name in now.names}, ()
    names = {column_id(field): field.name for field in now}
    found = {field.name: names[column_id(field)] for field in then if column_id(field) in names}
    return found, tuple(name for name in now.names if name not in found.values())
