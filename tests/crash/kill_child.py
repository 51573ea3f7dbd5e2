"""A server that forks publishers to be killed: it has imported everything and opened nothing.

Commands on stdin: `start` forks a child and prints its pid; `reap PID` prints how it ended; `quit`.
A child opens the engine and publishes from threads and tasks until it is killed. Each ack is
written to a file after the call returned: what the page cache holds survives the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import traceback
from pathlib import Path

from frazil.config import Settings
from frazil.config.sections import LogSettings
from frazil.engine import AsyncEngine, open_engine

TOPICS = {
    "/kill/commit": ("message", "commit"),
    "/kill/table": ("table", "commit"),
    "/kill/periodic": ("message", "periodic"),
    "/kill/second": ("message", "commit"),
    "/kill/idempotent": ("message", "commit"),
}
COLUMNS = {"who": "string", "number": "long"}
TASKS = 6


def settings_for(directory):
    """Return settings with small segments, so that a run rotates, seals and recovers often."""
    log = LogSettings(
        segment_bytes_max=256 << 10,
        write_bytes_max=64 << 10,
        ballast_bytes=0,
        free_bytes_min=0,
        free_ratio_min=0.0,
    )
    return Settings(data_dir=str(Path(directory) / "data")).model_copy(update={"log": log})


class Publisher:
    """One child's work: every value is unique, and every ack is written down."""

    def __init__(self, directory):
        self.directory = Path(directory)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self.acks = os.open(self.directory / "acks", flags, 0o600)
        self.life = os.getpid()

    def run(self):
        """Open, then publish until the end comes."""
        with open_engine(settings_for(self.directory)) as engine:
            for name, (kind, sync) in TOPICS.items():
                columns = COLUMNS if kind == "table" else None
                engine.create_topic(name, columns, sync=sync, exist_ok=True)
            works = [
                (self.publish, "/kill/commit"),
                (self.publish, "/kill/second"),
                (self.publish, "/kill/table"),
                (self.publish_once, "p1"),
                (self.publish_once, "p2"),
            ]
            for work, name in works:
                threading.Thread(target=guarded, args=(self, work, engine, name)).start()
            guarded(self, lambda one: asyncio.run(self.publish_tasks(one)), engine)

    def note(self, topic, producer, number, ack):
        """Write an ack down where the checker reads it."""
        os.write(self.acks, f"{topic} {producer} {number} {ack.offset}\n".encode())

    def publish(self, engine, name):
        """Publish one record after the other to a topic."""
        topic = engine.topic(name)
        producer = f"{self.life}-{threading.get_ident()}"
        number = 0
        while True:
            if name == "/kill/table":
                ack = topic.append(who=producer, number=number)
            else:
                ack = topic.append(f"{producer} {number}".encode())
            self.note(name, producer, number, ack)
            number += 1

    def publish_once(self, engine, producer):
        """Publish as an idempotent producer that begins with its last, perhaps unanswered batch."""
        topic = engine.topic("/kill/idempotent")
        path = self.directory / f"sequence-{producer}"
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        number = int(os.pread(file, 20, 0) or b"0")
        while True:
            os.pwrite(file, b"%020d" % number, 0)
            payload = f"{producer} {number}".encode()
            ack = topic.append(payload, producer=producer, sequence=number)
            self.note("/kill/idempotent", producer, number, ack)
            number += 1

    async def publish_tasks(self, engine):
        """Publish to the periodic topic and to the shared one from many tasks of one loop."""
        wrapped = AsyncEngine(engine)

        async def publish(name, task):
            topic = wrapped.topic(name)
            producer = f"{self.life}-task{task}"
            number = 0
            while True:
                ack = await topic.append(f"{producer} {number}".encode())
                self.note(name, producer, number, ack)
                number += 1

        names = ("/kill/periodic", "/kill/commit")
        await asyncio.gather(*(publish(names[each % 2], each) for each in range(TASKS)))


def guarded(publisher, work, *arguments):
    """Run one thread's work; an error is written down and ends the child."""
    try:
        work(*arguments)
    except BaseException:  # noqa: BLE001 - the top of a process that ends here
        (publisher.directory / "child-error").write_text(traceback.format_exc())
        os._exit(1)


def child(directory):
    """Be one child; never returns."""
    with contextlib.suppress(BaseException):
        publisher = Publisher(directory)
        guarded(publisher, publisher.run)
    os._exit(2)


def main():
    """Serve forks until stdin ends."""
    directory = sys.argv[1]
    print("ready", flush=True)
    for line in sys.stdin:
        verb, *rest = line.split()
        if verb == "start":
            pid = os.fork()
            if pid == 0:
                child(directory)
            print(pid, flush=True)
        elif verb == "reap":
            _pid, status = os.waitpid(int(rest[0]), 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
        else:
            return


if __name__ == "__main__":
    main()
