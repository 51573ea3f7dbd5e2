"""A process that publishes with `uploaded` acks and says each on stdout, until it is killed."""

from __future__ import annotations

import json
import sys

from frazil.clock import SystemClock
from frazil.config import load_settings
from frazil.engine import Engine
from frazil.fs import RealFileSystem


def main():
    """Publish to some topics in turn; the settings are the first argument, as JSON."""
    settings = load_settings(environment={}, overrides=json.loads(sys.argv[1]))
    engine = Engine(settings, file_system=RealFileSystem(), clock=SystemClock())
    names = ["a", "b", "c"]
    topics = [engine.create_topic(name, exist_ok=True) for name in names]
    number = 0
    while True:
        for name, topic in zip(names, topics, strict=True):
            text = f"{name}-{number}"
            ack = topic.append(
                payload=text.encode(), ack="uploaded", producer="child", sequence=number
            )
            sys.stdout.write(f"{name} {ack.offset} {text}\n")
            sys.stdout.flush()
        number += 1
        if number % 4 == 0:
            engine.objects.backup()


if __name__ == "__main__":
    main()
