"""Frazil: an Iceberg-native streaming log.

`open` gives an embedded engine, `open_async` the same for asyncio; see the README.

Names are imported when they are first used: the lake's children load this package too, and need
no engine.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

from frazil import errors
from frazil.errors import FrazilError

if TYPE_CHECKING:
    from frazil.config import Settings
    from frazil.engine import AsyncEngine, Delivery, Engine, Topic, open_async
    from frazil.engine import open_engine as open  # noqa: A004 - `frazil.open(path)` is the API
    from frazil.log.history import Batch
    from frazil.model import Ack
    from frazil.schema.messages import Message
    from frazil.subscribe import FailurePolicy

__version__ = "0.1.0"

__all__ = [
    "Ack",
    "AsyncEngine",
    "Batch",
    "Delivery",
    "Engine",
    "FailurePolicy",
    "FrazilError",
    "Message",
    "Settings",
    "Topic",
    "__version__",
    "errors",
    "open",
    "open_async",
]

_PLACES: Final = {
    "Ack": "frazil.model",
    "AsyncEngine": "frazil.engine",
    "Batch": "frazil.log.history",
    "Delivery": "frazil.engine",
    "Engine": "frazil.engine",
    "FailurePolicy": "frazil.subscribe",
    "Message": "frazil.schema.messages",
    "Settings": "frazil.config",
    "Topic": "frazil.engine",
    "open": "frazil.engine",
    "open_async": "frazil.engine",
}


if not TYPE_CHECKING:  # Checkers see the imports above, and no other names.

    def __getattr__(name: str) -> object:
        place = _PLACES.get(name)
        if place is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(place), "open_engine" if name == "open" else name)
        # Found at once from now on.
        globals()[name] = found
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
