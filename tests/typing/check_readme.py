"""The README's example as it stands there; checked by mypy, never run."""

from __future__ import annotations

# fmt: off
import frazil

with frazil.open("./data") as db:
    events = db.create_topic("events", exist_ok=True)                    # a topic of messages
    ack = events.append(b"hello", key="k1", attributes={"from": "me"})   # on disk when it returns
    users = db.create_topic("users", {"id": "long", "name": "string"}, primary_key="id", exist_ok=True)
    users.upsert(id=1, name="Ada")                                       # insert, update, upsert, delete by key
    users.update(1, {"name": "Ada L."})
    print(users.get(1), db.query("SELECT count(*) FROM users").rows())   # SQL sees every acked record
    for batch in events.read(ack.offset):                                # Arrow batches from an offset or a time
        print(batch.to_arrow().to_pylist())
