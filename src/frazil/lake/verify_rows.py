"""Row by row: the rows that the disk tier still has, against those of the table."""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql import functions as F  # noqa: N812 - the name that everybody knows it by
from pyspark.sql import types as T  # noqa: N812 - as F

from frazil.lake.certificate import SHOWN_MAX, Problem, offset_text
from frazil.lake.stages.columns import OFFSET, PART, TIME, by_name, decode_schema, spark_type
from frazil.lake.stages.context import Context, sources_of
from frazil.lake.stages.footers import staged_facts
from frazil.lake.stages.pipeline import REJECT_STAGES, run_stages
from frazil.lake.stages.project import project
from frazil.lake.stages.read import read_staged
from frazil.lake.stages.shapes import shaped, without_others
from frazil.lake.stages.split import keep_accepted
from frazil.lake.stages.validate import validate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

    from frazil.lake.certificate import StagedRows
    from frazil.lake.plan import Plan

__all__ = ["Compared", "comparable", "compare_staged", "placed"]

KEY: Final = ("part", "offset")
REJECT_COLUMNS: Final = ("reason", "field", "schema_version", "encoding", "original")


class Compared(NamedTuple):
    """How many rows were compared, and what differs."""

    rows: int
    problems: tuple[Problem, ...]


def placed(frame: DataFrame) -> tuple[Column, Column]:
    """Return the part and the offset of a frame's rows; without parts the part is -1."""
    part = by_name(PART).cast(T.IntegerType()) if PART in frame.columns else F.lit(-1)
    return part.alias("part"), by_name(OFFSET).alias("offset")


def comparable(column: Column, data_type: T.DataType) -> Column:
    """Return a value in a form that Spark can compare and hash: maps become lists of entries."""
    if "map<" not in data_type.simpleString():
        return column
    if isinstance(data_type, T.MapType):
        return F.transform(
            F.map_entries(column),
            lambda entry: F.struct(
                comparable(entry.getField("key"), data_type.keyType).alias("key"),
                comparable(entry.getField("value"), data_type.valueType).alias("value"),
            ),
        )
    if isinstance(data_type, T.ArrayType):
        return F.transform(column, lambda each: comparable(each, data_type.elementType))
    assert isinstance(data_type, T.StructType)
    fields = [
        comparable(column.getField(field.name), field.dataType).alias(field.name)
        for field in data_type
    ]
    return F.when(column.isNotNull(), F.struct(*fields))


def compare_staged(
    spark: SparkSession,
    staged: StagedRows,
    main: DataFrame,
    side: DataFrame | None,
    deleted: DataFrame | None,
) -> Compared:
    """Compare the rows of a plan, all committed, with those of the table and its side table.

    `deleted` are the places of rows that others deleted: they are not looked for.
    """
    plan = staged.plan
    starts = {each.part: each.lo for each in plan.parts}
    schema = decode_schema(plan.schema)
    fields = [T.StructField(OFFSET, T.LongType()), T.StructField(TIME, T.TimestampType())]
    if PART in main.columns:
        fields.append(T.StructField(PART, T.IntegerType()))
    fields += [T.StructField(field.name, spark_type(field.type)) for field in schema]
    doubtful = staged_facts(sources_of(plan, starts), schema).doubtful
    context = Context(
        plan=plan,
        schema=schema,
        table=T.StructType(fields),
        from_offsets=starts,
        raw=doubtful,
    )
    rows = read_staged(spark, context)
    accepted = project(keep_accepted(validate(rows, context), context), context)
    names = {TIME: TIME, **staged.names}
    found = _compare(accepted, _within(main, plan), names, staged.added, deleted)
    if side is None:
        return found
    same = {name: name for name in (TIME, *REJECT_COLUMNS)}
    inside = _within(side, plan)
    expected = run_stages(rows, context, REJECT_STAGES) if doubtful else inside.limit(0)
    other = _compare(expected, inside, same, (), deleted)
    return Compared(found.rows + other.rows, found.problems + other.problems)


def _within(frame: DataFrame, plan: Plan) -> DataFrame:
    """Return the rows of a table that lie in a plan's ranges."""
    part, offset = placed(frame)
    conditions = [
        (part == F.lit(each.part)) & (offset >= F.lit(each.lo)) & (offset < F.lit(each.hi))
        for each in plan.parts
    ]
    return frame.where(functools.reduce(operator.or_, conditions))


def _compare(
    expected: DataFrame,
    actual: DataFrame,
    names: Mapping[str, str],
    added: Sequence[str],
    deleted: DataFrame | None,
) -> Compared:
    """Join two frames by place and compare the columns, null-safe; `names` maps one to the other.

    A column that the table has not got any more makes every row differ.
    """
    types = {field.name: field.dataType for field in actual.schema}
    known = {field.name: field.dataType for field in expected.schema}
    left: list[Column] = []
    right: list[Column] = []
    for number, (old, new) in enumerate([*names.items(), *((None, each) for each in added)]):
        if new not in types:
            continue
        column = F.lit(None) if old is None else by_name(old)
        # Fields that others added inside of a column are not compared.
        data_type = types[new] if old is None else without_others(types[new], known[old])
        found = shaped(by_name(new), types[new], data_type)
        left.append(comparable(column.cast(data_type), data_type).alias(f"e{number}"))
        right.append(comparable(found, data_type).alias(f"a{number}"))
    shown = [*names.values(), *added]
    theirs = expected.select(*placed(expected), *left, F.lit(True).alias("staged"))
    if deleted is not None:
        theirs = theirs.join(deleted, list(KEY), "left_anti")
    ours = actual.select(*placed(actual), *right, F.lit(True).alias("kept"))
    joined = theirs.join(ours, list(KEY), "full_outer")
    lone = F.col("staged").isNull() | F.col("kept").isNull()
    differing = [
        F.when(~F.col(f"e{number}").eqNullSafe(F.col(f"a{number}")), F.lit(name))
        for number, name in enumerate(shown)
        if name in types
    ]
    gone = [F.lit(name) for name in shown if name not in types]
    columns = F.concat_ws(" ", *differing, *gone)
    judged = joined.select(*KEY, lone.alias("lone"), columns.alias("columns"))
    return _judged(judged)


def _judged(frame: DataFrame) -> Compared:
    altered = ~F.col("lone") & (F.col("columns") != F.lit(""))
    counts = frame.agg(
        F.count_if(~F.col("lone")), F.count_if(F.col("lone")), F.count_if(altered)
    ).first()
    assert counts is not None
    rows, lone, differing = map(int, counts)
    problems: list[Problem] = []
    if differing:
        found = _first(frame.where(altered))
        places = [f"{offset_text(each.part, each.offset)} ({each.columns})" for each in found]
        problems.append(Problem("altered", differing, tuple(places)))
    if lone:
        found = _first(frame.where(F.col("lone")))
        places = [offset_text(each.part, each.offset) for each in found]
        problems.append(Problem("unmatched", lone, tuple(places)))
    return Compared(rows, tuple(problems))


def _first(frame: DataFrame) -> list[Any]:
    return frame.orderBy(*KEY).limit(SHOWN_MAX).collect()
