"""The commit protocol: moves one plan into its table, at most once, whatever fails.

Look, verdict, rejects, main, property: `docs/internals/lake.md` has each step and the effect of a
crash there. The protocol has no state: a run that was cut off is repeated from its first step, by
this process or another, at the same time or later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, Self

import msgspec

from frazil.errors import CommitUnknown, Conflict, FrazilError, NotFound, Unavailable
from frazil.lake.plan import Plan
from frazil.lake.table import (
    PROTOCOL,
    PROTOCOL_VERSION,
    ROWS_DROPPED,
    ROWS_IN,
    ROWS_OUT,
    ROWS_REJECTED,
    TOPIC_ID,
    Ends,
    RejectRatio,
    Rows,
    TableState,
    end_key,
)
from frazil.lake.watermark import Choice, Decision, Known, decide, rejects_state, watermarks
from frazil.lake.wire import body_of
from frazil.struct_types import learnt

if TYPE_CHECKING:
    from collections.abc import Mapping

    from frazil.lake.plan import TableName
    from frazil.lake.spark_table import SparkTables
    from frazil.lake.stages import SparkStages

__all__ = [
    "PROPERTY_COMMITS_MAX",
    "STEPS",
    "CommitRequest",
    "CommitResult",
    "Verdict",
    "commit",
]

PROPERTY_COMMITS_MAX: Final = 100
"""The table's property is never older than this many commits."""
PAUSE_SECONDS: Final = 0.1

STEPS: Final = (
    "looked",
    "staged",
    "property_lowered",
    "rejects_looked",
    "rejects_committing",
    "rejects_committed",
    "committing",
    "committed",
    "property_setting",
    "property_set",
)
"""The steps that `progress` gets, in order; not every commit has all of them."""


class CommitRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The engine's request. `durable` has every part of the topic, not only the plan's.

    `held` is the first offset still held locally. `choice` and `rejects_allowed` are an operator's
    decisions, `chosen` the ends of the result that required them; they are sent until a result is
    `choice_spent`. Then `remembered` becomes its ends, also where they are lower.
    """

    plan: Plan
    remembered: Ends
    durable: Ends
    held: Ends
    choice: Choice = ""
    chosen: Ends = {}
    rejects_allowed: bool = False

    def body(self) -> dict[str, Any]:
        """Return it as the body of a request to the worker."""
        return body_of(self)


class CommitResult(msgspec.Struct, kw_only=True):
    """The outcome of a plan. `ends` are the table's watermarks in every state.

    `committed` and `already`: the plan is in the table. `replan`: the watermark is below the plan;
    make another from `ends`. `stopped`: an operator has to decide, `reason` is a machine word and
    `message` a sentence. `contended`: other programs commit all the time; try again in a minute.
    """

    state: Literal["committed", "already", "replan", "stopped", "contended"]
    reason: str = ""
    message: str = ""
    ends: Ends = {}
    sid: int | None = None
    rows_in: int = 0
    rows_out: int = 0
    rows_rejected: int = 0
    rows_dropped: int = 0
    files: int = 0
    bytes: int = 0
    choice_spent: bool = False
    """The operator's choice has had its effect: forget it, and remember `ends` as they are."""

    @classmethod
    def of(cls, body: object) -> Self:
        """Return the result that a worker's answer has."""
        return msgspec.convert(body, learnt(cls), strict=False, str_keys=True)


class Verdict(NamedTuple):
    """The rows and rejects of a plan from given offsets on: a pure function of its records."""

    rows: Rows
    rejects: Rows
    rows_in: int
    rows_out: int
    rows_rejected: int
    rows_dropped: int


def _highest(one: Ends, two: Ends) -> Ends:
    return {part: max(one.get(part, 0), two.get(part, 0)) for part in one.keys() | two.keys()}


def commit(
    tables: SparkTables,
    stages: SparkStages,
    request: CommitRequest,
    *,
    pause: Callable[[float], None],
    attempts: int = 5,
    progress: Callable[[str], None] = lambda _step: None,
) -> CommitResult:
    """Move a plan into its table. Calls may be repeated and may run concurrently.

    `pause` waits that many seconds; `progress` is called with each of `STEPS` that is reached.

    Raises:
        Unavailable: if catalog or storage cannot be reached, or outcomes stay unknown.
        FrazilError: a permanent error of the stages or of a write.
    """
    run = CommitAttempt(tables, stages, request, pause=pause, attempts=attempts, progress=progress)
    while True:
        result = run.turn()
        if result is not None:
            return result


