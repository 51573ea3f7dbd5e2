"""The schema registry: what payloads of a topic must look like, and how that may change."""

from __future__ import annotations

from frazil.registry.catalog import Schema
from frazil.registry.entries import Change, parse_key
from frazil.registry.json_compatibility import json_reasons
from frazil.registry.json_keywords import check_keywords
from frazil.registry.kinds import CompatibilityMode, SchemaType, check_subject
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
    "CompatibilityMode",
    "IncompatibleSchema",
    "Planned",
    "Registered",
    "Registry",
    "Schema",
    "SchemaType",
    "SubjectSummary",
    "TopicSchema",
    "Verdict",
    "VersionSummary",
    "Work",
    "check_keywords",
    "check_subject",
    "json_reasons",
    "parse_key",
]
