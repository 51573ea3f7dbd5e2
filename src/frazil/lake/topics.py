"""One topic with a lake: bind, look, plan, send, apply the result.

One thread serves all topics. It never waits for a publish, and no publish waits for it. The table
has the watermark; the remembered one is only compared with it.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from msgspec.structs import replace

from frazil.errors import (
    Closed,
    CommitUnknown,
    FrazilError,
    InvalidRequest,
    NotFound,
    Overloaded,
    Unavailable,
)
from frazil.lake.commit import CommitRequest, CommitResult
from frazil.lake.iceberg import ADOPTED, SKIPPED, ranges_between, without
from frazil.lake.plan import (
    PLAN_FILES_MAX,
    before_gaps,
    part_sets,
    plan_bytes,
    plan_of,
    plan_parts,
)
from frazil.lake.plans import OperatorOverrides
from frazil.lake.table import Ends, TableDefinition, table_of
from frazil.lake.watermark import Known, decide, rejects_state, stray_starts, watermarks
from frazil.lake.worker_client import error_of
from frazil.log import RANGE_GAP, Control, Pending, deliver
from frazil.log import format as fmt
from frazil.model import topic_uid
from frazil.offsets import RangeSet
from frazil.schema import key_names
from frazil.telemetry import event, warn
from frazil.topic import TierWaits, first_held, special_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from frazil.lake.iceberg import Ranges
    from frazil.lake.plan import Plan
    from frazil.lake.runtime import Lake
    from frazil.lake.table import Ends, TableState
    from frazil.lake.tables import CatalogTables
    from frazil.lake.wire import Answer
    from frazil.model import TopicSpec
    from frazil.tiers import TopicTiers
    from frazil.topic import TopicRuntime

__all__ = ["LakeTopic", "adopt"]

HOLD: Final = "lake"
ASKED_PAUSE_S: Final = 1.0
"""Waiting acks trigger at most one commit per second."""
RETRY_PAUSES_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
CONTENDED_PAUSE_S: Final = 60.0
PLAN_TRIES: Final = 10
KEYED: Final = "keyed tables come later"
COUNTS: Final = ("commits", "rows", "rejected", "files", "bytes", "failures", "stops")
"""The counters since the engine was opened; a failure is retried, a stop needs an operator."""
_RETRIED: Final = (Unavailable, CommitUnknown, Overloaded, Closed)

State = Literal["starting", "running", "paused", "stopped", "waiting"]


class LakeTopic:
    """One topic with a lake. Only the lake's thread changes it; any thread may use `waits`."""

    def __init__(self, lake: Lake, spec: TopicSpec, runtimes: Sequence[TopicRuntime]) -> None:
        self._lake = lake
        self.name = spec.name
        self.uid = topic_uid(spec)
        self.table = table_of(spec.name)
        self.keyed = bool(spec.primary_key)
        self.runtimes = list(runtimes)
        self.waits = TierWaits(lake.wake, timeout_s=runtimes[0].settings.lake.ack_timeout_s)
        self.overrides: OperatorOverrides = OperatorOverrides()
        self.plan: Plan | None = None
        self.state: State = "waiting" if self.keyed else "starting"
        self.reason = "keyed" if self.keyed else ""
        self.why = KEYED if self.keyed else ""
        self.step_name = ""
        """The current step of the running commit."""
        self.position: Ends = {}
        """The table's watermark when it was last loaded."""
        self.table_version: int | None = None
        self.results: deque[float] = deque(maxlen=100)
        """The durations of the last commits, in seconds."""
        self.counts = dict.fromkeys(COUNTS, 0)
        self.last_commit_us: int | None = None
        self._opened: Ends = self.durable()
        """The log's ends when the engine was opened."""
        self._joined = False
        """A look has shown that the table has nothing but this log's records."""
        self._bound = False
        self._sent = False
        self._held: dict[int, int] = {}
        self._cut_at = 0.0
        self._begun_at = -math.inf
        """The time at which the last commit was sent."""
        self._behind_since: float | None = None
        self._more = False
        self._retry_at = 0.0
        self._failures = 0
        if self.keyed:
            self.waits.refuse(KEYED)

    # -- facts -------------------------------------------------------------------------------------

    def _parts(self) -> list[TopicTiers]:
        return [self._lake.tiers.topic(each.state.id) for each in self.runtimes]

    def durable(self) -> Ends:
        """Return the fsynced end, by part."""
        return {each.part: each.state.durable for each in self.runtimes}

    def lineage_ends(self) -> Ends:
        """Return the end of the rows that are this log's records, by part.

        A log that was restored from an older copy may grow past the table's end with other records.
        So until a look succeeds, the log's end at its opening counts.
        """
        durable = self.durable()
        if self._joined:
            return durable
        opened = self.overrides.lineage_ends or self._opened
        return {part: min(end, opened.get(part, end)) for part, end in durable.items()}

    def note_own(self) -> None:
        """Persist the log's ends at its opening until a look succeeds."""
        if not self._joined and not self.overrides.lineage_ends:
            self._keep(replace(self.overrides, lineage_ends=self.lineage_ends()))

    def mark_diverged(self, lineage_ends: Ends) -> None:
        """Remember over restarts that the table's rows are this log's only up to there."""
        self._joined = False
        self._keep(replace(self.overrides, lineage_ends={**self.lineage_ends(), **lineage_ends}))

    def _join(self) -> None:
        self._joined = True
        if self.overrides.lineage_ends:
            self._keep(replace(self.overrides, lineage_ends={}))

    def _keep(self, overrides: OperatorOverrides) -> None:
        self._lake.plans.set_overrides(self.uid, overrides)
        self.overrides = overrides

    def remembered(self) -> Ends:
        """Return the highest watermark that was ever seen in the table, by part."""
        disk = self._lake.tiers.disk
        return {each.part: disk.committed(each.state.id) for each in self.runtimes}

    def _first_held(self) -> Ends:
        """Return from where on everything is held or declared to be no record, by part."""
        return {
            each.part: before_gaps(special_ranges(each), first_held(each)) for each in self.runtimes
        }

    def _known(self) -> Known:
        return Known(
            self.uid,
            self.remembered(),
            self.lineage_ends(),
            self._first_held(),
            choice=self.overrides.choice,
            chosen=self.overrides.chosen,
        )

    def definition(self, version: int) -> TableDefinition:
        """Return the topic as its table has to be, at one version of its columns."""
        spec = self.runtimes[0].state.spec
        accepted = self.overrides.choice == "accept"
        columns = self.columns(version)
        return TableDefinition(
            topic=self.name,
            uid=self.uid,
            schema=columns,
            schema_version=version,
            partition_by=spec.partition_by,
            parts=len(self.runtimes) if spec.part_of else 0,
            # A new table begins at the first held offset, or after the end of the previous table.
            begin=self.remembered() if accepted else self._first_held(),
            sort_by=tuple(key_names(columns, spec.sort_by) if spec.sort_by else ()),
        )

    def columns(self, version: int) -> pa.Schema:
        """Return the topic's columns at a version."""
        return self._parts()[0].schema_of(version)

    def _newest(self) -> int:
        return int(self.runtimes[0].codec.columns.version)

    def _first_version(self) -> int:
        """Return the version of the oldest columns that a new table will get rows of."""
        disk = self._lake.tiers.disk
        ends = self.definition(self._newest()).ends
        staged = [
            file.schema
            for each in self.runtimes
            for span in disk.picture(each.state.id).spans
            if span.end > ends.get(each.part, 0)
            for file in span.files
        ]
        return min([*staged, self._newest()])

    # -- calls of the runtime ----------------------------------------------------------------------

    def load(self) -> None:
        """Load an earlier process's overrides, and its plan whose outcome is unknown."""
        self.overrides = self._lake.plans.overrides(self.uid)
        if self.overrides.paused:
            self._set("paused", "paused", "paused by an operator")
        if not self.keyed:
            # Before anything can be published.
            self.note_own()
            self.plan = self._lake.plans.load(self.uid)
            self.last_commit_us = self._lake.plans.last_commit_us(self.uid)

    def decide(self, overrides: OperatorOverrides, *, adopted: bool = False) -> None:
        """Apply an operator's decision: bind again."""
        self._joined = self._joined or adopted
        self._keep(
            replace(overrides, lineage_ends={} if self._joined else self.overrides.lineage_ends)
        )
        if self.keyed:
            return
        if overrides.paused:
            self._set("paused", "paused", "paused by an operator")
            return
        self._bound = False
        self._failures = 0
        self._retry_at = 0.0
        self._set("starting", "", "")

    def leave(self, *, gone: bool) -> None:
        """Detach: the topic is deleted, or has no lake any more."""
        self.plan = None
        if gone:
            self._lake.plans.forget(self.uid)
        else:
            self._lake.plans.put_aside(self.uid, {} if self._joined else self.lineage_ends())
        self._set("stopped", "gone", "the topic has no lake any more")

    def _set(self, state: State, reason: str, why: str) -> None:
        if (state, reason) != (self.state, self.reason):
            event("lake_state", topic=self.name, state=state, reason=reason, why=why)
        self.state, self.reason, self.why = state, reason, why
        # Acks that wait for a stopped table fail at once.
        self.waits.refuse(f"{state}: {why}" if state in {"paused", "stopped"} else "")

    def _stop(self, reason: str, message: str) -> None:
        self.counts["stops"] += 1
        warn(
            "lake_stopped",
            topic=self.name,
            table=self.table,
            reason=reason,
            message=message,
            **_spans(self.plan),
        )
        self._set("stopped", reason, message)

    # -- the lake's thread -------------------------------------------------------------------------

    def step(self, *, begin: bool) -> None:
        """Run the next steps; with `begin` False only hold the records."""
        if self.keyed:
            return
        with self._failures_handled():
            self._keep_records()
            now = self._lake.clock.monotonic()
            if begin and self.state not in {"paused", "stopped"} and now >= self._retry_at:
                self._go_on(now)

    @contextlib.contextmanager
    def _failures_handled(self) -> Iterator[None]:
        """Retry later after a transient error; stop after any other."""
        try:
            yield
        except _RETRIED as error:
            self._put_off(str(error))
        except FrazilError as error:
            self._stop(error.code, str(error))

    def _go_on(self, now: float) -> None:
        if not self._bound:
            self._bind()
        if self._sent:
            return
        if self.plan is None and self._is_due(now):
            self._make_plan()
        if self.plan is not None and self._lake.worker.state == "ready":
            self._send(self.plan, now)

    def _put_off(self, why: str, pause_s: float | None = None) -> None:
        if pause_s is None:
            pause_s = RETRY_PAUSES_S[min(self._failures, len(RETRY_PAUSES_S) - 1)]
        self._failures += 1
        self.counts["failures"] += 1
        self._retry_at = self._lake.clock.monotonic() + pause_s
        if self.why != why:
            warn(
                "lake_put_off",
                topic=self.name,
                table=self.table,
                why=why,
                pause_s=pause_s,
                **_spans(self.plan),
            )
        self.why = why

    def _keep_records(self) -> None:
        """Hold all records that the table does not have, before any other step."""
        for runtime in self.runtimes:
            if runtime.part not in self._held:
                known = runtime.state.holds.get(HOLD)
                if known is None:
                    known = min(
                        max(first_held(runtime), self._lake.tiers.disk.committed(runtime.state.id)),
                        runtime.state.durable,
                    )
                    self._lake.set_hold(runtime, known)
                self._held[runtime.part] = known

    def _bind(self) -> None:
        """Find or create the table, and load its state before any watermark moves."""
        tables = self._lake.tables()
        try:
            view = tables.look(self.table)
        except NotFound:
            if any(self.remembered().values()) and not self.overrides.choice:
                self._stop(
                    "table_missing",
                    f"the table {self.table} is gone; restore it, or choose with `frazil lake "
                    "resume --replay` (its rows again, as far as they are held) or `--accept`",
                )
                return
            tables.bind(self.definition(self._first_version()), self.columns)
            view = tables.look(self.table)
        decision = decide(self.table, view, self._known())
        if decision.case == "stop":
            self.position = dict(decision.stated)
            self._stop(decision.reason, decision.message)
            return
        skipped = ranges_between(decision.stated, decision.marks)
        if skipped:
            # The table's property records the skipped offsets before any later row is committed.
            warn("lake_skipped", topic=self.name, ranges=skipped)
            tables.declare(self.table, SKIPPED, skipped)
        self.table_version = tables.bind(self.definition(self._newest()), self.columns)
        # Its side table may be ahead of it by one commit, never of the log.
        side = rejects_state(tables.look(self.table.rejects), decision.marks)
        found = decide(self.table.rejects, side, Known(self.uid, {}, self.lineage_ends(), {}))
        if found.case == "stop":
            self.position = dict(decision.stated)
            self._stop(found.reason, found.message)
            return
        tables.make_durable(self.table, self._known())
        self._bound = True
        self._join()
        self._failures = 0
        self._set("running", "", "")
        self._advance(decision.marks)
        self._consume_overrides(decision.marks, choice=decision.choice_spent)

    def _advance(self, ends: Ends) -> None:
        """Apply the table's watermark: `committed`, the hold, and waiting acks."""
        for topic in self._parts():
            part = topic.runtime.part
            end = ends.get(part, 0)
            if end > topic.flushed:
                # Files were lost with the metadata, or never written: the table was faster.
                topic.flush(end, reason="lake")
            topic.disk.set_committed(topic.id, min(end, topic.flushed))
            if end > self._held.get(part, 0):
                self._lake.set_hold(topic.runtime, end)
                self._held[part] = end
        self.position = dict(ends)
        self.waits.moved(ends)

    # -- planning ----------------------------------------------------------------------------------

    def _is_due(self, now: float) -> bool:
        if not self._has_new(self.durable()):
            self._behind_since = None
            self._more = False
            return False
        if self._behind_since is None:
            self._behind_since = now
        if self._more:
            return True
        # Since the last cut, not since its commit was done: no record waits for longer than that.
        since = now - max(self._cut_at, self._behind_since)
        interval = self._lake.tiers.limits(self._parts()[0]).flush_interval
        asked = self.waits.is_asked() and now - self._begun_at >= ASKED_PAUSE_S
        if asked or since >= interval:
            self._cut_at = now
            for topic in self._parts():
                topic.flush(reason="lake")
            return True
        staged = {each.part: self._lake.tiers.queue.get(each.state.id) for each in self.runtimes}
        return self._has_new({part: due.offset_end for part, due in staged.items() if due})

    def _has_new(self, ends: Ends) -> bool:
        """Return whether the table has not reached one of some ends."""
        return any(end > self.position.get(part, 0) for part, end in ends.items())

    def _make_plan(self) -> None:
        """Choose the next sets, keep their files, and make the plan durable."""
        plans = self._lake.plans
        for _attempt in range(PLAN_TRIES):
            plan = self._next_plan()
            if plan is None:
                return
            if plans.keep(self.uid, plan):
                break
            # A file was merged or rebuilt since then: the next look finds the new one.
        else:
            raise Unavailable("the files to commit change all the time", topic=self.name)
        plans.persist(self.uid, plan)
        self.plan = plan

    def _next_plan(self) -> Plan | None:
        disk = self._lake.tiers.disk
        sets = [
            part_sets(
                disk.picture(topic.id),
                part=topic.runtime.part,
                committed=self.position.get(topic.runtime.part, 0),
                gaps=special_ranges(topic.runtime),
                version=self._newest(),
                path=disk.path,
            )
            for topic in self._parts()
        ]
        limit = plan_bytes(self._lake.tiers.settings.lake)
        version, ranges = plan_parts(sets, bytes_max=limit, files_max=PLAN_FILES_MAX)
        if not ranges:
            self._more = False
            return None
        taken = {each.part: each.hi for each in ranges}
        ends = {each.part: each.sets[-1].end for each in sets if each.sets}
        self._more = any(end > taken.get(part, 0) for part, end in ends.items())
        first = self._parts()[0]
        return plan_of(
            identity=self._lake.clock.random_bytes(8).hex(),
            topic=self.name,
            uid=self.uid,
            table=self.table,
            kind=first.state.spec.kind,
            version=version,
            schema=self.columns(version),
            ranges=ranges,
            now_us=self._lake.clock.now_us(),
        )

    # -- sending -----------------------------------------------------------------------------------

    def _send(self, plan: Plan, now: float) -> None:
        if not self._lake.plans.keep(self.uid, plan):
            # A damaged file was written again under another name: make another plan from the
            # table's watermark.
            self._drop_plan()
            self._more = True
            return
        if self.table_version is not None and plan.schema_version > self.table_version:
            wanted = self.definition(plan.schema_version)
            self.table_version = self._lake.tables().evolve(wanted, self.columns)
        request = CommitRequest(
            plan=plan,
            remembered=self.remembered(),
            durable=self.durable(),
            held=self._first_held(),
            choice=self.overrides.choice,
            chosen=self.overrides.chosen,
            rejects_allowed=self.overrides.rejects_allowed,
        )
        self._begun_at = now
        self._sent = True
        self.step_name = "sent"
        try:
            self._lake.worker.request("commit", request.body(), self._answered(plan))
        except Closed:
            self._sent = False
            raise

    def _answered(self, plan: Plan) -> Callable[[Answer], None]:
        def take(answer: Answer) -> None:
            if self.plan is not plan:
                return
            if answer.state == "progress":
                self.step_name = str(answer.body.get("step", ""))
                return
            self._sent = False
            self.step_name = ""
            with self._failures_handled():
                self._take(answer)

        return take

    def _take(self, answer: Answer) -> None:
        """Apply the result of a commit."""
        if answer.state == "failed":
            raise error_of(answer)
        result = CommitResult.of(answer.body)
        if result.state in {"committed", "already"}:
            self._committed(result)
        elif result.state == "replan":
            self._drop_plan()
            self._consume_overrides(result.ends, choice=result.choice_spent)
            self.position = dict(result.ends)
            self._more = True
        elif result.state == "contended":
            self._put_off(result.message, CONTENDED_PAUSE_S)
        elif result.reason == "schema_behind":
            self._bound = False
            self._put_off(result.message)
        else:
            self._bound = False
            self.position = dict(result.ends)
            self._stop(result.reason, result.message)

    def _committed(self, result: CommitResult) -> None:
        clock = self._lake.clock
        seconds = clock.monotonic() - self._begun_at
        self.results.append(seconds)
        self.last_commit_us = clock.now_us()
        moved = result.state == "committed"
        self.counts["commits"] += moved
        self.counts["rows"] += result.rows_out
        self.counts["rejected"] += result.rows_rejected
        self.counts["files"] += result.files
        self.counts["bytes"] += result.bytes
        done = _spans(self.plan)
        self._advance(result.ends)
        self._drop_plan(committed_us=self.last_commit_us)
        self._consume_overrides(result.ends, choice=result.choice_spent, rejects=moved)
        self._failures = 0
        if self.state != "paused":
            self._set("running", "", "")
        event(
            "lake_committed",
            topic=self.name,
            table=self.table,
            state=result.state,
            **done,
            rows=result.rows_out,
            rejected=result.rows_rejected,
            files=result.files,
            bytes=result.bytes,
            seconds=round(seconds, 3),
            snapshot=result.sid,
        )

    def _consume_overrides(self, ends: Ends, *, choice: bool, rejects: bool = False) -> None:
        """Remove overrides that have had their effect; a replay may take several plans."""
        left = self.overrides
        below = any(end > ends.get(part, 0) for part, end in self.remembered().items())
        if choice and left.choice:
            left = replace(left, chosen=ends) if below else replace(left, choice="", chosen={})
        if rejects and left.rejects_allowed:
            left = replace(left, rejects_allowed=False)
        if left != self.overrides:
            self._keep(left)

    def _drop_plan(self, *, committed_us: int | None = None) -> None:
        self.plan = None
        self._lake.plans.drop(self.uid, committed_us=committed_us)


