"""Frazil: an Iceberg-native streaming log.

`open` gives an embedded engine, `open_async` the same for asyncio; see the README.

Names are imported on first use: the lake's child processes load this package too, and need no
engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from frazil import errors
from frazil.errors import FrazilError
from frazil.lazy import lazy_names

if TYPE_CHECKING:
    from frazil.config import Settings
    from frazil.engine import AsyncEngine, Delivery, Engine, Topic, open_async
    from frazil.engine import open_engine as open  # noqa: A004 - `frazil.open(path)` is the API
    from frazil.log import Batch
    from frazil.model import Ack
    from frazil.schema import Message
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

_MODULES = {
    "frazil.engine": ("AsyncEngine", "Delivery", "Engine", "Topic", "open_async", "open_engine"),
    "frazil.config": ("Settings",),
    "frazil.log": ("Batch",),
    "frazil.model": ("Ack",),
    "frazil.schema": ("Message",),
    "frazil.subscribe": ("FailurePolicy",),
}

if not TYPE_CHECKING:  # Checkers see the imports above, and no other names.
    _get = lazy_names(__name__, _MODULES)

    def __getattr__(name: str) -> object:
        return _get("open_engine" if name == "open" else name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
