"""The worker's side of `frazil verify`: count offsets and compare rows with Spark."""

from __future__ import annotations

import contextlib
import functools
import operator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace
from pyspark.sql import Window
from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by
from pyspark.sql import types as T  # noqa: N812 - as F

from frazil.errors import Conflict, InvalidRequest, NotFound, Unavailable
from frazil.lake.connection import load
from frazil.lake.iceberg import (
    ADOPTED,
    SKIPPED,
    Snapshot,
    decode_ranges,
    parse_metadata,
    united,
    without,
)
from frazil.lake.java_errors import java_calls
from frazil.lake.session import CATALOG_NAME
from frazil.lake.stages.columns import (
    OFFSET,
    PART,
    TIME,
    by_name,
    decode_schema,
    quoted,
    rebuilt,
    spark_type,
)
from frazil.lake.stages.context import Context, sources_of
from frazil.lake.stages.footers import staged_facts
from frazil.lake.stages.pipeline import REJECT_STAGES, run_stages
from frazil.lake.stages.project import project
from frazil.lake.stages.read import read_staged
from frazil.lake.stages.shapes import shaped, without_others
from frazil.lake.stages.split import keep_accepted
from frazil.lake.stages.validate import validate
from frazil.lake.table_state import look, state_of
from frazil.lake.verify import (
    SHOWN_MAX,
    Problem,
    VerifyRequest,
    VerifyResult,
    miscounted,
    offset_text,
    ranges_text,
    removed_rows,
)
from frazil.lake.watermark import watermarks
from frazil.lake.wire import body_of
from frazil.offsets import RangeSet
from frazil.struct_types import learnt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pyiceberg.catalog import Catalog
    from pyspark.sql import Column, DataFrame, SparkSession

    from frazil.lake.iceberg import Ranges
    from frazil.lake.plan import PartRange, TableName
    from frazil.lake.table import Ends, TableState
    from frazil.lake.verify import Kind, StagedRows
    from frazil.lake.worker_jobs import SparkJob

__all__ = ["examine", "verify"]

KEY: Final = ("part", "offset")
LAST: Final = 1 << 63
REJECT_COLUMNS: Final = (TIME, "reason", "field", "schema_version", "encoding", "original")


def verify(job: SparkJob) -> Mapping[str, Any]:
    """Verify a table; `VerifyRequest` is the body of the request, `VerifyResult` of the answer."""
    try:
        request = msgspec.convert(job.body, learnt(VerifyRequest), str_keys=True)
    except msgspec.MsgspecError as error:
        raise InvalidRequest("request to verify cannot be read", reason=error) from error
    found = examine(job.spark.session, job.spark.catalog, request, progress=job.progress)
    return body_of(found)


def examine(
    spark: SparkSession,
    catalog: Catalog,
    request: VerifyRequest,
    *,
    progress: Callable[[str], None] = lambda _step: None,
) -> VerifyResult:
    """Examine a table at its current snapshot.

    Raises:
        NotFound: there is no such table.
        Conflict: it belongs to another topic.
        CorruptionError: a file of it is missing or cannot be read.
    """
    # The main table first: its rejects are committed before it.
    main = _load(catalog, request.table, request)
    side: _Loaded | None = None
    with contextlib.suppress(NotFound):
        side = _load(catalog, request.table.rejects, request)
    with java_calls("verify", request.table):
        rows = _Rows(spark, request, main, side)
        for each in (main, side):
            if each is not None:
                rows.found.add(*miscounted(each.line, request.topic_id, side=each is side))
        rows.check(progress)
    for each in rows.unpinned:
        if look(catalog, each.table).sid != each.view.sid:
            raise Unavailable(
                "the table changed during the verification, try again", table=each.table
            )
    return rows.found


class _Loaded(NamedTuple):
    """A table at one moment; `line` has its snapshots, newest first."""

    table: TableName
    view: TableState
    line: list[Snapshot]
    skipped: Ranges
    adopted: Ranges


def _load(catalog: Catalog, table: TableName, request: VerifyRequest) -> _Loaded:
    loaded = load(catalog, table)
    metadata = parse_metadata(loaded.metadata, table)
    view = state_of(catalog, table, loaded)
    if view.topic_id != request.topic_id:
        raise Conflict("the table is another topic's", table=table, topic_id=view.topic_id)
    skipped, adopted = (decode_ranges(metadata.properties, key) for key in (SKIPPED, ADOPTED))
    return _Loaded(table, view, list(metadata.ancestors()), skipped, adopted)