def _spans(plan: Plan | None) -> dict[str, Any]:
    """Return a plan's id and ranges as facts of an event."""
    if plan is None:
        return {}
    spans = [
        ("" if each.part < 0 else f"{each.part}:") + f"{each.lo}..{each.hi}" for each in plan.parts
    ]
    return {"plan": plan.id, "range": " ".join(spans)}


REASON: Final = "the table has records of another log"


def adopt(topic: LakeTopic, tables: CatalogTables, *, confirm: bool) -> dict[str, Any]:
    """Raise a topic's head to its table's end and make the table this topic's.

    Raises:
        InvalidRequest: the table is another topic's, or own records would be left out, and
            `confirm` is missing.
        NotFound: there is no table.
    """
    view = tables.look(topic.table)
    side = _side_view(topic, tables, view)
    ends = _ends(view, side)
    foreign = view.topic_id != topic.uid
    strays = {} if foreign else _strays(topic, view, side)
    firsts = _held(topic) if foreign else {**topic.lineage_ends(), **strays}
    theirs = ranges_between(firsts, {part: ends.get(part, 0) for part in firsts})
    left_out = _own_records(topic, theirs)
    if (foreign or left_out) and not confirm:
        raise _unconfirmed(topic, view, left_out)
    if theirs and not foreign:
        _declare_adopted(topic, tables, strays, theirs)
    raised = {each.part: _raise_head(each, ends.get(each.part, 0)) for each in topic.runtimes}
    if theirs or foreign:
        # The side table may be ahead of it.
        tables.advance(topic.table, ends)
    if foreign:
        tables.take_over(topic.table, topic.uid, ranges_between({}, ends))
    topic.decide(OperatorOverrides(paused=topic.overrides.paused), adopted=True)
    event("lake_adopted", topic=topic.name, foreign=foreign, ends=ends, left_out=left_out)
    return {
        "table": str(topic.table),
        "ends": _by_part(sorted(ends.items())),
        "raised": _by_part((part, count) for part, count in raised.items() if count),
        "taken_over": foreign,
        "left_out": _by_part((part, list(map(list, own))) for part, own in left_out.items()),
    }


