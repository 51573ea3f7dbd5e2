"""Events of Frazil, as a name and facts, through the standard `logging`.

The library only emits; the owner of the process decides where events go. The command line calls
`configure`. Nothing is emitted per record, and no payload or secret is ever a fact.
"""

from __future__ import annotations

import json
import logging
import re
from typing import Any, Final, TextIO

LOGGER: Final = logging.getLogger("frazil")
LOGGER.addHandler(logging.NullHandler())
FACT_CHARACTERS_MAX: Final = 256
_APART: Final = re.compile(r'[\s="]')


def event(name: str, *, level: int = logging.INFO, **facts: object) -> None:
    """Emit an event, e.g. `event("segment_sealed", segment=3, bytes=4096)`."""
    if LOGGER.isEnabledFor(level):
        LOGGER.log(level, name, extra={"facts": facts})


def warn(name: str, **facts: object) -> None:
    """Emit an event as a warning: it needs an operator's attention."""
    event(name, level=logging.WARNING, **facts)


def _clean(value: object) -> object:
    """Return a fact without line breaks and of bounded length."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    text = str(value)
    if not text.isprintable():
        text = ascii(text)[1:-1]
    return text[:FACT_CHARACTERS_MAX]


def _quoted(value: object) -> str:
    """Return a fact quoted if it contains a separator, so that it cannot pass as several facts."""
    text = str(_clean(value))
    return json.dumps(text, ensure_ascii=False) if _APART.search(text) or not text else text


class TextFormatter(logging.Formatter):
    """`2026-11-15 12:00:00,000 INFO segment_sealed segment=3 note="two words"`."""

    def format(self, record: logging.LogRecord) -> str:
        facts: dict[str, Any] = getattr(record, "facts", {})
        tail = "".join(f" {key}={_quoted(value)}" for key, value in facts.items())
        return f"{self.formatTime(record)} {record.levelname} {_clean(record.getMessage())}{tail}"


class JsonFormatter(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        facts: dict[str, Any] = getattr(record, "facts", {})
        line = {
            "time": self.formatTime(record),
            "level": record.levelname.lower(),
            "event": _clean(record.getMessage()),
            **{key: _clean(value) for key, value in facts.items()},
        }
        return json.dumps(line)


def configure(stream: TextIO, *, log_level: str, log_format: str) -> None:
    """Send events to `stream` as `telemetry.*` says; a second call replaces the first."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    LOGGER.handlers[:] = [handler]
    LOGGER.setLevel(log_level.upper())
    LOGGER.propagate = False
