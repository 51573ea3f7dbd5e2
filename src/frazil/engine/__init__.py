"""The engine: journals, lanes, topics and metadata wired together, embedded in a program."""

from __future__ import annotations

from frazil.engine.asynchronous import AsyncEngine, open_async
from frazil.engine.engine import Engine, open_engine
from frazil.engine.topic import Topic
from frazil.subscribe.inbox import Delivery

__all__ = ["AsyncEngine", "Delivery", "Engine", "Topic", "open_async", "open_engine"]