def _by_part(values: Iterable[tuple[int, Any]]) -> dict[str, Any]:
    return {str(part): value for part, value in values}


def _held(topic: LakeTopic) -> Ends:
    """Return the first offsets that are held, by part."""
    return {each.part: first_held(each) for each in topic.runtimes}


def _unconfirmed(topic: LakeTopic, view: TableState, left_out: Ranges) -> InvalidRequest:
    return InvalidRequest(
        "the table has records of another log; with confirm=True this topic continues after "
        "them, and its own records at these offsets do not get into the table: read them and "
        "publish them again",
        table=topic.table,
        topic_id=view.topic_id,
        ours=topic.uid,
        left_out=sum(each.size for each in left_out.values()),
    )


def _declare_adopted(topic: LakeTopic, tables: CatalogTables, strays: Ends, theirs: Ranges) -> None:
    """Declare another log's records in this topic's own table.

    This precedes the raise of the head: afterwards the end of the table's records is unknown.
    """
    if strays:
        topic.mark_diverged(strays)
    topic.note_own()
    # In the side table first, because the main one decides.
    with contextlib.suppress(NotFound):
        tables.declare(topic.table.rejects, ADOPTED, theirs)
    tables.declare(topic.table, ADOPTED, theirs)


def _side_view(topic: LakeTopic, tables: CatalogTables, view: TableState) -> TableState | None:
    """Return the state of the side table, if it belongs to the table's topic or to this one."""
    try:
        side = tables.look(topic.table.rejects)
    except NotFound:
        return None
    return side if side.topic_id in {view.topic_id, topic.uid} else None


