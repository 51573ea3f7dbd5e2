"""The schema registry: what payloads of a topic must look like, and how that may change."""

from __future__ import annotations

from frazil.registry.catalog import Schema
from frazil.registry.entries import Change
from frazil.registry.registry import (
    Compatibility,
    IncompatibleSchema,
    Planned,
    Registered,
    Registry,
    SubjectSummary,
    TopicSchema,
    VersionSummary,
)
from frazil.registry.verdicts import ACCEPTED, Verdict
from frazil.registry.work import Work

__all__ = [
    "ACCEPTED",
    "Change",
    "Compatibility",
    "IncompatibleSchema",
    "Planned",
    "Registered",
    "Registry",
    "Schema",
    "SubjectSummary",
    "TopicSchema",
    "Verdict",
    "VersionSummary",
    "Work",
]
