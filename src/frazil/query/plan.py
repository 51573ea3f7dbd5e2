"""Plans: a statement, parsed and rewritten so that it can run at any snapshot.

A plan depends only on the text and on the topics' schemas, so plans are cached. A plan has two
forms: a look-up of keys without DuckDB, and the rewritten text with one placeholder for the
relation of each table.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from attrs import frozen

from frazil.errors import Closed, InvalidRequest, NotFound
from frazil.query.guard import Parser, check_statement, checked_text, nodes
from frazil.query.point import PointPlan, point_of
from frazil.query.pruning import Condition, Reader, key_conditions
from frazil.query.relations import empty_relation
from frazil.query.tables import (
    TableUse,
    WantedNames,
    resolve_tables,
    unnamed_columns,
    wanted_names,
)
from frazil.query.views import TopicInfo, TopicName, ViewColumn, view_columns

if TYPE_CHECKING:
    from frazil.query.guard import Node
    from frazil.query.snapshots import EngineSources

PLANS_MAX: Final = 1_024
PLAN_CHARACTERS_MAX: Final = 16_384
"""Plans of longer statements are not cached."""


@frozen(eq=False)
class PlannedUse:
    """One table of a statement: the columns it needs, the conditions on them.

    `key` are the conditions that name whole keys, None if the index cannot be used. `described`
    means that the statement needs only the table's columns, no rows.
    """

    topic: TopicName
    info: TopicInfo | None
    log: bool
    catalog: str
    columns: tuple[ViewColumn, ...]
    conditions: tuple[Condition, ...]
    key: tuple[Condition, ...] | None
    described: bool = False


@frozen(eq=False)
class Plan:
    """An allowed statement that is ready to run.

    If the statement is a look-up, `point` is its plan and `schema` has its result columns.
    """

    parameters: frozenset[str]
    point: PointPlan | None = None
    schema: pa.Schema | None = None
    pieces: tuple[str, ...] = ()
    uses: tuple[PlannedUse, ...] = ()
    fold_text: str = ""
    fold_parameters: frozenset[str] = frozenset()

    def text(self, relations: Sequence[str]) -> str:
        """Return the text that DuckDB runs, with the relations in place of the placeholders."""
        parts = [self.pieces[0]]
        for index, piece in zip(self.pieces[1::2], self.pieces[2::2], strict=True):
            parts += ["(", relations[int(index)], ")", piece]
        return "".join(parts)

    def wanted(self) -> dict[TopicName, bool]:
        """Return the topics of the statement, each with whether their state is read."""
        found: dict[TopicName, bool] = {}
        for use in self.uses:
            if use.info is not None:
                found[use.topic] = found.get(use.topic, False) or not use.log
        return found

    def bind(self, params: object) -> dict[str, Any]:
        """Return the values of the parameters by name.

        Raises:
            InvalidRequest: if a parameter has no value or a value has no parameter.
        """
        if params is None:
            given: dict[str, Any] = {}
        elif isinstance(params, Mapping):
            given = {str(name): value for name, value in params.items()}
        elif isinstance(params, list | tuple):
            given = {str(number): value for number, value in enumerate(params, 1)}
        else:
            raise InvalidRequest("params must be a list or a mapping", got=type(params).__name__)
        if given.keys() != self.parameters:
            missing = ", ".join(sorted(self.parameters - given.keys()))
            unknown = ", ".join(sorted(given.keys() - self.parameters))
            raise InvalidRequest(
                "params do not fit the statement", missing=missing or "-", unknown=unknown or "-"
            )
        return given


class Planner:
    """Makes and caches plans. All methods may be called from any thread.

    `prefix` begins the placeholders; it must be a word that no statement contains by chance.
    """

    def __init__(self, sources: EngineSources, prefix: str) -> None:
        self._sources = sources
        self._prefix = prefix
        self._gap = re.compile(rf"{re.escape(prefix)}u(\d+)_")
        self._lock = threading.Lock()
        self._parser: Parser | None = None
        self._closed = False
        self._version: int | None = None
        self._topics: Mapping[TopicName, TopicInfo] = {}
        self._plans: dict[tuple[str, bool], Plan | None] = {}

    def plan(self, sql: str) -> Plan:
        """Return the plan of a statement.

        Raises:
            InvalidRequest: if the statement is not allowed or not understood.
            NotFound: if it names a table that does not exist.
        """
        plan = self._kept(checked_text(sql), template=False)
        assert plan is not None
        return plan

    def templated(self, sql: str) -> tuple[Plan, dict[str, Any]] | None:
        """Return the plan of a simple look-up and its literal values; None for other texts.

        Texts that differ only in their literals share one plan, because parsing a text takes
        longer than its look-up.
        """
        found = template_of(checked_text(sql))
        if found is None:
            return None
        template, values = found
        plan = self._kept(template, template=True)
        # Fewer parameters than literals: a literal became part of a name, so the meaning differs.
        if plan is None or plan.point is None or len(plan.parameters) != len(values):
            return None
        return plan, {str(number): value for number, value in enumerate(values, 1)}

    def _kept(self, sql: str, *, template: bool) -> Plan | None:
        version = self._sources.version
        if version != self._version or self._closed:
            self._refresh(version)
        key = (sql, template)
        try:
            return self._plans[key]
        except KeyError:
            pass
        plan: Plan | None = None
        try:
            plan = self._made(sql, self._topics)
        except (InvalidRequest, NotFound):
            if not template:
                raise
        if len(sql) <= PLAN_CHARACTERS_MAX:
            with self._lock:
                if version == self._version:
                    while len(self._plans) >= PLANS_MAX:
                        del self._plans[next(iter(self._plans))]
                    self._plans[key] = plan
        return plan

    def close(self) -> None:
        """Drop all plans; later calls raise `Closed`."""
        with self._lock:
            self._closed = True
            parser, self._parser = self._parser, None
            self._plans.clear()
        if parser is not None:
            parser.close()

    def _refresh(self, version: int) -> None:
        """Drop the plans if the topics have changed."""
        with self._lock:
            self._check_open()
            # The version was read before the topics, so the next call sees a change in between.
            self._topics = self._sources.topics()
            self._plans = {}
            self._version = version

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the query engine is closed, open the engine again")

    def _made(self, sql: str, topics: Mapping[TopicName, TopicInfo]) -> Plan:
        if self._prefix in sql:
            # If the user's text had a placeholder, it would be replaced by a relation too.
            raise InvalidRequest("statement cannot be rewritten")
        with self._lock:
            self._check_open()
            if self._parser is None:
                self._parser = Parser()
            parser = self._parser
        statement = parser.parse(sql)
        parameters = frozenset(entry["key"] for entry in statement["named_param_map"])
        check_statement(statement)
        for node in unnamed_columns(statement):
            node["alias"] = _text_of([node], parser).removeprefix("SELECT ")
        uses = resolve_tables(statement, topics, lambda number: f"{self._prefix}u{number}_")
        point = point_of(statement, uses)
        wanted = wanted_names(statement)
        folds: list[Node] = []
        planned = tuple(_planned(use, wanted, folds) for use in uses)
        in_folds = (node for node in nodes(folds) if node.get("class") == "PARAMETER")
        return Plan(
            parameters,
            point,
            None if point is None else parser.schema(_shown_by(point)),
            uses=planned,
            fold_text=_text_of(folds, parser) if folds else "",
            fold_parameters=frozenset(node["identifier"] for node in in_folds),
            pieces=tuple(self._gap.split(parser.text(statement))),
        )


def _shown_by(point: PointPlan) -> str:
    """Return a query whose result has the columns of the look-up."""
    return empty_relation([column._replace(name=name) for name, column in point.shown])


def _text_of(expressions: Sequence[Node], parser: Parser) -> str:
    """Return the text of a statement that evaluates expressions."""
    statement = parser.parse("SELECT 1")
    statement["node"]["select_list"] = list(expressions)
    return parser.text(statement)


def _planned(use: TableUse, wanted: WantedNames | None, folds: list[Node]) -> PlannedUse:
    if use.info is None:
        return PlannedUse(("", ""), None, False, use.catalog, (), (), None)
    every = view_columns(use.info, log=use.log)
    renamed = bool(use.node["column_name_alias"])
    needed = every if renamed else _needed(every, wanted, use.name)
    conditions = Reader(use, every, folds).conditions()
    key = None if use.log else key_conditions(use.info, conditions)
    return PlannedUse(use.topic, use.info, use.log, "", needed, conditions, key, use.described)


def _needed(
    columns: tuple[ViewColumn, ...], wanted: WantedNames | None, name: str
) -> tuple[ViewColumn, ...]:
    """Return the columns that the statement may use, at least one not `_op` or `_part`."""
    if wanted is None or name in wanted.alone:
        # A table's name used as a column is the whole row.
        return columns
    needed = tuple(column for column in columns if column.name.casefold() in wanted.names)
    if any(column.name not in {"_op", "_part"} for column in needed):
        return needed
    return (*needed, _cheapest(columns))


def _cheapest(columns: Sequence[ViewColumn]) -> ViewColumn:
    """Return the column that is cheapest to read, for statements that only count rows."""
    own = [column for column in columns if column.field is not None]
    return min(own, key=lambda column: _width(column.type)) if own else columns[0]


def _width(data_type: pa.DataType) -> int:
    try:
        width: int = data_type.bit_width
    except ValueError:
        return 1 << 20 if data_type.num_fields else 1 << 10
    return width


TEMPLATE_CHARACTERS_MAX: Final = 2_000

_SIMPLE: Final = re.compile(
    r"""(?> [\w\s(),.=*;]+ | "[^"\0]*" | '(?: [^'\0] | '' )*' )*+""", re.VERBOSE
)
"""Words, numbers, strings and some punctuation, but no comments, signs or parameters."""

_LITERAL: Final = re.compile(r""" "[^"]*" | '(?: [^'] | '' )*' | \b[0-9]{1,18}\b """, re.VERBOSE)


def template_of(sql: str) -> tuple[str, list[Any]] | None:
    """Return the text with its literals replaced by `$1`, `$2`…, and their values.

    None if the text has no literals or is not simple. The parser refuses a template that has a
    parameter where SQL allows only a literal.
    """
    if len(sql) > TEMPLATE_CHARACTERS_MAX or _SIMPLE.fullmatch(sql) is None:
        return None
    values: list[Any] = []

    def replaced(match: re.Match[str]) -> str:
        text = match[0]
        if text[0] == '"':
            return text
        values.append(text[1:-1].replace("''", "'") if text[0] == "'" else int(text))
        return f"${len(values)}"

    template = _LITERAL.sub(replaced, sql)
    return (template, values) if values else None