def _ends(view: TableState, side: TableState | None) -> Ends:
    """Return where the table ends, its side table included."""
    ends, _certain = watermarks(view, {})
    others = {} if side is None else watermarks(side, {})[0]
    return {part: max(ends.get(part, 0), others.get(part, 0)) for part in {*ends, *others}}


def _strays(topic: LakeTopic, view: TableState, side: TableState | None) -> Ends:
    """Return, by part, where late commits for another topic took this one's offsets."""
    durable = topic.lineage_ends()
    found = stray_starts(view, topic.remembered(), durable)
    if side is None:
        return found
    own = {**watermarks(view, {})[0], **found}
    return {**stray_starts(rejects_state(side, own), {}, durable), **found}


def _own_records(topic: LakeTopic, ranges: Ranges) -> Ranges:
    """Return the durable offsets of ranges at which the topic has records, by part."""
    durable = topic.durable()
    outside = {
        each.part: RangeSet(
            [
                (durable[each.part], 1 << 63),
                *((gap.first, gap.end) for gap in special_ranges(each)),
            ]
        )
        for each in topic.runtimes
    }
    return {part: own for part, own in without(ranges, outside).items() if own}


def _raise_head(runtime: TopicRuntime, end: int) -> int:
    """Declare the offsets up to `end` a gap, so that none of them is used; return how many.

    On the journal's thread: no publish gets an offset in between.
    """

    def declare() -> int:
        state, first = runtime.state, runtime.state.next
        if first >= end:
            return 0
        payload = msgspec.msgpack.encode((end, RANGE_GAP, REASON))
        control = Control(fmt.KIND_GAP, state.id, payload, offset=first)
        pending = Pending()
        size = len(payload) + fmt.FRAME_HEAD_BYTES
        runtime.log.journal.commit([(None, None, control, 0, size, pending, None)], deliver)
        pending.result()
        # The frame is synced, and with it everything before.
        state.durable = state.next
        return end - first

    count: int = runtime.log.queue.call(declare)
    return count