class _Rows:
    """The rows of one table at one snapshot, under examination."""

    def __init__(
        self, spark: SparkSession, request: VerifyRequest, main: _Loaded, side: _Loaded | None
    ) -> None:
        self._spark = spark
        self._request = request
        self._loaded = main
        lost = {each.part: RangeSet(each.lost) for each in request.parts}
        gaps = {each.part: RangeSet(each.gaps) for each in request.parts}
        self._gaps = without(gaps, main.adopted)
        """Offsets that have no record, by part; another log may have had one there."""
        self._others = united(main.adopted, lost)
        """Offsets that the tiers have other records of, or have lost, by part."""
        self._excepted = united(main.skipped, self._others)
        self.unpinned: list[_Loaded] = []
        self._main = self._now(main)
        self._side = None if side is None else self._now(side)
        committed = {each.part: each.committed for each in request.parts if each.committed}
        own, _certain = watermarks(main.view, committed)
        if main.view.sid is None:
            # This table never had a commit, whatever its properties are.
            own = dict(main.view.begin_ends)
        # A table does not show that others rolled it back or replaced it: rows that it was once
        # seen to have, it must have.
        ends = {
            part: max(own.get(part, 0), committed.get(part, 0))
            for part in sorted({*own, *committed})
        }
        self._own_ends = {part: min(own.get(part, 0), end) for part, end in ends.items()}
        begins = {part: min(main.view.begin_ends.get(part, 0), end) for part, end in ends.items()}
        self.found = VerifyResult(
            topic=request.topic,
            topic_id=request.topic_id,
            table=request.table,
            sid=main.view.sid,
            begins=begins,
            ends=ends,
            snapshots=len(main.line),
        )

    def check(self, progress: Callable[[str], None]) -> None:
        """Fill in the result."""
        progress("verify_offsets")
        found = self.found
        found.rows = self._main.count()
        every = self._main.select(*_key_columns(self._main))
        if self._side is not None:
            # Rejects of a commit that is not there yet do not count.
            ends = _ranges((part, 0, end) for part, end in found.ends.items())
            side = self._side.select(*_key_columns(self._side)).where(_within(ends))
            found.rejected = side.count()
            every = every.unionAll(side)
        inside = _ranges(self._spans(found.begins, found.ends))
        found.gaps = sum((own & inside.get(part, ())).size for part, own in self._gaps.items())
        keys = every.groupBy(*KEY).agg(F.count(F.lit(1)).alias("n")).persist()
        try:
            self._check_keys(keys, "doubled", F.col("n") > 1)
            self._check_keys(keys, "extra", ~self._inside())
            self._count_declared(keys)
            self._check_dense(keys)
            progress("verify_rows")
            for staged in self._request.staged:
                self._compare(self._clamped(staged))
        finally:
            keys.unpersist()

    def _at(self, table: TableName, sid: int | None) -> DataFrame:
        name = ".".join(quoted(each) for each in (CATALOG_NAME, *table))
        if sid is None:
            return self._spark.table(name).limit(0)
        return self._spark.read.option("versionAsOf", str(sid)).table(name)

    def _now(self, loaded: _Loaded) -> DataFrame:
        """Return a table at the examined snapshot, with the current columns.

        A snapshot has the columns of its time. If they have changed since, the current table is
        read, and `examine` checks that its snapshot did not change.
        """
        pinned = self._at(loaded.table, loaded.view.sid)
        if pinned.schema == self._at(loaded.table, None).schema:
            return pinned
        self.unpinned.append(loaded)
        return self._spark.table(".".join(quoted(each) for each in (CATALOG_NAME, *loaded.table)))

    @staticmethod
    def _spans(lows: Ends, highs: Ends) -> list[tuple[int, int, int]]:
        return [(p, lows[p], max(lows[p], high)) for p, high in highs.items()]

    def _inside(self) -> Column:
        """Return whether an offset is one of a record."""
        found = self.found
        return _within(_ranges(self._spans(found.begins, found.ends))) & ~_within(self._gaps)

    def _check_keys(self, keys: DataFrame, kind: Kind, wrong: Column) -> None:
        count = keys.where(wrong).count()
        if count:
            self.found.add(Problem(kind, count, tuple(_first(keys.where(wrong)))))

    def _count_declared(self, keys: DataFrame) -> None:
        """List the offsets that were given up and are not there, and those of another log."""
        found = self.found
        outside = {
            part: RangeSet([(0, found.begins[part]), (end, LAST)])
            for part, end in found.ends.items()
        }
        skipped = without(without(self._loaded.skipped, outside), self._gaps)
        adopted = without(self._loaded.adopted, outside)
        found.skipped, found.skipped_ranges = _shown(skipped)
        found.adopted, found.adopted_ranges = _shown(adopted)
        if found.skipped:
            found.skipped -= keys.where(_within(skipped)).count()

    def _check_dense(self, keys: DataFrame) -> None:
        """Find missing offsets."""
        found = self.found
        covered = keys.select(*KEY).where(self._inside() & ~_within(self._excepted))
        missing, examples = self._missing(covered, found.begins, self._own_ends)
        if missing > removed_rows(self._loaded.line, self._request.topic_id):
            found.add(Problem("missing", missing, examples))
        else:
            found.deleted, found.deleted_ranges = missing, examples
        # No remaining snapshot has rows above the table's end.
        starts = {part: max(end, found.begins[part]) for part, end in self._own_ends.items()}
        missing, examples = self._missing(covered, starts, found.ends)
        if missing:
            found.add(Problem("missing", missing, examples))
            found.short = {p: e for p, e in self._own_ends.items() if e < found.ends[p]}

    def _missing(self, covered: DataFrame, lows: Ends, highs: Ends) -> tuple[int, tuple[str, ...]]:
        """Return how many records of spans are missing in `covered`, and the first offsets."""
        spans = [(p, low, high) for p, low, high in self._spans(lows, highs) if low < high]
        needless = united(self._gaps, self._excepted)
        wanted = sum(each.size for each in without(_ranges(spans), needless).values())
        inside = covered.where(_within(_ranges(spans)))
        missing = wanted - inside.count() if spans else 0
        if not missing:
            return 0, ()
        edges = [self._offsets(p, at) for p, low, high in spans for at in (low - 1, high)]
        ordered = Window.partitionBy("part").orderBy("offset")
        following = F.lead("offset").over(ordered).alias("following")
        breaks = (
            functools.reduce(lambda one, other: one.unionAll(other), [inside, *edges])
            .select(*KEY, following)
            .where(F.col("following") > F.col("offset") + 1)
            .orderBy(*KEY)
            # Each declared range makes one break at most.
            .limit(sum(map(len, needless.values())) + SHOWN_MAX)
            .collect()
        )
        holes = united(
            *(_ranges([(each.part, each.offset + 1, each.following)]) for each in breaks)
        )
        examples = [
            text for p, own in without(holes, needless).items() for text in ranges_text(p, own)
        ]
        return missing, tuple(examples[:SHOWN_MAX])

    def _offsets(self, part: int, offset: int) -> DataFrame:
        return self._spark.range(offset, offset + 1).select(
            F.lit(part).alias("part"), F.col("id").alias("offset")
        )

    # -- rows --------------------------------------------------------------------------------------

    def _clamped(self, staged: StagedRows) -> StagedRows:
        """Return the staged files' rows at the offsets that the table should have."""
        parts: list[PartRange] = []
        for each in staged.plan.parts:
            lo = max(each.lo, self.found.begins.get(each.part, 0))
            hi = min(each.hi, self.found.ends.get(each.part, 0))
            files = tuple(f for f in each.files if f.offset_first < hi and f.offset_last >= lo)
            if lo < hi:
                parts.append(replace(each, lo=lo, hi=hi, files=files))
        return replace(staged, plan=replace(staged.plan, parts=tuple(parts)))

    def _compare(self, staged: StagedRows) -> None:
        """Compare the rows of the table and its side table with those of staged files."""
        plan = staged.plan
        if not plan.parts:
            return
        starts: Ends = {}
        for each in plan.parts:
            starts[each.part] = min(each.lo, starts.get(each.part, each.lo))
        schema = decode_schema(plan.schema)
        fields = [T.StructField(OFFSET, T.LongType()), T.StructField(TIME, T.TimestampType())]
        if PART in self._main.columns:
            fields.append(T.StructField(PART, T.IntegerType()))
        fields += [T.StructField(field.name, spark_type(field.type)) for field in schema]
        _rows, doubtful = staged_facts(sources_of(plan, starts), schema)
        table = T.StructType(fields)
        context = Context(plan=plan, schema=schema, table=table, from_offsets=starts, raw=doubtful)
        rows = read_staged(self._spark, context)
        accepted = project(keep_accepted(validate(rows, context), context), context)
        spans = united(*(_ranges([(each.part, each.lo, each.hi)]) for each in plan.parts))
        pairs = [(accepted, self._main, {TIME: TIME, **staged.names}, staged.added)]
        if self._side is not None:
            side = self._side
            expected = run_stages(rows, context, REJECT_STAGES) if doubtful else side.limit(0)
            pairs.append((expected, side, {name: name for name in REJECT_COLUMNS}, ()))
        for expected, actual, names, added in pairs:
            theirs, ours = self._own(expected, spans), self._own(actual, spans)
            self._judge(_joined(theirs, ours, names, added))

    def _own(self, frame: DataFrame, spans: Ranges) -> DataFrame:
        """Return the rows within spans that are of this log."""
        key = _key_columns(frame)
        return frame.where(_within(spans, *key) & ~_within(self._others, *key))

    def _judge(self, joined: DataFrame) -> None:
        lone = F.col("staged").isNull()
        altered = ~lone & (F.col("columns") != F.lit(""))
        counts = joined.agg(F.count_if(~lone), F.count_if(lone), F.count_if(altered)).first()
        assert counts is not None
        rows, unmatched, differing = map(int, counts)
        self.found.compared += rows
        if differing:
            examples = tuple(_first(joined.where(altered), "columns"))
            self.found.add(Problem("altered", differing, examples))
        if unmatched:
            self.found.add(Problem("unmatched", unmatched, tuple(_first(joined.where(lone)))))


