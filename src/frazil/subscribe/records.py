"""The unsettled records of a subscription: where each is, and what its failures lead to.

A record's attempt is the number of its current or next delivery. It grows when a delivery fails
and is durable before the delivery it belongs to, so a restart neither forgets nor repeats a count.
An attempt beyond the policy's last means that the record failed too often, also after a restart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING

from frazil.log.cursor import Cursor, ranges_of
from frazil.subscribe.actions import Action, Cause, Change, DeadLetter, Notice, NoticeKind
from frazil.subscribe.alarms import Alarms
from frazil.subscribe.places import Consumer, Flight, Flights, Place, Places, State
from frazil.subscribe.policy import FailurePolicy, Limits, Poison
from frazil.subscribe.suspects import Suspects

if TYPE_CHECKING:
    from frazil.subscribe.schedule import Schedule

__all__ = ["Records"]

REASON_CHARACTERS_MAX = 1_024
REASONS = {Cause.TIMEOUT: "no ack in time", Cause.LOST: "the consumer's stream ended"}


class Records:
    """The places of all records that were delivered and are not durably settled."""

    schedule: Schedule

    def __init__(
        self,
        policy: FailurePolicy,
        limits: Limits,
        *,
        cursor: Cursor,
        attempts: Mapping[int, int],
        dues_ms: Mapping[int, int],
        delivered_below: int,
        actions: list[Action],
    ) -> None:
        self._policy = policy
        self._limits = limits
        self._actions = actions
        self.cursor = cursor.copy()
        self.offset_next = cursor.acked_below
        self.places: Places = {}
        self.sizes: dict[int, int] = {}
        self.unacked_bytes = 0
        self.blocked: set[int] = set()
        self.returning = 0
        self._attempts = {offset: n for offset, n in attempts.items() if offset not in cursor}
        self._dues_ms = {offset: due for offset, due in dues_ms.items() if offset in self._attempts}
        self._delivered_below = delivered_below
        self._reasons: dict[int, str] = {}
        self._timed_out: set[int] = set()
        self._plans: dict[int, tuple[int, int]] = {}
        self._owed: dict[int, Cause] = {}
        self._gaps: list[tuple[int, int]] = []
        self._suspects = Suspects()
        self._flights = Flights()
        self._alarms = Alarms()

    def not_plain(self) -> Iterator[int]:
        """Give the offsets that must not simply be delivered when they are met.

        They had failed too often when this life began, or wait since an earlier one.
        """
        attempts_max = self._policy.attempts_max
        yield from (offset for offset, n in self._attempts.items() if n > attempts_max)
        yield from self._dues_ms

    # -- in and out of the hands of consumers ----------------------------------------------------

    def take_in(
        self,
        offsets: Sequence[int],
        sizes: Sequence[int],
        keys: Sequence[str],
        *,
        offset_end: int,
    ) -> tuple[Sequence[int], Sequence[int], Sequence[str]]:
        """Note that the topic was read up to `offset_end`; return the records to deliver."""
        first, self.offset_next = self.offset_next, offset_end
        assert offset_end >= first
        assert len(offsets) == len(sizes)
        if offsets:
            assert first <= offsets[0]
            assert offsets[-1] < offset_end
        if len(offsets) != offset_end - first:
            at = first
            for offset in (*offsets, offset_end):
                if offset > at:
                    self._gaps.append((at, offset))
                at = offset + 1
            for gap in self._gaps:
                self.cursor.ack_range(*gap)
        if first >= self.cursor.end:
            return offsets, sizes, keys
        kept = [at for at, offset in enumerate(offsets) if offset not in self.cursor]
        if len(kept) == len(offsets):
            return offsets, sizes, keys
        self.schedule.special.difference_update(set(offsets) - {offsets[at] for at in kept})
        return (
            [offsets[at] for at in kept],
            [sizes[at] for at in kept],
            [keys[at] for at in kept] if keys else keys,
        )

    def count(self, offsets: list[int], sizes: list[int]) -> None:
        """Count records as unacked that leave the schedule for the first time."""
        self.sizes.update(zip(offsets, sizes, strict=True))
        self.unacked_bytes += sum(sizes)

    def fly(self, consumer: Consumer, offsets: list[int], now_ms: int) -> list[int] | None:
        """Put records into a consumer's hands; return their attempts, None if all are first."""
        flight = self._flights.start(consumer, offsets, now_ms)
        self.places.update(dict.fromkeys(offsets, flight))
        if self._timed_out:
            self._timed_out.difference_update(offsets)
        if not self._attempts:
            return None
        attempts = [self._attempts.get(offset, 1) for offset in offsets]
        return attempts if max(attempts) > 1 else None

    def meet(self, offset: int, size: int, *, now_ms: int) -> None:
        """Deal with a record that cannot simply be delivered: acked early, failed, or waiting."""
        if offset in self.cursor:
            self.schedule.settle((offset,))
            return
        self.count([offset], [size])
        if offset not in self.places:
            self._arrange(offset, self._dues_ms.pop(offset, now_ms), now_ms)

    def lose(self, consumer: Consumer, *, now_ms: int, is_lost: bool, and_timed_out: bool) -> None:
        """Take back what a consumer has; with `and_timed_out` also what waits since a time-out."""
        offsets = []
        for flight in self._flights.to(consumer):
            offsets += [each for each in flight.offsets if self.places.get(each) is flight]
        offsets.sort()
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
                place.dues_ms[place.offsets.index(offset)] = now_ms
                self._hold_back(place)
            elif place is State.UNCOUNTED:
                attempt, _plan_ms = self._plans.pop(offset)
                self._alarms.clear(offset)
                self._recount(recount, offset, attempt, now_ms)
        if recount.offsets:
            self._hold_back(recount)
            self._actions.append(recount)
        self._timed_out.clear()

    def _hold_back(self, change: Change) -> None:
        """Let nothing new go before a change is durable."""
        if not change.is_returning:
            change.is_returning = True
            self.returning += 1

    def _recount(self, change: Change, offset: int, attempt: int, due_ms: int) -> None:
        """Count a failure once more that the journal refused."""
        change.offsets.append(offset)
        change.priors.append(None)
        change.attempts.append(attempt)
        change.dues_ms.append(due_ms)
        self.places[offset] = change

    def is_with(self, consumer_id: int, offset: int) -> bool:
        """Tell whether a record is in a consumer's hands."""
        place = self.places.get(offset)
        return type(place) is Flight and place.consumer.consumer_id == consumer_id

    # -- acks and nacks --------------------------------------------------------------------------

    def settle(self, offsets: Sequence[int], cause: Cause) -> Change | None:
        """Begin to settle delivered records; return the change, None if there is nothing to do."""
        change = Change(cause)
        if not self._settle_plain(offsets, change):
            self._settle_each(offsets, change)
        taken = change.offsets
        if not taken:
            return change if change.after else None
        change.ranges = ranges_of(sorted(taken))
        if self._gaps:
            change.gaps, self._gaps = self._gaps, []
            change.ranges += change.gaps
        return change

    def _settle_plain(self, offsets: Sequence[int], change: Change) -> bool:
        """Settle different records that are all with consumers, which most are; else do nothing."""
        priors = list(map(self.places.get, offsets))
        met = set(priors)
        flights = [place for place in met if isinstance(place, Flight)]
        settled: Places = dict.fromkeys(offsets, change)
        if len(flights) < len(met) or len(settled) < len(priors):
            return False
        for flight in flights:
            self._flights.land(flight, priors.count(flight))
        self.places.update(settled)
        change.offsets, change.priors = list(offsets), priors
        return True

    def _settle_each(self, offsets: Sequence[int], change: Change) -> None:
        """Settle records wherever each is."""
        places, flights = self.places, self._flights
        taken, priors = change.offsets, change.priors
        for offset in offsets:
            place = places.get(offset)
            if type(place) is Flight:
                flights.land(place)
            elif place is None:
                if not self._had_before(offset):
                    continue
                self.schedule.special.add(offset)
            elif type(place) is Change and place.is_settling:
                if place is not change and place not in change.after:
                    change.after.append(place)
                continue
            places[offset] = change
            taken.append(offset)
            priors.append(place)

    def _had_before(self, offset: int) -> bool:
        """Tell whether an earlier life may have delivered an unsettled record."""
        # A second attempt that it counted means that the first was delivered.
        return offset in self._attempts or (
            0 <= offset < self._delivered_below and offset not in self.cursor
        )

    def give_back(self, offset: int, *, now_ms: int, delay_ms: int, reason: str) -> Change | None:
        """Count a delivery as failed by a nack; return the change, None if there is no effect."""
        place = self.places.get(offset)
        if type(place) is Flight:
            (change,) = self._fail([offset], Cause.NACK, now_ms, asked_ms=delay_ms, reason=reason)
            return change
        if type(place) is Change and place.cause in {Cause.NACK, Cause.DROP}:
            repeat = Change(Cause.NACK)
            repeat.after.append(place)
            return repeat
        return None

    def put_off(self, offset: int, *, now_ms: int) -> None:
        """Let a record wait that was to be delivered and never reached its consumer."""
        place = self.places.get(offset)
        if type(place) is Flight:
            self._flights.land(place)
            self._put_off(offset, State.WAITING, now_ms)

    def skip(self, offsets: list[int], sizes: list[int]) -> None:
        """Settle records that nobody accepts."""
        fresh = [at for at, offset in enumerate(offsets) if offset not in self.sizes]
        self.count([offsets[at] for at in fresh], [sizes[at] for at in fresh])
        self._settle_owed(offsets, Cause.SKIP)

    def bury_later(self, offset: int, *, now_ms: int) -> None:
        """Ask for a dead letter again when `retry_ms` are over."""
        if self.places.get(offset) is State.DEAD:
            self._alarms.set(offset, now_ms + self._limits.retry_ms)

    # -- what the journal says -------------------------------------------------------------------

    def confirmed(self, change: Change, *, now_ms: int) -> None:
        """Do what a change says, now that it is durable."""
        assert change.is_open
        change.is_open = False
        if change.attempts:
            self._attempts_confirmed(change, now_ms)
        else:
            self._settled(change)

    def _attempts_confirmed(self, change: Change, now_ms: int) -> None:
        self.returning -= change.is_returning
        for offset, attempt, due_ms in zip(
            change.offsets, change.attempts, change.dues_ms, strict=True
        ):
            place = self.places.get(offset)
            if place is not None:
                self._attempts[offset] = attempt
            if place is change:
                self._arrange(offset, due_ms, now_ms)

    def _settled(self, change: Change) -> None:
        places, sizes, offsets = self.places, self.sizes, change.offsets
        for first, end in change.ranges:
            self.cursor.ack_range(first, end)
        deque(map(places.__delitem__, offsets), 0)
        self.unacked_bytes -= sum(map(sizes.pop, offsets, repeat(0)))
        if change.cause is Cause.DROP:
            for offset in offsets:
                attempt = self._attempts.get(offset, 1)
                reason = self._reasons.get(offset, "")
                self._actions.append(
                    Notice(NoticeKind.DROPPED, offset=offset, attempt=attempt, reason=reason)
                )
        if self._attempts or self._reasons or self._suspects or len(self._alarms):
            for offset in offsets:
                self._forget(offset)
        self.schedule.settle(offsets)

    def _forget(self, offset: int) -> None:
        self._attempts.pop(offset, None)
        self._reasons.pop(offset, None)
        self._plans.pop(offset, None)
        self._owed.pop(offset, None)
        self._dues_ms.pop(offset, None)
        self._timed_out.discard(offset)
        self._suspects.forget(offset)
        self._alarms.clear(offset)
        self._unblock(offset)

    def failed(self, change: Change, *, now_ms: int) -> None:
        """Put records back where they were before a change that is not durable."""
        assert change.is_open
        change.is_open = False
        if change.attempts:
            self._attempts_failed(change, now_ms)
        else:
            self._settling_failed(change, now_ms)

    def _attempts_failed(self, change: Change, now_ms: int) -> None:
        self.returning -= change.is_returning
        is_nack = change.cause is Cause.NACK
        back: dict[Consumer, list[int]] = {}
        plans = zip(change.attempts, change.dues_ms, strict=True)
        for offset, plan, prior in zip(change.offsets, plans, change.priors, strict=True):
            place = self.places.get(offset)
            if place is change and is_nack and type(prior) is Flight and prior.consumer.is_attached:
                back.setdefault(prior.consumer, []).append(offset)
                continue
            if place is not None:
                self._plans[offset] = plan
            if place is change:
                self._put_off(offset, State.UNCOUNTED, now_ms)
        for consumer, offsets in back.items():
            self.fly(consumer, offsets, now_ms)

    def _settling_failed(self, change: Change, now_ms: int) -> None:
        back: dict[Consumer, list[int]] = {}
        lost = []
        self._gaps += change.gaps
        for offset, prior in zip(change.offsets, change.priors, strict=True):
            if change.cause is not Cause.ACK:
                self._owed[offset] = change.cause
                self._put_off(offset, State.OWED, now_ms)
            elif type(prior) is Flight:
                if prior.consumer.is_attached:
                    back.setdefault(prior.consumer, []).append(offset)
                else:
                    lost.append(offset)
            else:
                self._put_back(offset, prior, now_ms)
        for consumer, offsets in back.items():
            self.fly(consumer, offsets, now_ms)
        if lost:
            self._actions += self._fail(lost, Cause.LOST, now_ms, suspect=-1)

    def _put_back(self, offset: int, prior: Place | None, now_ms: int) -> None:
        """Put a record whose ack failed where it was, if that still is a place."""
        if prior is None:
            self._put_back_held(offset, now_ms)
        elif prior is State.READY or (
            # Its time came while the ack was under way.
            prior is State.WAITING and self._alarms.due_ms(offset) is None
        ):
            self._make_ready(offset)
        elif prior is State.BLOCKED and offset not in self.blocked:
            self._arrange(offset, now_ms, now_ms)
        elif isinstance(prior, Change) and not prior.is_open:
            if offset in self._plans:
                self._put_off(offset, State.UNCOUNTED, now_ms)
            else:
                due_ms = prior.dues_ms[prior.offsets.index(offset)]
                self._arrange(offset, due_ms, now_ms)
        else:
            self.places[offset] = prior
            has_alarm = isinstance(prior, State) and prior is not State.BLOCKED
            # It may have rung in vain while the ack was under way.
            if has_alarm and self._alarms.due_ms(offset) is None:
                self._alarms.set(offset, now_ms + self._limits.retry_ms)

    def _put_back_held(self, offset: int, now_ms: int) -> None:
        """Put a record back that was acked before this life delivered it."""
        if offset in self.sizes:
            self._arrange(offset, self._dues_ms.pop(offset, now_ms), now_ms)
            return
        del self.places[offset]
        if self._is_pardoned(offset):
            self.schedule.special.discard(offset)

    # -- failures --------------------------------------------------------------------------------

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
        """Count deliveries as failed; return the changes to journal before the next ones.

        With a `suspect`, only that one may fail for good: the others' last attempt is repeated.
        """
        attempts_max, poison = self._policy.attempts_max, self._policy.poison
        counted, dropped = Change(cause), Change(Cause.DROP)
        reason = reason[:REASON_CHARACTERS_MAX] or REASONS.get(cause, "nacked")
        for offset in offsets:
            place = self.places.get(offset)
            if type(place) is Flight:
                self._flights.land(place)
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
        dropped.ranges = ranges_of(dropped.offsets)
        if cause is Cause.LOST and counted.offsets:
            self._hold_back(counted)
        return [change for change in (counted, dropped) if change.offsets]

    def _arrange(self, offset: int, due_ms: int, now_ms: int) -> None:
        """Decide what comes next for a record whose attempt is durable."""
        if self._attempts.get(offset, 1) > self._policy.attempts_max:
            self._exhausted(offset, now_ms)
        elif due_ms <= now_ms:
            self._make_ready(offset)
        else:
            self.places[offset] = State.WAITING
            self._alarms.set(offset, due_ms)

    def _exhausted(self, offset: int, now_ms: int) -> None:
        """Do with a record that failed too often what the policy says."""
        poison = self._policy.poison
        if poison is Poison.BLOCK:
            attempt, reason = self._attempts[offset] - 1, self._reason(offset)
            self.places[offset] = State.BLOCKED
            self.blocked.add(offset)
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
        self.places[offset] = State.READY
        self.schedule.again(offset)

    def _put_off(self, offset: int, state: State, now_ms: int) -> None:
        self.places[offset] = state
        self._alarms.set(offset, now_ms + self._limits.retry_ms)

    def _unblock(self, offset: int) -> None:
        if offset in self.blocked:
            self.blocked.discard(offset)
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
        alarm_ms, oldest_ms = self._alarms.first_ms(), self._flights.oldest_ms
        if oldest_ms is None or not self._policy.ack_timeout_ms:
            return alarm_ms
        timeout_ms = oldest_ms + self._policy.ack_timeout_ms
        return timeout_ms if alarm_ms is None else min(alarm_ms, timeout_ms)

    def ring(self, now_ms: int) -> None:
        """Do what is due: time-outs of acks, then alarms."""
        due_ms = self.due_ms()
        if due_ms is None or due_ms > now_ms:
            return
        if self._policy.ack_timeout_ms:
            until_ms = now_ms - self._policy.ack_timeout_ms
            self._time_out(self._flights.delivered_until(until_ms), now_ms)
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

    def _time_out(self, flights: list[Flight], now_ms: int) -> None:
        places = self.places
        offsets = [
            offset
            for flight in flights
            for offset in flight.offsets
            if places.get(offset) is flight
        ]
        if offsets:
            offsets.sort()
            self._timed_out.update(offsets)
            self._actions += self._fail(offsets, Cause.TIMEOUT, now_ms)

    def configure(self, policy: FailurePolicy, limits: Limits, *, now_ms: int) -> None:
        """Go on with another policy and other limits; judge blocked records by it."""
        self._policy = policy
        self._limits = limits
        special = self.schedule.special
        special.difference_update([each for each in special if self._is_pardoned(each)])
        special.update(self.not_plain())
        for offset in sorted(self.blocked):
            is_still = (
                policy.poison is Poison.BLOCK and self._attempts[offset] > policy.attempts_max
            )
            if not is_still:
                self._unblock(offset)
                if self.places[offset] is State.BLOCKED:
                    self._arrange(offset, now_ms, now_ms)

    def _is_pardoned(self, offset: int) -> bool:
        """Whether nothing speaks against delivering a held record after all."""
        is_settled = offset in self.places or offset in self.cursor
        is_waiting = offset in self._dues_ms
        is_plain = self._attempts.get(offset, 1) <= self._policy.attempts_max
        return not is_settled and not is_waiting and is_plain
