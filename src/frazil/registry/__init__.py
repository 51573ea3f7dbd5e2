"""The schema registry: schemas of topics' payloads, and the rules of their evolution.

`definitions` and `compatibility` import the schema libraries, and only the worker process imports
these two; the worker must not import the rest, so names are imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from frazil.lazy import lazy_names

if TYPE_CHECKING:
    from frazil.registry.checks import Judged, SchemaChecks
    from frazil.registry.entries import Change, TopicEntry, parse_key
    from frazil.registry.kinds import CompatibilityMode, SchemaType, check_subject
    from frazil.registry.registry import (
        IncompatibleSchema,
        NewSchema,
        Planned,
        Registered,
        Registry,
        Schema,
    )
    from frazil.registry.store import SchemaStore

__all__ = [
    "Change",
    "CompatibilityMode",
    "IncompatibleSchema",
    "Judged",
    "NewSchema",
    "Planned",
    "Registered",
    "Registry",
    "Schema",
    "SchemaChecks",
    "SchemaStore",
    "SchemaType",
    "TopicEntry",
    "check_subject",
    "parse_key",
]

_MODULES = {
    "frazil.registry.checks": ("Judged", "SchemaChecks"),
    "frazil.registry.entries": ("Change", "TopicEntry", "parse_key"),
    "frazil.registry.kinds": ("CompatibilityMode", "SchemaType", "check_subject"),
    "frazil.registry.registry": (
        "IncompatibleSchema",
        "NewSchema",
        "Planned",
        "Registered",
        "Registry",
        "Schema",
    ),
    "frazil.registry.store": ("SchemaStore",),
}

if not TYPE_CHECKING:  # Checkers see the imports above, and no other names.
    __getattr__ = lazy_names(__name__, _MODULES)
