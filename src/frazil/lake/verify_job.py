"""Prove with Spark that a table has every record once, from the table and the tiers alone."""

from __future__ import annotations

import functools
import operator
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by

from frazil.errors import Conflict, InvalidRequest, NotFound, Unavailable
from frazil.lake.certificate import (
    SHOWN_MAX,
    Findings,
    Problem,
    VerifyRequest,
    joined_problems,
    offset_text,
    ranges_text,
)
from frazil.lake.connection import load
from frazil.lake.declared import ADOPTED, SKIPPED, united, without
from frazil.lake.java_errors import java_calls
from frazil.lake.look import look
from frazil.lake.session import CATALOG_NAME
from frazil.lake.stages.columns import by_name, quoted
from frazil.lake.verify_chain import (
    Chain,
    check_chain,
    declared_in,
    holes,
    line_of,
    records_between,
)
from frazil.lake.verify_files import check_files
from frazil.lake.verify_rows import KEY, comparable, compare_staged, placed
from frazil.lake.watermark import watermarks
from frazil.struct_types import learnt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyiceberg.catalog import Catalog
    from pyspark.sql import Column, DataFrame, SparkSession

    from frazil.lake.certificate import Kind
    from frazil.lake.declared import Ranges
    from frazil.lake.plan import PartRange, Plan, TableName
    from frazil.lake.table import Ends, View
    from frazil.lake.worker_calls import Job

__all__ = ["examine", "verify"]

BUCKET: Final = 1 << 16
"""Offsets are counted in so large groups; only groups that lack some are looked into."""
LOOKS_MAX: Final = 5
LAST: Final = 1 << 63


class _Seen(NamedTuple):
    """A table at one snapshot."""

    table: TableName
    view: View
    chain: Chain
    skipped: Ranges
    adopted: Ranges


def verify(job: Job) -> Mapping[str, Any]:
    """Verify a table; see `frazil.lake.certificate` for request and answer."""
    try:
        request = msgspec.convert(job.body, learnt(VerifyRequest), str_keys=True)
    except msgspec.MsgspecError as error:
        raise InvalidRequest("request to verify cannot be read", reason=error) from error
    found = examine(job.spark, job.catalog, request, progress=job.progress)
    body: dict[str, Any] = msgspec.to_builtins(found, str_keys=True)
    return body


def examine(
    spark: SparkSession,
    catalog: Catalog,
    request: VerifyRequest,
    *,
    progress: Callable[[str], None] = lambda _step: None,
) -> Findings:
    """Examine a table at its present snapshot.

    Raises:
        NotFound: there is no such table.
        Conflict: it is another topic's.
    """
    # The main table first: its rejects are committed before it.
    main = _see(catalog, request.table, request, side=False)
    try:
        side: _Seen | None = _see(catalog, request.table.rejects, request, side=True)
    except NotFound:
        side = None
    seen = [each for each in (main, side) if each is not None]
    ends, behind = _ends(main.view, request.committed)
    found = Findings(
        topic=request.topic,
        topic_id=request.topic_id,
        table=request.table,
        sid=main.view.sid,
        begins=dict(main.chain.begins or {}),
        ends=ends,
        behind=behind,
        snapshots=main.chain.length,
        problems=tuple(problem for each in seen for problem in each.chain.problems),
        versions={"spark": spark.version, "python": sys.version.split()[0]},
    )
    progress("verify_files")
    checked = [check_files(catalog, each.table, each.view.sid) for each in seen]
    found.files = sum(each.files for each in checked)
    missing = [path for each in checked for path in each.wrong]
    if missing:
        # Spark could not read the table.
        found.problems += (Problem("file", len(missing), tuple(missing[:SHOWN_MAX])),)
        found.behind = {}
        return found
    with java_calls("verify", request.table):
        rows = _Rows(spark, request, main, side, found)
        rows.check(progress)
    for each in rows.unpinned:
        if look(catalog, each.table).sid != each.view.sid:
            raise Unavailable("the table changed meanwhile, try again", table=each.table)
    return found


def _see(catalog: Catalog, table: TableName, request: VerifyRequest, *, side: bool) -> _Seen:
    """Read where a table stands and its snapshots, both of one moment."""
    for _attempt in range(LOOKS_MAX):
        view = look(catalog, table)
        metadata = load(catalog, table).metadata
        line = line_of(metadata)
        if (line[-1].snapshot_id if line else None) == view.sid:
            break
    else:
        raise Unavailable("others keep changing the table, try again", table=table)
    if view.topic_id != request.topic_id:
        raise Conflict("the table is another topic's", table=table, topic_id=view.topic_id)
    skipped, adopted = declared_in(metadata, SKIPPED), declared_in(metadata, ADOPTED)
    chain = check_chain(
        line,
        request.topic_id,
        request.gaps,
        side=side,
        skipped=united(skipped, request.lost),
        adopted=adopted,
        begin=view.begin_ends,
    )
    return _Seen(table, view, chain, skipped, adopted)