class CommitAttempt:
    """One call of `commit`: its failure counts and the results of its looks at the table."""

    def __init__(
        self,
        tables: SparkTables,
        stages: SparkStages,
        request: CommitRequest,
        *,
        pause: Callable[[float], None],
        attempts: int,
        progress: Callable[[str], None],
    ) -> None:
        self._tables = tables
        self._stages = stages
        self._request = request
        self._plan = request.plan
        self._pause = pause
        self._attempts = attempts
        self._progress = progress
        self._seen: Ends = {}
        self._conflicts = 0
        self._unknowns = 0
        self._error: FrazilError | None = None
        self._tried: Verdict | None = None
        self._judged: tuple[Ends, Verdict] | None = None

    def turn(self) -> CommitResult | None:
        """Look and continue as far as possible; None if a failure needs another look."""
        view = self._load(self._plan.table)
        if not isinstance(view, TableState):
            return view
        decision = self._decide(view)
        self._progress("looked")
        if decision.case != "move":
            return self._ended(view, decision)
        gave_up = self._gave_up(view, decision) or self._schema_behind(view, decision)
        if gave_up is not None:
            return gave_up
        verdict = self._verdict(decision)
        self._progress("staged")
        refused = self._refused(view, decision, verdict)
        if refused is not None:
            return refused
        if not self._property_lowered(view, decision):
            return None
        if verdict.rows_rejected:
            side = self._commit_rejects(decision, verdict)
            if side is not True:
                return side
        return self._commit_main(view, decision, verdict)

    def _schema_behind(self, view: TableState, decision: Decision) -> CommitResult | None:
        if view.schema_version is None or view.schema_version >= self._plan.schema_version:
            return None
        return self._stopped(
            "schema_behind",
            f"table has not got the topic's columns yet (table={self._plan.table} "
            f"schema_version={view.schema_version} plan={self._plan.schema_version})",
            decision.marks,
        )

    # -- looking --

    def _load(self, table: TableName) -> TableState | CommitResult | None:
        try:
            return self._tables.load(table)
        except NotFound:
            return self._stopped(
                "table_missing",
                f"table is gone (table={table}); create it again, then choose with "
                "`frazil lake resume --replay` or `--accept`",
                {},
            )
        except (CommitUnknown, Unavailable) as error:
            self._failed(error)
            if self._unknowns >= self._attempts:
                raise
            return None

    def _decide(self, view: TableState) -> Decision:
        """Decide; the watermarks of this run's earlier looks count as remembered."""
        request = self._request
        known = Known(
            self._plan.topic_id,
            _highest(request.remembered, self._seen),
            request.durable,
            request.held,
            choice=request.choice,
            chosen=_highest(request.chosen, self._seen),
        )
        decision = decide(self._plan.table, view, known, self._plan.parts)
        if decision.case != "stop":
            self._seen = _highest(self._seen, decision.stated)
        return decision

    def _ended(self, view: TableState, decision: Decision) -> CommitResult:
        if decision.case == "stop":
            return self._stopped(decision.reason, decision.message, decision.marks)
        if decision.case == "replan":
            return CommitResult(
                state="replan",
                reason=decision.reason,
                message=decision.message,
                ends=decision.marks,
                sid=view.sid,
                choice_spent=decision.choice_spent,
            )
        if self._tried is not None:
            return self._committed(view.sid, decision.marks, self._tried)
        return CommitResult(
            state="already",
            ends=decision.marks,
            sid=view.sid,
            choice_spent=decision.choice_spent,
        )

    # -- failing --

    def _failed(self, error: FrazilError) -> None:
        """Count a failure of a write and wait. Its files are not touched: they may be live."""
        self._error = error
        if isinstance(error, Conflict):
            self._conflicts += 1
        elif isinstance(error, (CommitUnknown, Unavailable)):
            self._unknowns += 1
        else:
            return
        failures = self._conflicts + self._unknowns
        if self._conflicts < self._attempts and self._unknowns < self._attempts:
            self._pause(PAUSE_SECONDS * 2.0 ** (failures - 1))

    def _gave_up(self, view: TableState, decision: Decision) -> CommitResult | None:
        """Raise the repeated error, after a look has shown that the plan is not in the table."""
        error = self._error
        if error is None:
            return None
        if self._unknowns >= self._attempts:
            raise Unavailable(
                "commits into the table had no known outcome; the next attempt looks again",
                table=self._plan.table,
                tries=self._unknowns,
                outcome="unknown",
                reason=error,
            ) from error
        if self._conflicts >= self._attempts:
            return CommitResult(
                state="contended",
                reason="contended",
                message=(
                    f"others committed to the table each time (table={self._plan.table} "
                    f"tries={self._conflicts} last={error})"
                ),
                ends=decision.marks,
                sid=view.sid,
            )
        if not isinstance(error, (Conflict, CommitUnknown, Unavailable)):
            raise error
        return None

    def _stopped(self, reason: str, message: str, ends: Ends) -> CommitResult:
        return CommitResult(state="stopped", reason=reason, message=message, ends=ends)

    # -- judging --

    def _verdict(self, decision: Decision) -> Verdict:
        if self._judged is None or self._judged[0] != decision.starts:
            self._judged = decision.starts, self._stages.verdict(self._plan, decision.starts)
        return self._judged[1]

    def _refused(
        self, view: TableState, decision: Decision, verdict: Verdict
    ) -> CommitResult | None:
        """Check a verdict before anything of it is committed."""
        if verdict.rows_in != decision.rows:
            return self._stopped(
                "staged_incomplete",
                f"staged files do not have the records of the plan (table={self._plan.table} "
                f"found={verdict.rows_in} expected={decision.rows}); run `frazil doctor`",
                decision.marks,
            )
        if verdict.rows_in != verdict.rows_out + verdict.rows_rejected + verdict.rows_dropped:
            return self._stopped(
                "verdict_unbalanced",
                f"stages lost or added records (table={self._plan.table} in={verdict.rows_in} "
                f"out={verdict.rows_out} rejected={verdict.rows_rejected} "
                f"dropped={verdict.rows_dropped})",
                decision.marks,
            )
        batch = RejectRatio(verdict.rows_in, verdict.rows_rejected)
        recent = RejectRatio(*map(sum, zip(batch, view.recent, strict=True)))
        ratio = batch if batch.too_many else recent
        if batch.rejects and ratio.too_many and not self._request.rejects_allowed:
            return self._stopped(
                "too_many_rejects",
                f"too many records cannot be converted (table={self._plan.table} "
                f"rejects={ratio.rejects} records={ratio.records}); "
                "`frazil lake resume --rejects` continues",
                decision.marks,
            )
        return None

    # -- committing --

    def _property_lowered(self, view: TableState, decision: Decision) -> bool:
        """Take back a property that is above the table: it was set before a rollback.

        Were it left, and the summaries expired by others, rows would be skipped.
        """
        marks = decision.marks
        if all(end <= marks.get(part, 0) for part, end in view.property_ends.items()):
            return True
        lowered = {**dict.fromkeys(view.property_ends, 0), **marks}
        if not self._set_property(self._plan.table, lowered):
            return False
        self._progress("property_lowered")
        return True

    def _commit_rejects(
        self, decision: Decision, verdict: Verdict
    ) -> CommitResult | Literal[True] | None:
        """Commit rejects before main: the side table may be ahead of main, never the reverse."""
        table = self._plan.table.rejects
        view = self._load(table)
        if not isinstance(view, TableState):
            return view
        known = Known(self._plan.topic_id, {}, self._request.durable, {})
        stop = decide(table, rejects_state(view, decision.marks), known)
        if stop.case == "stop":
            return self._stopped(stop.reason, stop.message, decision.marks)
        self._progress("rejects_looked")
        marks, _conclusive = watermarks(view, {})
        targets = {each.part: each.hi for each in self._plan.parts}
        starts = {
            part: max(start, marks.get(part, 0))
            for part, start in decision.starts.items()
            if marks.get(part, 0) < targets[part]
        }
        if not starts:
            return True
        ends = {**marks, **{part: targets[part] for part in starts}}
        rows = self._stages.rejects_from(verdict, starts)
        self._progress("rejects_committing")
        if self._append(table, rows, view.sid, self._summary(ends, verdict)) is None:
            return None
        self._progress("rejects_committed")
        if view.commits_since_property + 1 >= PROPERTY_COMMITS_MAX:
            self._set_property(table, ends)
        return True

    def _commit_main(
        self, view: TableState, decision: Decision, verdict: Verdict
    ) -> CommitResult | None:
        """Append, fenced by the snapshot of the look that gave the watermark."""
        ends = dict(decision.marks)
        for each in self._plan.parts:
            ends[each.part] = max(each.hi, ends.get(each.part, 0))
        self._tried = verdict
        self._progress("committing")
        sid = self._append(self._plan.table, verdict.rows, view.sid, self._summary(ends, verdict))
        if sid is None:
            return None
        self._progress("committed")
        if view.commits_since_property + 1 >= PROPERTY_COMMITS_MAX:
            self._progress("property_setting")
            self._set_property(self._plan.table, ends)
            self._progress("property_set")
        return self._committed(sid, ends, verdict)

    def _append(
        self, table: TableName, rows: Rows, sid: int | None, summary: Mapping[str, str]
    ) -> int | None:
        try:
            return self._tables.cas_append(table, rows, sid=sid, summary=summary)
        except FrazilError as error:
            self._failed(error)
            return None

    def _set_property(self, table: TableName, ends: Ends) -> bool:
        try:
            self._tables.set_property(table, {end_key(p): str(end) for p, end in ends.items()})
        except FrazilError as error:
            self._failed(error)
            return False
        return True

    def _summary(self, ends: Ends, verdict: Verdict) -> dict[str, str]:
        return {
            TOPIC_ID: self._plan.topic_id,
            PROTOCOL: PROTOCOL_VERSION,
            ROWS_IN: str(verdict.rows_in),
            ROWS_OUT: str(verdict.rows_out),
            ROWS_REJECTED: str(verdict.rows_rejected),
            ROWS_DROPPED: str(verdict.rows_dropped),
        } | {end_key(part): str(end) for part, end in sorted(ends.items())}

    def _committed(self, sid: int | None, ends: Ends, verdict: Verdict) -> CommitResult:
        return CommitResult(
            state="committed",
            ends=ends,
            sid=sid,
            rows_in=verdict.rows_in,
            rows_out=verdict.rows_out,
            rows_rejected=verdict.rows_rejected,
            rows_dropped=verdict.rows_dropped,
            files=len(self._plan.paths),
            bytes=self._plan.bytes,
            choice_spent=True,
        )
