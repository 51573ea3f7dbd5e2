"""From the text of a statement to what is needed to run it at any snapshot.

A plan depends on the text and on the topics' schemas alone, so that it can be kept. It has two
forms: a look-up of keys that needs no DuckDB at all, and the rewritten text with gaps for the
relations of each table.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from attrs import frozen

from frazil.errors import Closed, InvalidRequest
from frazil.query.guard import Parser, check_statement, checked_text
from frazil.query.point import PointPlan, point_of
from frazil.query.pruning import Condition, conditions_of, key_conditions
from frazil.query.relations import EVERY_FILTER, ScanRules, empty_relation, scan_rules
from frazil.query.tables import (
    TableUse,
    WantedNames,
    resolve_tables,
    unnamed_columns,
    wanted_names,
)
from frazil.query.views import Request, TopicInfo, TopicName, ViewColumn, view_columns

if TYPE_CHECKING:
    from frazil.query.guard import Node
    from frazil.query.views import Sources

__all__ = [
    "Plan",
    "PlanStore",
    "PlannedUse",
    "Planner",
    "template_of",
]


@frozen(eq=False)
class PlannedUse:
    """One table of a statement: the columns it needs, the conditions on them.

    `key` are the conditions that name whole keys, None if the index cannot help; `described` says
    that only its columns matter.
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
    """A statement that is allowed, ready to be run.

    `point` is the look-up that it is, and `schema` the columns of its result.
    """

    parameters: frozenset[str]
    point: PointPlan | None = None
    schema: pa.Schema | None = None
    pieces: tuple[str, ...] = ()
    uses: tuple[PlannedUse, ...] = ()
    fold_text: str = ""
    fold_parameters: frozenset[str] = frozenset()
    rules: ScanRules = EVERY_FILTER

    def text(self, relations: Sequence[str]) -> str:
        """Return the text that DuckDB runs, with the relations in their places."""
        parts = [self.pieces[0]]
        for index, piece in zip(self.pieces[1::2], self.pieces[2::2], strict=True):
            parts += ["(", relations[int(index)], ")", piece]
        return "".join(parts)

    def requests(self) -> list[Request]:
        """Return which topics the statement reads, each once."""
        found: dict[TopicName, Request] = {}
        for use in self.uses:
            if use.info is not None:
                before = found.get(use.topic, Request(use.topic, state=False, log=False))
                found[use.topic] = Request(
                    use.topic, state=before.state or not use.log, log=before.log or use.log
                )
        return list(found.values())

    def bind(self, params: object) -> dict[str, Any]:
        """Return the values of the parameters by name.

        Raises:
            InvalidRequest: unless each parameter has a value, and each value a parameter.
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
    """Makes plans. `prefix` must be a word that no statement can contain by chance."""

    def __init__(self, parser: Parser, prefix: str) -> None:
        self._parser = parser
        self._prefix = prefix
        self._gap = re.compile(rf"{re.escape(prefix)}u(\d+)_")

    def plan(self, sql: str, topics: Mapping[TopicName, TopicInfo], *, point: bool = True) -> Plan:
        """Check a statement and plan it; `point` allows the form without DuckDB.

        Raises:
            InvalidRequest: if the statement is not allowed or not understood.
            NotFound: if it names a table that does not exist.
        """
        if self._prefix in sql:
            # A text with a placeholder of its own could get a relation in the wrong place.
            raise InvalidRequest("statement cannot be rewritten")
        statement = self._parser.parse(sql)
        parameters = _parameters_of(statement)
        if point:
            found = point_of(statement, topics)
            if found is not None:
                return self._point_plan(parameters, found)
        check_statement(statement)
        for node in unnamed_columns(statement):
            node["alias"] = self._text_of([node]).removeprefix("SELECT ")
        uses = resolve_tables(statement, topics, self._placeholder)
        wanted = wanted_names(statement)
        folds: list[Node] = []
        planned = tuple(_planned(use, wanted, folds) for use in uses)
        # The text of constants is made first: the tree of the statement must not be changed later.
        fold_text = self._text_of(folds) if folds else ""
        text = self._parser.text(statement)
        return Plan(
            parameters,
            pieces=tuple(self._gap.split(text)),
            uses=planned,
            fold_text=fold_text,
            fold_parameters=frozenset(_parameters_in(folds)),
            rules=scan_rules(statement),
        )

    def point(self, sql: str, topics: Mapping[TopicName, TopicInfo]) -> Plan | None:
        """Return the plan of a look-up by key, None if the text is anything else, or wrong."""
        try:
            statement = self._parser.parse(sql)
        except InvalidRequest:
            return None
        found = point_of(statement, topics)
        return None if found is None else self._point_plan(_parameters_of(statement), found)

    def _point_plan(self, parameters: frozenset[str], point: PointPlan) -> Plan:
        columns = [column._replace(name=name) for name, column in point.shown]
        schema = self._parser.schema(empty_relation(columns))
        return Plan(parameters, point=point, schema=schema)

    def _placeholder(self, number: int) -> str:
        return f"{self._prefix}u{number}_"

    def _text_of(self, expressions: Sequence[Node]) -> str:
        """Return the text of a statement that evaluates expressions."""
        statement = self._parser.parse("SELECT 1")
        statement["node"]["select_list"] = list(expressions)
        return self._parser.text(statement)


def _parameters_of(statement: Node) -> frozenset[str]:
    return frozenset(entry["key"] for entry in statement["named_param_map"])


def _planned(use: TableUse, wanted: WantedNames | None, folds: list[Node]) -> PlannedUse:
    if use.info is None:
        return PlannedUse(("", ""), None, False, use.catalog, (), (), None)
    every = view_columns(use.info, log=use.log)
    renamed = bool(use.node["column_name_alias"])
    needed = every if renamed else _needed(every, wanted, use.name)
    conditions = conditions_of(use, every, folds)
    key = None if use.log else key_conditions(use.info, conditions)
    return PlannedUse(use.topic, use.info, use.log, "", needed, conditions, key, use.described)


def _needed(
    columns: tuple[ViewColumn, ...], wanted: WantedNames | None, name: str
) -> tuple[ViewColumn, ...]:
    """Return the columns that the statement can name, at least one that has rows of its own."""
    if wanted is None or name in wanted.alone:
        # The name of a table stands for its rows as a whole.
        return columns
    needed = tuple(column for column in columns if column.name.casefold() in wanted.names)
    if any(column.name not in {"_op", "_part"} for column in needed):
        return needed
    return (*needed, _cheapest(columns))


def _cheapest(columns: Sequence[ViewColumn]) -> ViewColumn:
    """Return the column that costs least to read: only its rows are counted."""
    own = [column for column in columns if column.field is not None]
    if not own:
        return columns[0]
    return min(own, key=lambda column: _width(column.type))


def _width(data_type: pa.DataType) -> int:
    try:
        width: int = data_type.bit_width
    except ValueError:
        return 1 << 20 if data_type.num_fields else 1 << 10
    return width


def _parameters_in(nodes: Sequence[Node]) -> set[str]:
    found: set[str] = set()
    todo: list[Any] = list(nodes)
    while todo:
        item = todo.pop()
        if isinstance(item, list):
            todo += item
        elif isinstance(item, dict):
            if item.get("class") == "PARAMETER":
                found.add(item["identifier"])
            todo += item.values()
    return found


CHARACTERS_MAX: Final = 2_000

_SIMPLE: Final = re.compile(
    r"""(?> [\w\s(),.=*;]+ | "[^"\0]*" | '(?: [^'\0] | '' )*' )*+""", re.VERBOSE
)
"""Words, numbers, strings and a little punctuation: neither comments nor signs nor parameters."""

