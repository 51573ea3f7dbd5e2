"""A process that opens what a killed publisher left and compares it with the acks it wrote down.

Commands on stdin: `check` reads what is new, `final` reads everything again; each answers with one
line of JSON: counts, or what is wrong. The checker remembers every offset it ever saw.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import frazil
from tests.crash.kill_child import TOPICS, settings_for


class Mismatch(Exception):
    """A promise was broken."""


class Checker:
    """What was acked and what was read, over all lives of the publisher."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self.position = 0
        self.acked = {name: {} for name in TOPICS}
        self.read = {name: {} for name in TOPICS}
        self.next = dict.fromkeys(TOPICS, 0)

    def load_acks(self):
        """Take the acks that were written since the last time; a torn last line waits."""
        path = self.directory / "acks"
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self.position)
            data = file.read()
        data = data[: data.rfind(b"\n") + 1]
        self.position += len(data)
        for line in data.decode().splitlines():
            topic, producer, number, offset = line.split()
            value = (producer, int(number))
            before = self.acked[topic].setdefault(int(offset), value)
            if before != value:
                raise Mismatch(f"{topic} acked offset {offset} for {before} and for {value}")

    def check(self, *, whole):
        """Open the engine, read, compare; return counts."""
        self.load_acks()
        with frazil.open(settings_for(self.directory)) as engine:
            present = set(engine.topics())
            for name in TOPICS:
                if name in present:
                    self.check_topic(engine, name, whole=whole)
                elif self.acked[name]:
                    raise Mismatch(f"{name} is gone")
            health = engine.stats()["health"]
        if health != "ok":
            raise Mismatch(f"health is {health}")
        return {
            "acked": sum(map(len, self.acked.values())),
            "read": sum(map(len, self.read.values())),
        }

    def check_topic(self, engine, name, *, whole):
        """Read a topic, all of it or what is new, and compare with what is known."""
        first = 0 if whole else self.next[name]
        known = self.read[name]
        seen = dict(self.scan(engine, name, first))
        for offset, value in seen.items():
            if known.setdefault(offset, value) != value:
                raise Mismatch(f"{name} offset {offset} was {known[offset]} and is {value}")
        self.next[name] = max(seen, default=self.next[name] - 1) + 1
        for offset, value in self.acked[name].items():
            if known.get(offset) != value:
                raise Mismatch(f"{name} lost {value} acked at {offset}, has {known.get(offset)}")
        if whole:
            missing = [offset for offset in known if offset not in seen]
            if missing:
                raise Mismatch(f"{name} no longer has {missing[:10]}")
            self.check_order(name)

    def scan(self, engine, name, first):
        """Read records from an offset on; no offset may be missing."""
        position = first
        table = TOPICS[name][0] == "table"
        for batch in engine.topic(name).read(first):
            if batch.offset != position or batch.gaps:
                raise Mismatch(f"{name} has a gap at {position}")
            position = batch.offset_next
            columns = batch.data.to_pydict()
            if table:
                values = zip(columns["who"], columns["number"], strict=True)
            else:
                values = (payload.decode().split() for payload in columns["payload"])
            for offset, (producer, number) in enumerate(values, batch.offset):
                yield offset, (producer, int(number))

    def check_order(self, name):
        """Each producer's numbers grow by one with the offsets: none doubled, skipped, swapped."""
        last = {}
        for offset, (producer, number) in sorted(self.read[name].items()):
            expected = last.get(producer, -1) + 1
            if number != expected:
                raise Mismatch(f"{name} {producer} {number} at {offset}, expected {expected}")
            last[producer] = number


def main():
    """Answer commands until stdin ends."""
    checker = Checker(sys.argv[1])
    print("ready", flush=True)
    for line in sys.stdin:
        try:
            answer = checker.check(whole=line.strip() == "final")
        except (Mismatch, frazil.FrazilError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