def _joined(
    expected: DataFrame,
    actual: DataFrame,
    names: Mapping[str, str],
    added: Sequence[str],
) -> DataFrame:
    """Join each actual row with the expected one; `columns` has the names that differ, null-safe.

    `names` maps columns of one to the other. A column that the table has not got any more makes
    every row differ. Expected rows that are not there are missing offsets, counted before.
    """
    types = {field.name: field.dataType for field in actual.schema}
    known = {field.name: field.dataType for field in expected.schema}
    left: list[Column] = []
    right: list[Column] = []
    differing: list[Column] = []
    for old, new in [*names.items(), *((None, each) for each in added)]:
        if new not in types:
            differing.append(F.lit(new))
            continue
        column = F.lit(None) if old is None else by_name(old)
        # Fields that others added inside of a column are not compared.
        data_type = types[new] if old is None else without_others(types[new], known[old])
        found = shaped(by_name(new), types[new], data_type)
        e, a = f"e{len(left)}", f"a{len(left)}"
        left.append(_comparable(column.cast(data_type), data_type).alias(e))
        right.append(_comparable(found, data_type).alias(a))
        differing.append(F.when(~F.col(e).eqNullSafe(F.col(a)), F.lit(new)))
    theirs = expected.select(*_key_columns(expected), *left, F.lit(True).alias("staged"))
    ours = actual.select(*_key_columns(actual), *right)
    columns = F.concat_ws(" ", *differing).alias("columns")
    return ours.join(theirs, list(KEY), "left").select(*KEY, "staged", columns)


