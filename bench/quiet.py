"""Wait until an engine has done what it does in the background, so that a measure sees a rest."""

from __future__ import annotations

import gc
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import frazil


WAIT_S_MAX = 600.0


def wait_until_quiet(engine: frazil.Engine, *, rest_s: float = 1.5) -> None:
    """Return when nothing has been decoded, folded, merged, written or joined for a while."""
    deadline = time.monotonic() + WAIT_S_MAX
    seen: object = None
    since = time.monotonic()
    while time.monotonic() < deadline:
        found = _state(engine)
        if found != seen or engine.tiers.disk.writing:
            seen, since = found, time.monotonic()
        elif time.monotonic() - since > rest_s:
            return
        time.sleep(0.1)
    raise SystemExit("the engine does not come to rest")


def _state(engine: frazil.Engine) -> tuple[object, ...]:
    return tuple(
        (
            topic.id,
            len(topic.memory.tail),
            len(topic.memory.chunks),
            topic.flushed,
            None if topic.keyed is None else topic.keyed.folded_to,
            tuple(file.name for file in topic.disk.files(topic.id)),
        )
        for topic in engine.tiers.topics
    )


def freeze() -> None:
    """Take what exists out of the garbage collector's rounds, as a program with a p99 would."""
    gc.collect()
    gc.freeze()
