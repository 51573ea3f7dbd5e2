"""Plans that were made before, for as long as the topics do not change."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from frazil.errors import Closed
from frazil.query.parse import Parser, checked_text
from frazil.query.plan import Plan, Planner
from frazil.query.templates import template_of

if TYPE_CHECKING:
    from frazil.query.sources import Sources, TopicInfo, TopicName

__all__ = ["PlanStore"]

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
