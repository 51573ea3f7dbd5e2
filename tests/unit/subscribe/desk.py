"""A dispatch with a journal that answers on request, for tests that read like a story."""

from __future__ import annotations

from frazil.subscribe import Change, Deliver, Dispatch, FailurePolicy, Limits, Read

MUCH = 1 << 40


class Desk:
    """One subscription; `now` stands still unless a test moves it."""

    def __init__(self, kind, *, cursor=None, attempts=None, limits=None, **policy):
        self.now = 0
        self.head = 0
        self.changes = []
        self.others = []
        self.limits = Limits(**({"max_unacked_messages": 100} | (limits or {})))
        self.dispatch = Dispatch(
            kind,
            policy=FailurePolicy(**policy),
            limits=self.limits,
            cursor=cursor,
            attempts=attempts or {},
        )

    def attach(self, consumer_id, name=None, *, messages=MUCH, size_bytes=MUCH, filters=()):
        name = name or f"c{consumer_id}"
        self.dispatch.attach(consumer_id, name=name, now_ms=self.now, filters=filters)
        self.dispatch.want(consumer_id, messages=messages, size_bytes=size_bytes)

    def detach(self, consumer_id):
        self.dispatch.detach(consumer_id, now_ms=self.now)

    def feed(self, count=None, *, keys=None, size=10):
        first = self.dispatch.offset_next
        count = len(keys) if count is None else count
        offsets = list(range(first, first + count))
        self.dispatch.feed(offsets, [size] * count, offset_end=first + count, keys=keys or ())

    def poll(self, after_ms=0):
        """Let time pass; return `(consumer, offset, attempt)` of all deliveries.

        What must be read again is read at once. Changes wait in `changes` for `sync`, all else is
        in `others`.
        """
        self.now += after_ms
        delivered = []
        actions = self.dispatch.poll(self.now)
        while self.dispatch.reading:
            actions.remove(Read())
            for offset in list(self.dispatch.reading):
                self.dispatch.loaded(offset, offset)
            actions += self.dispatch.poll(self.now)
        for action in actions:
            if isinstance(action, Deliver):
                attempts = action.attempts or [1] * len(action.offsets)
                pairs = zip(action.offsets, attempts, strict=True)
                delivered += [(action.consumer_id, *pair) for pair in pairs]
            elif isinstance(action, Change):
                self.changes.append(action)
            else:
                self.others.append(action)
        return delivered

    def offsets(self, after_ms=0):
        """Poll; return the offsets delivered."""
        return [offset for _, offset, _ in self.poll(after_ms)]

    def ack(self, *offsets):
        head = max(self.head, self.dispatch.offset_next)
        change = self.dispatch.ack(offsets, head=head)
        if change is not None and not change.is_empty:
            self.changes.append(change)
        return change

    def nack(self, offset, **how):
        change = self.dispatch.nack(offset, now_ms=self.now, **how)
        if change is not None and not change.is_empty:
            self.changes.append(change)
        return change

    def sync(self):
        """The journal confirms all it was given."""
        changes, self.changes = self.changes, []
        for change in changes:
            self.dispatch.confirmed(change, now_ms=self.now)

    def refuse(self):
        """The journal refuses all it was given."""
        changes, self.changes = self.changes, []
        for change in changes:
            self.dispatch.failed(change, now_ms=self.now)

    def reported(self):
        """Return the other actions, and forget them."""
        others, self.others = self.others, []
        return others
