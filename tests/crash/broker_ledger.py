"""What clients of the broker wrote down: a line an event, of many processes, on one clock.

An event is `[time, kind, *facts]`. Times are of the machine's monotonic clock in nanoseconds, which
all processes share. A line is written with one call before the client goes on: what the page cache
holds survives every process, and only processes are killed here.

| kind | facts | when |
|---|---|---|
| `sending` | producer, number | before each try of a publish, the client's own repeats included |
| `published` | producer, number | `send` returned |
| `unsure` | producer, number, why | `send` failed: the record may be there or not |
| `finished` | producer, count | the producer got the request to stop and its last answer |
| `subscribed` | subscription, type, consumer | `subscribe` returned |
| `opening` | subscription, stream | before a stream is asked for |
| `got` | subscription, stream, offset, record, key | a record came out of the stream |
| `acking`, `acked`, `unacked` | subscription, offset | before `ack`, when it returned, when it failed |
| `nacking` | subscription, offset | before `nack` |
| `recreated` | who, why | the client was of no use any more and got a successor |
| `replaced` | name | a process of clients was killed, and another takes its names |
| `started`, `ready`, `killed` | generation | the life of a broker |
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

SUFFIX = ".ledger"


class Ledger:
    """One process's part of the ledger."""

    def __init__(self, directory, name):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = os.open(Path(directory) / f"{name}{SUFFIX}", flags, 0o600)

    def note(self, kind, *facts):
        """Write an event down; it is there when this returns."""
        os.write(self._file, json.dumps([time.monotonic_ns(), kind, *facts]).encode() + b"\n")

    def close(self):
        """Write no more."""
        os.close(self._file)


class Follower:
    """Reads what is new in all ledgers of a directory."""

    def __init__(self, directory):
        self._directory = Path(directory)
        self._positions = {}

    def events(self):
        """Return the events since the last call; a torn last line waits."""
        found = []
        for path in sorted(self._directory.glob(f"*{SUFFIX}")):
            with path.open("rb") as file:
                file.seek(self._positions.get(path, 0))
                data = file.read()
            data = data[: data.rfind(b"\n") + 1]
            self._positions[path] = self._positions.get(path, 0) + len(data)
            found += [json.loads(line) for line in data.splitlines()]
        return sorted(found, key=lambda event: event[0])


def record_of(producer, number, size):
    """Return the payload of a producer's record: its name, then bytes that follow from it."""
    name = f"{producer} {number}"
    filling = (name.encode() + b"|") * (size // (len(name) + 1) + 1)
    return filling[: max(size, len(name) + 1)]


def is_refused(number):
    """Whether a consumer that refuses some records refuses this one, each time."""
    return number % 7 == 3


def name_of(payload):
    """Return producer and number of a payload; ValueError if not one bit of it is wrong."""
    name = bytes(payload).partition(b"|")[0].decode()
    producer, _, number = name.partition(" ")
    if bytes(payload) != record_of(producer, int(number), len(payload)):
        raise ValueError(f"the bytes of {name!r} are others")
    return producer, int(number)
