"""The README's example as it stands there; checked by mypy, never run."""

from __future__ import annotations

# fmt: off
import frazil

with frazil.open("./data") as db:
    events = db.create_topic("events", exist_ok=True)                  # messages: bytes and an envelope
    ack = events.append(b"hello", key="k1", attributes={"source": "readme"})
    users = db.create_topic("users", {"id": "long", "name": "string"}, primary_key="id", exist_ok=True)
    users.append(id=1, name="Ada")                                      # durable when it returns
    for batch in events.read(ack.offset):                               # Arrow batches, from an offset or a time
        print(batch.to_arrow().to_pylist())