_LITERAL: Final = re.compile(r""" "[^"]*" | '(?: [^'] | '' )*' | \b[0-9]{1,18}\b """, re.VERBOSE)


def template_of(sql: str) -> tuple[str, list[Any]] | None:
    """Return the text with `$1`, `$2`… in place of its literals, and their values.

    None if there are none, or if the text is not simple. Whether a template means the same as the
    text is for its parser to find out: what has a literal in a place where no parameter can stand
    is no valid statement as a template.
    """
    if len(sql) > CHARACTERS_MAX or _SIMPLE.fullmatch(sql) is None:
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


PLANS_MAX: Final = 1_024
PLAN_CHARACTERS_MAX: Final = 16_384

_Key = tuple[str, bool]


class PlanStore:
    """Makes and keeps plans. All methods may be called from any thread."""

    def __init__(self, sources: Sources, prefix: str) -> None:
        self._sources = sources
        self._prefix = prefix
        self._lock = threading.Lock()
        self._parser: Parser | None = None
        self._made: Planner | None = None
        self._closed = False
        self._version: int | None = None
        self._topics: Mapping[TopicName, TopicInfo] = {}
        self._plans: dict[_Key, Plan] = {}
        self._templates: dict[str, Plan | None] = {}

    def plan(self, sql: str, *, point: bool = True) -> Plan:
        """Return the plan of a statement; `point` allows one that asks the index alone."""
        checked_text(sql)
        version = self._refresh()
        found = self._plans.get((sql, point))
        if found is not None:
            return found
        plan = self._planner().plan(sql, self._topics, point=point)
        if len(sql) <= PLAN_CHARACTERS_MAX:
            self._keep(self._plans, (sql, point), plan, version)
        return plan

    def templated(self, sql: str) -> tuple[Plan, dict[str, Any]] | None:
        """Return the look-up that a simple text is, and the values in it; None if it is none."""
        found = template_of(checked_text(sql))
        if found is None:
            return None
        template, values = found
        version = self._refresh()
        try:
            plan = self._templates[template]
        except KeyError:
            plan = self._planner().point(template, self._topics)
            if plan is not None and len(plan.parameters) != len(values):
                # A literal became part of a name: the template is another statement.
                plan = None
            self._keep(self._templates, template, plan, version)
        if plan is None:
            return None
        return plan, {str(number): value for number, value in enumerate(values, 1)}

    def close(self) -> None:
        """Forget all plans; later calls raise `Closed`."""
        with self._lock:
            self._closed = True
            parser, self._parser, self._made = self._parser, None, None
            self._plans.clear()
            self._templates.clear()
        if parser is not None:
            parser.close()

    def _refresh(self) -> int:
        """Forget the plans if the topics changed since; return the version they are for."""
        version = self._sources.version
        if version != self._version or self._closed:
            with self._lock:
                if self._closed:
                    raise Closed("the query engine is closed, open the engine again")
                # The version was read before the topics: a change in between is seen next time.
                self._topics = self._sources.topics()
                self._plans = {}
                self._templates = {}
                self._version = version
        return version

    def _planner(self) -> Planner:
        with self._lock:
            if self._closed:
                raise Closed("the query engine is closed, open the engine again")
            if self._made is None:
                self._parser = Parser()
                self._made = Planner(self._parser, self._prefix)
            return self._made

    def _keep(self, plans: dict[Any, Any], key: object, plan: Plan | None, version: int) -> None:
        with self._lock:
            if version == self._version:
                while len(plans) >= PLANS_MAX:
                    del plans[next(iter(plans))]
                plans[key] = plan