def _ends(view: View, committed: Ends) -> tuple[Ends, Ends]:
    """Return up to where a table has to have every record, and where it ends if that is before.

    A table does not tell that others have taken it back or put another in its place: what it was
    once seen to have, it has to have.
    """
    own, _certain = watermarks(view, committed)
    if view.sid is None:
        # Nothing was ever committed to this one, whatever its properties say.
        own = dict(view.begin_ends)
    parts = sorted({*own, *committed})
    ends = {part: max(own.get(part, 0), committed.get(part, 0)) for part in parts}
    return ends, {part: own.get(part, 0) for part in parts if own.get(part, 0) < ends[part]}


class _Rows:
    """The rows of one table at one snapshot, under examination."""

    def __init__(
        self,
        spark: SparkSession,
        request: VerifyRequest,
        main: _Seen,
        side: _Seen | None,
        found: Findings,
    ) -> None:
        self._spark = spark
        self._request = request
        self._seen = main
        self._found = found
        self._gaps = without(request.gaps, main.adopted)
        """Offsets that have no record, by part; another log may have had one there."""
        self._excepted = united(main.skipped, main.adopted, request.lost)
        self._needless = united(self._gaps, self._excepted)
        """Offsets that need not be there, by part."""
        self.unpinned: list[_Seen] = []
        self._main = self._now(main)
        self._side = None if side is None else self._now(side)

    def check(self, progress: Callable[[str], None]) -> None:
        """Fill the findings in."""
        progress("verify_offsets")
        self._measure()
        places = self._places().groupBy(*KEY).agg(F.count(F.lit(1)).alias("n")).persist()
        try:
            self._check_places(places)
            self._count_declared(places)
            deleted = self._deleted(places)
            self._check_dense(places, deleted)
            progress("verify_rows")
            self._check_staged(deleted)
        finally:
            places.unpersist()

    def _add(self, *problems: Problem) -> None:
        self._found.problems = joined_problems((*self._found.problems, *problems))

    def _at(self, table: TableName, sid: int | None) -> DataFrame:
        name = ".".join(quoted(each) for each in (CATALOG_NAME, *table))
        if sid is None:
            return self._spark.table(name).limit(0)
        return self._spark.read.option("versionAsOf", str(sid)).table(name)

    def _now(self, seen: _Seen) -> DataFrame:
        """Return a table at the snapshot that was looked at, with the columns of today.

        A snapshot has the columns of its own time: where they have changed since, the table itself
        is read, and `examine` sees to it that it did not move meanwhile.
        """
        pinned = self._at(seen.table, seen.view.sid)
        current = self._at(seen.table, None)
        if pinned.schema == current.schema:
            return pinned
        self.unpinned.append(seen)
        name = ".".join(quoted(each) for each in (CATALOG_NAME, *seen.table))
        return self._spark.table(name)

    def _measure(self) -> None:
        """Count the rows and take their fingerprint; find where they begin if nothing tells."""
        columns = [comparable(by_name(f.name), f.dataType) for f in self._main.schema]
        rows = self._main.agg(F.count(F.lit(1)), F.bit_xor(F.xxhash64(*columns))).first()
        assert rows is not None
        self._found.rows = int(rows[0])
        self._found.content = "" if rows[1] is None else f"{int(rows[1]) & (1 << 64) - 1:016x}"
        if self._side is not None:
            self._found.rejected = self._side.where(self._below(self._side)).count()
        known = self._found.begins
        if self._seen.chain.begins is None:
            first = self._places().groupBy("part").agg(F.min("offset").alias("first")).collect()
            known |= {each["part"]: int(each["first"]) for each in first}
            for staged in self._request.staged:
                for each in staged.plan.parts:
                    # A table begins with what was held when it was made.
                    known[each.part] = min(known.get(each.part, each.lo), each.lo)
        for part, end in self._found.ends.items():
            known[part] = min(known.get(part, self._found.behind.get(part, end)), end)
        gaps = self._gaps
        self._found.gaps = sum(
            end - known[part] - records_between(known[part], end, gaps.get(part, ()))
            for part, end in self._found.ends.items()
        )

    def _below(self, frame: DataFrame) -> Column:
        part, offset = placed(frame)
        return _any((part == p) & (offset < end) for p, end in self._found.ends.items())

    def _places(self) -> DataFrame:
        """Return the place of every row; rejects of a commit that is not there yet are left out."""
        places = self._main.select(*placed(self._main))
        if self._side is None:
            return places
        side = self._side.where(self._below(self._side))
        return places.unionAll(side.select(*placed(side)))

    def _inside(self) -> Column:
        """Return whether a place is one of a record."""
        part, offset = F.col("part"), F.col("offset")
        found, gaps = self._found, self._gaps
        return _any(
            (part == p)
            & (offset >= found.begins[p])
            & (offset < end)
            & ~_any((offset >= a) & (offset < b) for a, b in gaps.get(p, ()))
            for p, end in found.ends.items()
        )

    def _count_declared(self, places: DataFrame) -> None:
        """List what was given up and is not there, and what is of another log."""
        found, seen = self._found, self._seen
        outside = {part: ((0, found.begins[part]), (end, LAST)) for part, end in found.ends.items()}
        skipped = without(without(seen.skipped, outside), self._gaps)
        found.skipped, found.skipped_places = _told(skipped)
        found.adopted, found.adopted_places = _told(without(seen.adopted, outside))
        if found.skipped:
            found.skipped -= places.where(_within(skipped)).count()

    def _check_places(self, places: DataFrame) -> None:
        checks: list[tuple[Kind, Column]] = [
            ("doubled", F.col("n") > 1),
            ("extra", ~self._inside()),
        ]
        for kind, wrong in checks:
            count = places.where(wrong).count()
            if count:
                first = places.where(wrong).orderBy(*KEY).limit(SHOWN_MAX).collect()
                shown = tuple(offset_text(each.part, each.offset) for each in first)
                self._add(Problem(kind, count, shown))

    def _deleted(self, places: DataFrame) -> DataFrame | None:
        """Return the places of rows that snapshots of others removed and nobody put back."""
        frames: list[DataFrame] = []
        for removal in self._seen.chain.removals:
            if removal.parent is not None:
                before = self._at(self._request.table, removal.parent)
                after = self._at(self._request.table, removal.sid)
                gone = before.select(*placed(before)).join(
                    after.select(*placed(after)), list(KEY), "left_anti"
                )
                frames.append(gone)
        if not frames:
            return None
        gone = functools.reduce(lambda one, other: one.unionAll(other), frames).distinct()
        gone = gone.join(places, list(KEY), "left_anti").where(self._inside())
        self._found.deleted = gone.count()
        first = gone.orderBy(*KEY).limit(SHOWN_MAX).collect()
        self._found.deleted_places = tuple(offset_text(each.part, each.offset) for each in first)
        if self._found.deleted:
            self._found.foreign = tuple(each.sid for each in self._seen.chain.removals)
        return gone

    def _check_dense(self, places: DataFrame, deleted: DataFrame | None) -> None:
        """Look for offsets that should be there: count them in groups, then look into groups."""
        ours = ~_within(self._excepted)
        covered = places.where(self._inside() & ours).select(*KEY)
        if deleted is not None:
            covered = covered.unionAll(deleted.where(ours).select(*KEY))
        found = self._found
        chained = {p: (found.begins[p], found.behind.get(p, end)) for p, end in found.ends.items()}
        self._judge_missing(*self._lacking(covered, chained))
        behind: Ends = {}
        for part, end in found.behind.items():
            # No snapshot that is left has had them: it was not one of these that removed them.
            first = max(end, found.begins[part])
            lost, shown = self._lacking(covered, {part: (first, found.ends[part])})
            if lost:
                behind[part] = end
                self._add(Problem("missing", lost, tuple(shown)))
        found.behind = behind

    def _lacking(
        self, covered: DataFrame, spans: Mapping[int, tuple[int, int]]
    ) -> tuple[int, list[str]]:
        """Return how many offsets of spans should be there and are not, and the first of them."""
        within = covered.where(_within({part: (span,) for part, span in spans.items()}))
        bucket = F.floor(F.col("offset") / F.lit(BUCKET)).alias("bucket")
        counted = within.groupBy("part", bucket).count().collect()
        counts = {(each["part"], each["bucket"]): each["count"] for each in counted}
        missing = 0
        shown: list[str] = []
        for part, first, end in _groups(spans):
            gaps = self._needless.get(part, ())
            wanted = records_between(first, end, gaps)
            lacking = wanted - counts.get((part, first // BUCKET), 0)
            missing += lacking
            if lacking and len(shown) < SHOWN_MAX:
                here = (F.col("part") == part) & F.col("offset").between(first, end - 1)
                present = [each["offset"] for each in covered.where(here).collect()]
                shown += ranges_text(part, holes(present, first, end, gaps))
        return missing, shown[:SHOWN_MAX]

    def _judge_missing(self, missing: int, shown: list[str]) -> None:
        """Call it loss, unless others removed as many and what was before is not left to see."""
        if not missing:
            return
        unseen = [each for each in self._seen.chain.removals if each.parent is None]
        if missing > sum(each.rows for each in unseen):
            self._add(Problem("missing", missing, tuple(shown)))
            return
        self._found.deleted += missing
        self._found.deleted_places += tuple(shown)
        self._found.foreign = tuple(each.sid for each in self._seen.chain.removals)

    def _check_staged(self, deleted: DataFrame | None) -> None:
        for staged in self._request.staged:
            rows = msgspec.structs.replace(staged, plan=self._clamped(staged.plan))
            if not rows.plan.parts:
                continue
            found = compare_staged(
                self._spark, rows, *self._own(), self._excused(rows.plan, deleted)
            )
            self._found.staged += sum(len(each.files) for each in rows.plan.parts)
            self._found.compared += found.rows
            self._add(*found.problems)

    def _others(self) -> Ranges:
        """Return the ranges that the tiers have other records of, or have lost, by part."""
        return united(self._seen.adopted, self._request.lost)

    def _own(self) -> tuple[DataFrame, DataFrame | None]:
        """Return the rows that are of this log, of the table and of its side table."""
        others = self._others()
        if not others:
            return self._main, self._side
        frames = [
            None if each is None else each.where(~_within(others, *placed(each)))
            for each in (self._main, self._side)
        ]
        assert frames[0] is not None
        return frames[0], frames[1]

    def _excused(self, plan: Plan, deleted: DataFrame | None) -> DataFrame | None:
        """Return the places of staged rows that need not be in the table.

        Those that were deleted or given up, if they are not there, and those that are not compared.
        """
        frames = [] if deleted is None else [deleted.select(*KEY)]
        frames += self._offsets(plan, self._seen.skipped)
        excused: list[DataFrame] = self._offsets(plan, self._others())
        if frames:
            there = self._main.select(*placed(self._main))
            gone = functools.reduce(lambda one, other: one.unionAll(other), frames)
            excused.append(gone.join(there, list(KEY), "left_anti"))
        if not excused:
            return None
        return functools.reduce(lambda one, other: one.unionAll(other), excused)

    def _offsets(self, plan: Plan, ranges: Ranges) -> list[DataFrame]:
        """Return the places of a plan that lie in ranges."""
        return [
            self._spark.range(max(first, each.lo), min(end, each.hi)).select(
                F.lit(each.part).alias("part"), F.col("id").alias("offset")
            )
            for each in plan.parts
            for first, end in ranges.get(each.part, ())
            if max(first, each.lo) < min(end, each.hi)
        ]

    def _clamped(self, plan: Plan) -> Plan:
        """Return what a plan has of the offsets that the table should have."""
        parts: list[PartRange] = []
        for each in plan.parts:
            lo = max(each.lo, self._found.begins.get(each.part, 0))
            hi = min(each.hi, self._found.ends.get(each.part, 0))
            files = tuple(f for f in each.files if f.offset_first < hi and f.offset_last >= lo)
            if lo < hi:
                parts.append(msgspec.structs.replace(each, lo=lo, hi=hi, files=files))
        return msgspec.structs.replace(plan, parts=tuple(parts))


def _groups(spans: Mapping[int, tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Cut spans where groups begin: part, first, end."""
    found: list[tuple[int, int, int]] = []
    for part, (first, end) in sorted(spans.items()):
        at = first
        while at < end:
            following = min((at // BUCKET + 1) * BUCKET, end)
            found.append((part, at, following))
            at = following
    return found


def _within(ranges: Ranges, part: Column | None = None, offset: Column | None = None) -> Column:
    """Return whether a place lies in ranges."""
    number = F.col("part") if part is None else part
    at = F.col("offset") if offset is None else offset
    return _any(
        (number == own) & (at >= first) & (at < end)
        for own, each in ranges.items()
        for first, end in each
    )


def _told(ranges: Ranges) -> tuple[int, tuple[str, ...]]:
    """Return how many offsets ranges have, and the ranges as places."""
    count = sum(end - first for each in ranges.values() for first, end in each)
    places = [text for part, each in sorted(ranges.items()) for text in ranges_text(part, each)]
    return count, tuple(places)


def _any(conditions: Iterable[Column]) -> Column:
    return functools.reduce(operator.or_, conditions, F.lit(False))
