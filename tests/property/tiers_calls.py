"""The publishes of a life: random changes in every form that the API takes."""

from __future__ import annotations

import json

import pyarrow as pa

from tests.crash.checker import require
from tests.property.tiers_model import Ask

WORDS = ("", "a", "b", "zebra", "Ärger", "a" * 70)
VERBS = (
    *("upsert", "insert", "update", "update", "update", "delete", "move"),
    *("bulk", "bulk", "debezium", "arrow", "many", "produce"),
)


class Calls:
    """Publishes to the topics of a world; `random` is the step's."""

    def __init__(self, world):
        self.world = world
        self.random = None
        self.ack = None
        self.producers = 0

    def publish(self, model, random):
        """Make one call to a topic."""
        self.random = random
        self.ack = random.choice((None, None, None, "received", "fsynced"))
        verb = random.choice(VERBS) if model.keyed else "append"
        getattr(self, f"_{verb}")(model, self.world.topic(model))

    def _call(self, model, asks, call):
        return self.world.publish(model, asks, call, ack=self.ack)

    # -- values ----------------------------------------------------------------------------------

    def _value(self, kind):
        random = self.random
        if random.random() < 0.15:
            return None
        if kind == "string":
            return random.choice(WORDS)
        number = random.randint(-3, 40)
        return number / 2 if kind in {"float", "double"} else number

    def _key(self, model):
        """A key: few of them, so that most calls meet a row."""
        kinds = {column.number: column.type for column in model.columns}
        number = self.random.choice((0, 1, 2, 3, 4, 5, 6, self.random.randint(7, 30)))
        parts = []
        for column in model.key:
            if kinds[column] == "string":
                parts.append(f"k{number}" if len(model.key) == 1 else "xyz"[number % 3])
            else:
                parts.append(number)
        return tuple(parts)

    def _row(self, model, key=()):
        row = dict(zip(model.key, key, strict=True))
        return {**row, **{each.number: self._value(each.type) for each in model.others}}

    def _whole(self, model, op):
        key = self._key(model)
        return Ask(op, key, self._row(model, key))

    def _partial(self, model, *, least=1):
        others = model.others
        chosen = self.random.sample(others, self.random.randint(least, len(others)))
        columns = {column.number: self._value(column.type) for column in chosen}
        return Ask("update", self._key(model), columns)

    def _names(self, model, columns):
        return {c.name: columns[c.number] for c in model.columns if c.number in columns}

    def _key_names(self, model):
        names = {column.number: column.name for column in model.columns}
        return [names[number] for number in model.key]

    # -- calls of one change ---------------------------------------------------------------------

    def _append(self, model, topic):
        count = self.random.choice((1, 1, 4, 9))
        asks = [Ask("append", (), self._row(model)) for _ in range(count)]
        records = [model.shown(ask.columns) for ask in asks]
        ack = self.ack
        if count == 1:
            self._call(model, asks, lambda: topic.append(records[0], ack=ack))
        elif self.random.random() < 0.5:
            self._call(model, asks, lambda: topic.append_many(records, ack=ack))
        else:
            table = pa.Table.from_pylist(records, schema=topic.schema)
            self._call(model, asks, lambda: topic.append_arrow(table, ack=ack))

    def _upsert(self, model, topic):
        ask = self._whole(model, "upsert")
        verb = self.random.choice((topic.upsert, topic.append))
        self._call(model, [ask], lambda: verb(model.shown(ask.columns), ack=self.ack))

    def _insert(self, model, topic):
        ask = self._whole(model, "insert")
        self._call(model, [ask], lambda: topic.insert(model.shown(ask.columns), ack=self.ack))

    def _update(self, model, topic):
        ask = self._partial(model)
        named = self._names(model, ask.columns)
        names, ack = self._key_names(model), self.ack
        row = {**dict(zip(names, ask.key, strict=True)), **named}
        forms = [
            lambda: topic.update(given(ask.key), named, ack=ack),
            lambda: topic.update(row, ack=ack),
        ]
        if len(names) == 1:
            forms.append(lambda: topic.update(names[0], ask.key[0], named, ack=ack))
        self._call(model, [ask], self.random.choice(forms))

    def _delete(self, model, topic):
        key, names, ack = self._key(model), self._key_names(model), self.ack
        forms = [
            lambda: topic.delete(given(key), ack=ack),
            lambda: topic.delete(ack=ack, **dict(zip(names, key, strict=True))),
        ]
        if len(key) == 1:
            forms.append(lambda: topic.delete(names[0], key[0], ack=ack))
        self._call(model, [Ask("delete", key, {})], self.random.choice(forms))

    def _move(self, model, topic):
        """Change a row's key; naming the key it has is a plain update."""
        ask = self._partial(model)
        fresh = self._key(model)
        named = self._names(model, ask.columns)
        named |= dict(zip(self._key_names(model), fresh, strict=True))
        if fresh != ask.key:
            ask = ask._replace(op="move", key_new=fresh)
        self._call(model, [ask], lambda: topic.update(given(ask.key), named, ack=self.ack))

    def _produce(self, model, topic):
        """An idempotent producer updates a row, or repeats what it sent last."""
        last = model.sent.get("p")
        if last is not None and self.random.random() < 0.6:
            sequence, send, ack, key = last
            if model.policy == "error" and key not in model.state:
                return
            self.world.note(f"{model.short}: repeat {sequence}")
            again = send()
            require(again == ack, "a repeat has another ack", first=ack, again=again)
            return
        self.ack = None
        ask = self._partial(model)
        named = self._names(model, ask.columns)
        sequence = 0 if last is None else last[0] + 1
        if last is None:
            self.producers += 1
        producer = f"p{self.producers}"

        def send():
            topic = self.world.topic(model)
            return topic.update(given(ask.key), named, producer=producer, sequence=sequence)

        answer = self._call(model, [ask], send)
        if answer is not None:
            model.sent["p"] = (sequence, send, answer, ask.key)

    # -- calls of many changes -------------------------------------------------------------------

    def _many(self, model, topic):
        asks = [self._whole(model, "upsert") for _ in range(self.random.choice((2, 5, 12)))]
        records = [model.shown(ask.columns) for ask in asks]
        self._call(model, asks, lambda: topic.append_many(records, ack=self.ack))

    def _arrow(self, model, topic):
        asks = [self._whole(model, "upsert") for _ in range(self.random.choice((1, 5, 12)))]
        records = [model.shown(ask.columns) for ask in asks]
        table = pa.Table.from_pylist(records, schema=topic.schema)
        self._call(model, asks, lambda: topic.append_arrow(table, ack=self.ack))

    def _bulk(self, model, topic):
        """Arrow with an operation column; it may lack columns, which updates then leave alone."""
        random = self.random
        others = random.sample(model.others, random.randint(1, len(model.others)))
        ops = ("upsert", "insert", "delete", "update")[: random.choice((3, 4))]
        asks, rows = [], []
        for _ in range(random.choice((1, 3, 8, 14))):
            op, key = random.choice(ops), self._key(model)
            columns = {column.number: self._value(column.type) for column in others}
            row = self._names(model, {**dict(zip(model.key, key, strict=True)), **columns})
            rows.append({**row, "_op": op})
            if op in {"insert", "upsert"}:
                columns |= dict(zip(model.key, key, strict=True))
            asks.append(Ask(op, key, columns if op != "delete" else {}))
        schema = topic.schema
        fields = [
            schema.field(name).with_nullable(True) for name in schema.names if name in rows[0]
        ]
        table = pa.Table.from_pylist(rows, pa.schema([*fields, pa.field("_op", pa.string())]))
        self._call(model, asks, lambda: topic.append_changes(table, ack=self.ack))

    def _debezium(self, model, topic):
        """Envelopes as a connector sends them, parsed or as JSON, with tombstones."""
        asks, events = [], []
        for _ in range(self.random.choice((1, 2, 6))):
            fresh, event = self._envelope(model)
            asks += fresh
            events.append(event if self.random.random() < 0.5 else json.dumps(event))
            if event["op"] == "d" and self.random.random() < 0.5:
                events.append(None)
        self._call(model, asks, lambda: topic.append_changes(events, ack=self.ack))

    def _envelope(self, model):
        op, key = self.random.choice("ccruudd"), self._key(model)
        names = self._key_names(model)
        before = dict(zip(names, key, strict=True))
        if op in "cr":
            row = self._row(model, key)
            verb = "insert" if op == "c" else "upsert"
            event = {"op": op, "before": None, "after": model.shown(row)}
            return [Ask(verb, key, row)], event
        if op == "d":
            return [Ask("delete", key, {})], {"op": op, "before": before, "after": None}
        fresh = self._key(model) if self.random.random() < 0.2 else key
        ask = self._partial(model)._replace(key=key)
        if fresh != key:
            ask = ask._replace(op="move", key_new=fresh)
        after = {**dict(zip(names, fresh, strict=True)), **self._names(model, ask.columns)}
        return [ask], {"op": op, "before": before, "after": after}


def given(key):
    """A key as callers give it."""
    return key if len(key) > 1 else key[0]