def _comparable(column: Column, data_type: T.DataType) -> Column:
    """Return a value in a form that Spark can compare: maps become lists of entries."""
    if "map<" not in data_type.simpleString():
        return column
    return rebuilt(column, data_type, lambda scalar, _type: scalar)


def _key_columns(frame: DataFrame) -> tuple[Column, Column]:
    """Return the part and the offset of a frame's rows; without parts the part is -1."""
    part = by_name(PART).cast(T.IntegerType()) if PART in frame.columns else F.lit(-1)
    return part.alias("part"), by_name(OFFSET).alias("offset")


def _within(ranges: Ranges, part: Column | None = None, offset: Column | None = None) -> Column:
    """Return whether a row's part and offset are in ranges."""
    number = F.col("part") if part is None else part
    at = F.col("offset") if offset is None else offset
    conditions = [
        (number == own) & (at >= first) & (at < end)
        for own, each in ranges.items()
        for first, end in each
    ]
    return functools.reduce(operator.or_, conditions, F.lit(False))


def _ranges(spans: Iterable[tuple[int, int, int]]) -> Ranges:
    return {part: RangeSet([(low, high)]) for part, low, high in spans}


def _first(frame: DataFrame, column: str = "") -> list[str]:
    """Return the first offsets of a frame, with the value of a column."""
    rows = frame.orderBy(*KEY).limit(SHOWN_MAX).collect()
    return [
        offset_text(row.part, row.offset) + (f" ({row[column]})" if column else "") for row in rows
    ]


def _shown(ranges: Ranges) -> tuple[int, tuple[str, ...]]:
    """Return how many offsets ranges have, and the ranges for people."""
    count = sum(each.size for each in ranges.values())
    return count, tuple(text for part, own in ranges.items() for text in ranges_text(part, own))
