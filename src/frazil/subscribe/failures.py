"""What failures of deliveries lead to: another attempt, later or at once, or the end of a record.

A record's attempt is the number of its current or next delivery. It grows when a delivery fails
and is durable before the delivery it belongs to, so a restart neither forgets nor repeats a count.
An attempt beyond the policy's last means that the record failed too often, also after a restart.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from frazil.log import ranges_of
from frazil.subscribe.actions import Action, Cause, Change, DeadLetter, Notice, NoticeKind
from frazil.subscribe.alarms import Alarms
from frazil.subscribe.flights import Flights
from frazil.subscribe.places import Consumer, Flight, Places, State
from frazil.subscribe.policy import FailurePolicy, Limits, Poison
from frazil.subscribe.returning import Returning
from frazil.subscribe.suspects import Suspects

if TYPE_CHECKING:
    from frazil.subscribe.schedule import Schedule

__all__ = ["Failures"]

REASON_CHARACTERS_MAX: Final = 1_024
REASONS: Final = {Cause.TIMEOUT: "no ack in time", Cause.LOST: "the consumer's stream ended"}


class Failures:
    """Where records are that were delivered, how often that failed, and what is due by time."""

    schedule: Schedule
    sizes: dict[int, int]

    def __init__(
        self,
        policy: FailurePolicy,
        limits: Limits,
        *,
        attempts: dict[int, int],
        actions: list[Action],
    ) -> None:
        self._policy = policy
        self._limits = limits
        self._actions = actions
        self.places: Places = {}
        self.blocked: dict[int, int] = {}
        """Offsets of blocked records, with their sizes."""
        self.blocked_bytes = 0
        self.returning = Returning()
        self._attempts = attempts
        self._reasons: dict[int, str] = {}
        self._timed_out: set[int] = set()
        self._charged: dict[int, Consumer] = {}
        """Who failed at a record that waits: it counts as if that consumer still had it."""
        self._plans: dict[int, tuple[int, int]] = {}
        self._owed: dict[int, Cause] = {}
        self._suspects = Suspects()
        self.flights = Flights(self.places)
        self._alarms = Alarms()

    def lose(self, consumer: Consumer, *, now_ms: int, is_lost: bool, and_timed_out: bool) -> None:
        """Take back what a consumer has; with `and_timed_out` also what waits since a time-out."""
        for offset in self.flights.unsent_to(consumer):
            # The consumer never had it: nothing failed.
            unsent = self.places[offset]
            assert isinstance(unsent, Flight)
            self.flights.land(unsent)
            self._make_ready(offset)
        offsets = self.flights.to(consumer)
        if offsets:
            # Only the oldest can be why the client went; the others never fail for good this way.
            is_judged = is_lost and self._suspects.is_to_blame(
                offsets[0], self._policy, self._limits, now_ms=now_ms
            )
            self._actions += self._fail(
                offsets, Cause.LOST, now_ms, suspect=offsets[0] if is_judged else -1
            )
        if and_timed_out:
            self._hasten(now_ms)

    def _hasten(self, now_ms: int) -> None:
        """Let what waits since a time-out come at once, with what a consumer had when it left."""
        recount = Change(Cause.TIMEOUT)
        for offset in sorted(self._timed_out):
            place = self.places.get(offset)
            if place is State.WAITING:
                self._alarms.clear(offset)
                self._make_ready(offset)
            elif type(place) is Change and place.attempts:
                place.dues_ms[bisect_left(place.offsets, offset)] = now_ms
                self.returning.hold(place)
            elif place is State.UNCOUNTED:
                attempt, _plan_ms = self._plans.pop(offset)
                self._alarms.clear(offset)
                self._recount(recount, offset, attempt, now_ms)
        if recount.offsets:
            self.returning.hold(recount)
            self._actions.append(recount)
        self._timed_out.clear()

    def _fail(
        self,
        offsets: Sequence[int],
        cause: Cause,
        now_ms: int,
        *,
        asked_ms: int = 0,
        reason: str = "",
        suspect: int | None = None,
    ) -> list[Change]:
        """Count deliveries, ascending, as failed; return the changes to journal before the next.

        With a `suspect`, only that one may fail for good: the others' last attempt is repeated.
        """
        attempts_max, poison = self._policy.attempts_max, self._policy.poison
        counted, dropped = Change(cause), Change(Cause.DROP)
        reason = reason[:REASON_CHARACTERS_MAX] or REASONS.get(cause, "nacked")
        for offset in offsets:
            place = self.places.get(offset)
            if type(place) is Flight:
                self.flights.land(place)
            attempt = self._attempts.get(offset, 1)
            attempt_next = attempt + 1
            if suspect is not None and offset != suspect and attempt_next > attempts_max:
                self._make_ready(offset)
                continue
            self._reasons[offset] = reason
            is_dropped = attempt_next > attempts_max and poison is Poison.DROP
            change = dropped if is_dropped else counted
            change.offsets.append(offset)
            change.priors.append(place)
            self.places[offset] = change
            if not is_dropped:
                delay_ms = 0 if cause is Cause.LOST else self._policy.delay_ms(attempt, asked_ms)
                change.attempts.append(attempt_next)
                change.dues_ms.append(now_ms + delay_ms)
                if type(place) is Flight and cause is not Cause.LOST:
                    self._charge(offset, place.consumer)
        dropped.ranges = ranges_of(dropped.offsets)
        if cause is Cause.LOST and counted.offsets:
            self.returning.hold(counted)
        return [change for change in (counted, dropped) if change.offsets]

    def _recount(self, change: Change, offset: int, attempt: int, due_ms: int) -> None:
        """Count a failure once more that the journal refused."""
        change.offsets.append(offset)
        change.priors.append(None)
        change.attempts.append(attempt)
        change.dues_ms.append(due_ms)
        self.places[offset] = change
        if offset in self.returning:
            self.returning.forget(offset)
            self.returning.hold(change)

    def _arrange(self, offset: int, due_ms: int, now_ms: int) -> None:
        """Decide what comes next for a record whose attempt is durable."""
        self.returning.forget(offset)
        if self._attempts.get(offset, 1) > self._policy.attempts_max:
            self._exhausted(offset, now_ms)
        elif due_ms <= now_ms:
            self._make_ready(offset)
        else:
            self.places[offset] = State.WAITING
            self._alarms.set(offset, due_ms)

    def _exhausted(self, offset: int, now_ms: int) -> None:
        """Do with a record that failed too often what the policy says."""
        self._discharge(offset)
        poison = self._policy.poison
        if poison is Poison.BLOCK:
            attempt, reason = self._attempts[offset] - 1, self._reason(offset)
            self.places[offset] = State.BLOCKED
            self.blocked[offset] = self.sizes[offset]
            self.blocked_bytes += self.sizes[offset]
            self._actions.append(
                Notice(NoticeKind.BLOCKED, offset=offset, attempt=attempt, reason=reason)
            )
        elif poison is Poison.DEAD_LETTER:
            # Asked for by the alarm: until then an ack may come, and then nobody buries it.
            self.places[offset] = State.DEAD
            self._alarms.set(offset, now_ms)
        else:
            self._owed[offset] = Cause.DROP
            self.places[offset] = State.OWED
            self._alarms.set(offset, now_ms)

    def _bury(self, offset: int, now_ms: int) -> None:
        """Ask for a dead letter, if the policy still says so."""
        attempt = self._attempts[offset]
        if self._policy.poison is Poison.DEAD_LETTER and attempt > self._policy.attempts_max:
            self._actions.append(DeadLetter(offset, attempt - 1, self._reason(offset)))
        else:
            self._arrange(offset, now_ms, now_ms)

    def _reason(self, offset: int) -> str:
        return self._reasons.get(offset, "failed too often before a restart")

    def _make_ready(self, offset: int) -> None:
        self.returning.forget(offset)
        self._discharge(offset)
        self.places[offset] = State.READY
        self.schedule.again(offset)

    def _charge(self, offset: int, consumer: Consumer) -> None:
        """Count a record as a consumer's while it waits because that one failed at it.

        Otherwise one that lets everything time out would have room for more each time.
        """
        self._charged[offset] = consumer
        consumer.out += 1

    def _discharge(self, offset: int) -> None:
        consumer = self._charged.pop(offset, None)
        if consumer is not None:
            consumer.out -= 1

    def _put_off(self, offset: int, state: State, now_ms: int) -> None:
        self.places[offset] = state
        self._alarms.set(offset, now_ms + self._limits.retry_ms)

    def _unblock(self, offset: int) -> None:
        if offset in self.blocked:
            self.blocked_bytes -= self.blocked.pop(offset)
            if not self.blocked:
                self._actions.append(Notice(NoticeKind.UNBLOCKED, offset=offset))

    def _settle_owed(self, offsets: list[int], cause: Cause) -> None:
        """Journal what is settled without an ack."""
        change = Change(cause)
        change.offsets = sorted(offsets)
        change.priors = [None] * len(offsets)
        change.ranges = ranges_of(change.offsets)
        for offset in offsets:
            self.places[offset] = change
        self._actions.append(change)

    # -- time ------------------------------------------------------------------------------------

    def due_ms(self) -> int | None:
        """Return when `ring` next has something to do."""
        timeout_ms = self._policy.ack_timeout_ms
        dues = (self._alarms.first_ms(), self.flights.due_ms(timeout_ms) if timeout_ms else None)
        return min((due for due in dues if due is not None), default=None)

    def overdue(self, now_ms: int) -> list[int]:
        """Return what the next `ring` counts as failed for want of an ack."""
        timeout_ms = self._policy.ack_timeout_ms
        return self.flights.overdue(now_ms, timeout_ms) if timeout_ms else []

    def ring(self, now_ms: int) -> None:
        """Do what is due: time-outs of acks, then alarms."""
        due_ms = self.due_ms()
        if due_ms is None or due_ms > now_ms:
            return
        late = self.overdue(now_ms)
        if late:
            self._timed_out.update(late)
            self._actions += self._fail(late, Cause.TIMEOUT, now_ms)
        recount = Change(Cause.TIMEOUT)
        owed: dict[Cause, list[int]] = {}
        for offset in self._alarms.ring(now_ms):
            place = self.places.get(offset)
            if place is State.WAITING:
                self._make_ready(offset)
            elif place is State.DEAD:
                self._bury(offset, now_ms)
            elif place is State.OWED:
                owed.setdefault(self._owed.pop(offset), []).append(offset)
            elif place is State.UNCOUNTED:
                self._recount(recount, offset, *self._plans.pop(offset))
        if recount.offsets:
            self._actions.append(recount)
        for cause, offsets in owed.items():
            self._settle_owed(offsets, cause)
