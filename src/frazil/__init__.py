"""Frazil: an Iceberg-native streaming log.

`open` gives an embedded engine, `open_async` the same for asyncio; see the README.
"""

from __future__ import annotations

from frazil import errors
from frazil.config import Settings
from frazil.engine import AsyncEngine, Engine, Topic, open_async
from frazil.engine import open_engine as open  # noqa: A004 - `frazil.open(path)` is the API
from frazil.errors import FrazilError
from frazil.ingest.messages import Message
from frazil.log.history import Batch
from frazil.model import Ack

__version__ = "0.1.0"

__all__ = [
    "Ack",
    "AsyncEngine",
    "Batch",
    "Engine",
    "FrazilError",
    "Message",
    "Settings",
    "Topic",
    "__version__",
    "errors",
    "open",
    "open_async",
]
