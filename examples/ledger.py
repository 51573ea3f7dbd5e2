"""Publish with a ledger on the side, die at any moment, and prove that no acked record is lost.

    python examples/ledger.py ./data              # publish until Ctrl-C or kill -9
    python examples/ledger.py ./data              # verify what the first run acked, then go on
    python examples/ledger.py ./data --seconds 0  # only verify

Four writers publish numbered records and wait for each ack; a fifth changes rows by key. The ledger,
a file outside the log, gets the end of each topic after its records were acked. The next run reads
both topics and compares.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
import zlib

import frazil

WRITERS = 4
KEYS = 100


def checked(text: str) -> bytes:
    return b"%08x %b" % (zlib.crc32(text.encode()), text.encode())


def opened(line: bytes) -> str | None:
    """Return the text of a checked line; None if it is damaged or cut short."""
    crc, _, text = line.partition(b" ")
    return text.decode() if crc == b"%08x" % zlib.crc32(text) else None


class Ledger:
    """A file of lines `<crc> <topic> <end>`; the last whole line of a topic counts."""

    def __init__(self, path: str) -> None:
        self.ends: dict[str, int] = {}
        if os.path.exists(path):
            with open(path, "rb") as file:
                for line in file.read().split(b"\n"):
                    text = opened(line)
                    if text is not None:
                        topic, end = text.split()
                        self.ends[topic] = int(end)
        self._file = open(path, "ab")  # noqa: SIM115 - open as long as the program runs
        self._lock = threading.Lock()

    def note(self, topic: str, end: int) -> None:
        with self._lock:
            if end > self.ends.get(topic, 0):
                self.ends[topic] = end
                self._file.write(checked(f"{topic} {end}") + b"\n")
                self._file.flush()
                os.fsync(self._file.fileno())


def verify_messages(topic, end: int) -> tuple[int, dict[int, int], list[str]]:
    """Read every record; return their count, each writer's last number, and what is wrong."""
    last: dict[int, int] = {}
    problems: list[str] = []
    offset_next = 0
    for batch in topic.read(0):
        for payload in batch.to_arrow().column("payload").to_pylist():
            text = opened(payload)
            if text is None:
                problems.append(f"offset {offset_next}: the payload is damaged")
            else:
                writer, number = map(int, text.split())
                if number != last.get(writer, -1) + 1:
                    problems.append(f"offset {offset_next}: writer {writer} has number {number}")
                last[writer] = number
            offset_next += 1
    if offset_next < end:
        problems.append(f"{topic.name}: acked up to {end - 1}, the topic ends at {offset_next}")
    return offset_next, last, problems


def change_of(number: int) -> tuple[str, int, int]:
    """Return operation, key and amount of one change."""
    key = number * 7919 % KEYS
    return ("delete" if number % 11 == 0 else "upsert"), key, number


def verify_rows(topic, end: int) -> tuple[int, list[str]]:
    """Compare the rows with those that the changes make; return the next change's number."""
    count = topic.stats()["head"]
    problems = [] if count >= end else [f"{topic.name}: acked {end} changes, it has {count}"]
    expected: dict[int, int] = {}
    for number in range(count):
        op, key, amount = change_of(number)
        if op == "upsert":
            expected[key] = amount
        else:
            expected.pop(key, None)
    for key in range(KEYS):
        row = topic.get(key)
        found = None if row is None else row["amount"]
        if found != expected.get(key):
            problems.append(f"key {key} has {found}, not {expected.get(key)}")
    return count, problems


def publish(messages, stock, ledger: Ledger, last: dict[int, int], change: int, seconds: float):
    stop = threading.Event()

    def write(writer: int) -> None:
        number = last.get(writer, -1) + 1
        while not stop.is_set():
            ack = messages.append(checked(f"{writer} {number}"))
            ledger.note(messages.name, ack.offset + 1)
            number += 1

    def alter() -> None:
        number = change
        while not stop.is_set():
            op, key, amount = change_of(number)
            ack = stock.delete(key) if op == "delete" else stock.upsert(id=key, amount=amount)
            number += 1
            ledger.note(stock.name, ack.offset + 1)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(WRITERS)]
    threads.append(threading.Thread(target=alter))
    for thread in threads:
        thread.start()
    begin = time.monotonic()
    try:
        while time.monotonic() - begin < seconds:
            time.sleep(0.5)
            print(f"acked: {dict(ledger.ends)}", flush=True)
    except KeyboardInterrupt:
        pass
    stop.set()
    for thread in threads:
        thread.join()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data")
    parser.add_argument("--seconds", type=float, default=float("inf"))
    arguments = parser.parse_args()
    with frazil.open(arguments.data, **{"log.ballast_bytes": 0}) as db:
        ledger = Ledger(os.path.join(arguments.data, "ledger.txt"))
        messages = db.create_topic("/ledger/messages", exist_ok=True)
        stock = db.create_topic(
            "/ledger/stock", {"id": "long", "amount": "long"}, primary_key="id", exist_ok=True
        )
        records, last, problems = verify_messages(messages, ledger.ends.get(messages.name, 0))
        changes, wrong = verify_rows(stock, ledger.ends.get(stock.name, 0))
        if problems + wrong:
            print("\n".join(problems + wrong), file=sys.stderr)
            return 8
        print(f"nothing lost: {records} records and {changes} changes verified", flush=True)
        if arguments.seconds:
            publish(messages, stock, ledger, last, changes, arguments.seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
