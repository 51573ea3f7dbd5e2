"""The unsettled records of a subscription: where each is, and what acks and the journal do to it."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat

from frazil.log import Cursor, gaps_of, ranges_of
from frazil.subscribe.actions import Action, Cause, Change, Notice, NoticeKind
from frazil.subscribe.failures import Failures
from frazil.subscribe.places import Consumer, Flight, Place, Places, State
from frazil.subscribe.policy import FailurePolicy, Limits, Poison

__all__ = ["Records"]


class Records(Failures):
    """The places of all records that were delivered and are not durably settled."""

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
        unsettled = {offset: n for offset, n in attempts.items() if offset not in cursor}
        super().__init__(policy, limits, attempts=unsettled, actions=actions)
        self.cursor = cursor.copy()
        self.offset_next = cursor.acked_below
        self.sizes: dict[int, int] = {}
        self.unacked_bytes = 0
        self._dues_ms = {offset: due for offset, due in dues_ms.items() if offset in unsettled}
        self._delivered_below = delivered_below
        self._gaps: list[tuple[int, int]] = []
        self.parked: list[int] = []
        """What was met and not delivered, since somebody looked last."""

    def not_plain(self) -> Iterator[int]:
        """Give the offsets that must not simply be delivered when they are met.

        They had failed too often when this life began, or wait since an earlier one. Those that
        were met already have a place that says what comes next.
        """
        attempts_max, met = self._policy.attempts_max, self.sizes
        for offset, attempt in self._attempts.items():
            if attempt > attempts_max and offset not in met:
                yield offset
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
            self._gaps += gaps_of(offsets, first=first, end=offset_end)
            for gap in self._gaps:
                self.cursor.ack_range(*gap)
            self._forget_gaps()
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

    def _forget_gaps(self) -> None:
        """Forget the failures of records that a quota took since."""
        known = [offset for offset in self._attempts if offset in self.cursor]
        for offset in known:
            if offset not in self.places:
                self._forget(offset)
                self.schedule.special.discard(offset)

    def count(self, offsets: list[int], sizes: list[int]) -> None:
        """Count records as unacked that leave the schedule for the first time."""
        self.sizes.update(zip(offsets, sizes, strict=True))
        self.unacked_bytes += sum(sizes)

    def fly(self, consumer: Consumer, offsets: list[int], now_ms: int) -> list[int] | None:
        """Put records into a consumer's hands; return their attempts, None if all are first."""
        flight = self.flights.start(consumer, offsets, now_ms)
        self.places.update(dict.fromkeys(offsets, flight))
        if self._timed_out:
            self._timed_out.difference_update(offsets)
        if self._charged:
            for offset in offsets:
                self._discharge(offset)
        if not self._attempts:
            return None
        attempts = self.attempts_of(offsets)
        return attempts if max(attempts) > 1 else None

    def meet(self, offset: int, size: int, *, now_ms: int) -> None:
        """Deal with a record that cannot simply be delivered: acked early, failed, or waiting."""
        self.parked.append(offset)
        if offset in self.cursor:
            self.schedule.settle((offset,))
            return
        self.count([offset], [size])
        if offset not in self.places:
            self._arrange(offset, self._dues_ms.pop(offset, now_ms), now_ms)

    def set_clock(self, consumer_id: int, offsets: Sequence[int], since_ms: int | None) -> None:
        """Let the time for acks of a consumer's deliveries begin then, or not yet."""
        mine = [offset for offset in offsets if self.flights.holder(offset) == consumer_id]
        if mine:
            self.flights.set_clock(mine, since_ms)

    def attempts_of(self, offsets: Sequence[int]) -> list[int]:
        """Return the numbers of records' deliveries, the current or the next."""
        return [self._attempts.get(offset, 1) for offset in offsets]

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
        """Settle different records that were all sent, as most were; else do nothing."""
        priors = list(map(self.places.get, offsets))
        met = set(priors)
        flights = [
            place for place in met if isinstance(place, Flight) and place.delivered_ms is not None
        ]
        settled: Places = dict.fromkeys(offsets, change)
        if len(flights) < len(met) or len(settled) < len(priors):
            return False
        counts = {flights[0]: len(priors)} if len(flights) == 1 else Counter(priors)
        for flight in flights:
            self.flights.land(flight, counts[flight])
        self.places.update(settled)
        change.offsets, change.priors = list(offsets), priors
        return True

    def _settle_each(self, offsets: Sequence[int], change: Change) -> None:
        """Settle records wherever each is."""
        places, flights = self.places, self.flights
        taken, priors = change.offsets, change.priors
        for offset in offsets:
            place: Place | None = places.get(offset)
            if type(place) is Flight:
                flights.land(place)
                if place.delivered_ms is None:
                    # It never came to its consumer: without the ack it goes to whoever is next.
                    change.unsent.setdefault(place.consumer.consumer_id, []).append(offset)
                    place = State.READY
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
        if type(place) is Flight and place.delivered_ms is None:
            # It is late, and meant for an earlier delivery: this one has not gone out yet.
            return None
        if place is None:
            return self._give_back_early(offset, now_ms, delay_ms, reason)
        if type(place) is Flight:
            (change,) = self._fail([offset], Cause.NACK, now_ms, asked_ms=delay_ms, reason=reason)
            return change
        if type(place) is Change and place.cause in {Cause.NACK, Cause.DROP}:
            repeat = Change(Cause.NACK)
            repeat.after.append(place)
            return repeat
        return None

    def _give_back_early(
        self, offset: int, now_ms: int, delay_ms: int, reason: str
    ) -> Change | None:
        """Count a delivery of an earlier life as failed, before this life delivers the record."""
        if not self._had_before(offset) or offset in self._dues_ms:
            # Nobody had it, or it was given back and waits already.
            return None
        self.schedule.special.add(offset)
        if offset not in self._attempts:
            (change,) = self._fail([offset], Cause.NACK, now_ms, asked_ms=delay_ms, reason=reason)
            return change
        # The nack may be why it was counted: nobody pays twice for one delivery. So the number of
        # the next stays, whether or not the earlier life came to it, and only its delay is new.
        change, attempt = Change(Cause.NACK), self._attempts[offset]
        due_ms = now_ms + self._policy.delay_ms(attempt - 1, delay_ms)
        self._recount(change, offset, attempt, due_ms)
        return change

    def put_off(self, offsets: Sequence[int], *, now_ms: int, comes_first: bool) -> None:
        """Let records wait that were to be delivered and never reached their consumer."""
        for offset in offsets:
            place = self.places[offset]
            assert isinstance(place, Flight)
            self.flights.land(place)
            self._put_off(offset, State.WAITING, now_ms)
            if comes_first:
                self.returning.wait(offset)

    def prolong(self, offset: int, *, until_ms: int) -> None:
        """Let a record that is with a consumer be there until then."""
        place = self.places.get(offset)
        if type(place) is Flight and place.delivered_ms is not None:
            self.places[offset] = self.flights.prolong(offset, place, until_ms=until_ms)

    def take_back(self, consumer_id: int, offsets: Sequence[int]) -> None:
        """Take records back that a consumer has not seen: they are delivered as if for the first."""
        for offset in offsets:
            place = self.places.get(offset)
            if type(place) is Flight and place.consumer.consumer_id == consumer_id:
                self.flights.land(place)
                self.schedule.set_aside(offset)
                self._make_ready(offset)

    def give_up(self, offset: int) -> None:
        """Settle a record that was to be delivered and is no more."""
        place = self.places.get(offset)
        if type(place) is Flight:
            self.flights.land(place)
            self._settle_owed([offset], Cause.GONE)

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
        self.returning.release(change)
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
        elif change.cause is Cause.SKIP:
            skipped = Notice(NoticeKind.SKIPPED, offset=offsets[0], records=len(offsets))
            self._actions.append(skipped)
        if self._attempts or self._reasons or self._suspects or len(self._alarms) or self.returning:
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
        self._discharge(offset)
        self.returning.forget(offset)
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
        self.returning.release(change)
        is_nack = change.cause is Cause.NACK
        back: dict[Consumer, list[int]] = {}
        plans = zip(change.attempts, change.dues_ms, strict=True)
        for offset, plan, prior in zip(change.offsets, plans, change.priors, strict=True):
            place = self.places.get(offset)
            if place is change and is_nack and type(prior) is Flight and prior.consumer.is_attached:
                back.setdefault(prior.consumer, []).append(offset)
                continue
            if place is change and is_nack and type(prior) is not Flight:
                self._put_back(offset, prior, now_ms)
                continue
            if place is not None:
                self._plans[offset] = plan
                if change.is_returning:
                    self.returning.wait(offset)
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
            self._actions += self._fail(sorted(lost), Cause.LOST, now_ms, suspect=-1)

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
                due_ms = prior.dues_ms[bisect_left(prior.offsets, offset)]
                self._arrange(offset, due_ms, now_ms)
        else:
            self.places[offset] = prior
            has_alarm = isinstance(prior, State) and prior is not State.BLOCKED
            # It may have rung in vain while the ack was under way.
            if has_alarm and self._alarms.due_ms(offset) is None:
                self._alarms.set(offset, now_ms + self._limits.retry_ms)

    def _arrange(self, offset: int, due_ms: int, now_ms: int) -> None:
        """Decide what comes next for a record whose attempt is durable, as soon as it is met."""
        if offset in self.sizes:
            super()._arrange(offset, due_ms, now_ms)
            return
        del self.places[offset]
        if offset in self.cursor:
            # A quota took it meanwhile.
            self._forget(offset)
            self.schedule.special.discard(offset)
        else:
            self._dues_ms[offset] = due_ms

    def _put_back_held(self, offset: int, now_ms: int) -> None:
        """Put a record back that was acked or given back before this life delivered it."""
        if offset in self.sizes:
            self._arrange(offset, self._dues_ms.pop(offset, now_ms), now_ms)
            return
        del self.places[offset]
        if self._is_pardoned(offset):
            self.schedule.special.discard(offset)

    # -- policies --------------------------------------------------------------------------------

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
