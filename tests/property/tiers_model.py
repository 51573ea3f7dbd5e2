"""What a topic must be: a list of changes by offset, and their fold into a dict.

The model knows columns by numbers, which renames keep, and says for every call which changes the
log must hold afterwards, or which error must come. It never looks into the product.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import attrs

from frazil.errors import Conflict, NotFound

WIDER = {"int": "long", "float": "double"}


class Column(NamedTuple):
    """A column of a topic; the number is its own for ever."""

    number: int
    name: str
    type: str


class Logged(NamedTuple):
    """One change in the log: values by column number, None for a delete.

    `named` are the numbers of the columns that a partial change names, None for a whole row.
    """

    op: str
    key: tuple
    values: dict | None
    named: frozenset | None = None

    def folded(self, before):
        """The row after this change."""
        if self.values is None:
            return None
        if self.named is None:
            return self.values
        if before is None:
            return self.values if self.op == "upsert" else None
        return {**before, **{number: self.values.get(number) for number in self.named}}


class Ask(NamedTuple):
    """A change as a user asks for it; `columns` are values by number."""

    op: str
    key: tuple
    columns: dict
    key_new: tuple | None = None


@attrs.define(eq=False)
class TopicModel:
    """One topic as it was seen from outside."""

    name: str
    columns: list
    key: tuple = ()
    """The numbers of the key columns."""
    policy: str = "ignore"
    sync: str = "commit"
    expires: bool = False
    """Retention lets records go as soon as they are in files."""
    columns_doubt: list | None = None
    log: dict = attrs.Factory(dict)
    """offset → Logged"""
    times: dict = attrs.Factory(dict)
    """offset → time, as it was read first"""
    state: dict = attrs.Factory(dict)
    """key → (offset, row)"""
    doubt: list = attrs.Factory(list)
    """What was submitted without an answer: lists of Logged."""
    kept_end: int = 0
    """Everything known below it must survive."""
    exposed: int = 0
    """The end of all offsets that ever left the engine."""
    start: int = 0
    files_start: int = 0
    sent: dict = attrs.Factory(dict)
    """producer → (sequence, the call, its ack) of what it sent last"""

    @property
    def short(self):
        """The name that SQL uses."""
        return self.name.rsplit("/", 1)[1]

    @property
    def first(self):
        """The first offset that SQL sees."""
        return max(self.start, self.files_start)

    @property
    def keyed(self):
        return bool(self.key)

    @property
    def others(self):
        """The columns that are not of the key."""
        return [column for column in self.columns if column.number not in self.key]

    def key_of(self, row):
        return tuple([row[number] for number in self.key])

    def shown(self, row):
        """A row by the current names."""
        if row is None:
            return None
        return {column.name: row.get(column.number) for column in self.columns}

    def logged_row(self, change):
        """What a reader of the log sees of a change's row."""
        if change.values is None:
            values = dict(zip(self.key, change.key, strict=True))
            return self.shown(values)
        return self.shown(change.values)

    # -- what a call must write ------------------------------------------------------------------

    def expected(self, asks):
        """The changes that a call of these asks writes, or the error that it must raise."""
        state = {key: row for key, (_, row) in self.state.items()}
        written = []
        for ask in asks:
            fresh = self._resolved(ask, state)
            if isinstance(fresh, type):
                return fresh
            for change in fresh:
                state[change.key] = change.folded(state.get(change.key))
            written += fresh
        return written

    def _resolved(self, ask, state):
        if not self.keyed:
            return [Logged("append", (), ask.columns)]
        old = state.get(ask.key)
        strict = self.policy == "error"
        if ask.op in {"insert", "upsert"}:
            if strict and ask.op == "insert" and old is not None:
                return Conflict
            return [Logged(ask.op, ask.key, ask.columns)]
        if strict and old is None:
            return NotFound
        if ask.op == "delete":
            return [Logged("delete", ask.key, None)]
        if ask.op == "move":
            return self._moved(ask, old, state)
        named = {**dict(zip(self.key, ask.key, strict=True)), **ask.columns}
        if old is not None:
            return [Logged("update", ask.key, {**old, **named})]
        if self.policy == "insert":
            return [Logged("insert", ask.key, named)]
        return [Logged("update", ask.key, named, frozenset(named))]

    def _moved(self, ask, old, state):
        gone = Logged("delete", ask.key, None)
        if old is None and self.policy == "ignore":
            return [gone, gone]
        if self.policy == "error" and state.get(ask.key_new) is not None:
            return Conflict
        row = {**(old or {}), **ask.columns, **dict(zip(self.key, ask.key_new, strict=True))}
        return [gone, Logged("insert", ask.key_new, row)]

    # -- what happened ---------------------------------------------------------------------------

    def take(self, offset, changes):
        """Take changes into the log from an offset on, and fold them."""
        for change in changes:
            self.log[offset] = change
            self._fold_one(offset, change)
            offset += 1
        self.exposed = max(self.exposed, offset)

    def replace(self, log):
        """Take another log for the true one and fold it anew."""
        self.log = log
        self.state = {}
        for offset in sorted(log):
            self._fold_one(offset, log[offset])

    def _fold_one(self, offset, change):
        if not self.keyed:
            return
        before = self.state.get(change.key)
        after = change.folded(None if before is None else before[1])
        if after is None:
            self.state.pop(change.key, None)
        else:
            self.state[change.key] = (offset, after)

    def expire(self, start):
        """Forget what is below an offset."""
        self.start = start
        for offset in [offset for offset in self.log if offset < start]:
            del self.log[offset]

    def rows_at(self, end) -> dict[int, Any]:
        """The rows that a query sees as of an offset: offset → row by name."""
        if not self.keyed:
            return {at: self.shown(one.values) for at, one in self.log.items() if at < end}
        state = {}
        for offset in sorted(self.log):
            if offset >= end:
                break
            change = self.log[offset]
            before = state.get(change.key)
            after = change.folded(None if before is None else before[1])
            if after is not None:
                state[change.key] = (offset, after)
            else:
                state.pop(change.key, None)
        return {offset: self.shown(row) for offset, row in state.values()}

    def feed(self):
        """The change feed: (offset, op, before, after) of each change."""
        state = {}
        for offset in sorted(self.log):
            change = self.log[offset]
            before = state.get(change.key)
            after = change.folded(before)
            state[change.key] = after
            yield offset, change.op, self.shown(before), self.shown(after)
