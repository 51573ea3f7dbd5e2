"""Authentication and authorisation: tokens, API keys, roles, rates, TLS, and the guard of calls."""

from __future__ import annotations

from frazil.serve.auth.credentials import new_key
from frazil.serve.auth.files import load_certificate, server_context
from frazil.serve.auth.guard import (
    Caller,
    Credentials,
    Guard,
    Refusal,
    announce_exposure,
    load_credentials,
    load_guard,
)
from frazil.serve.auth.roles import (
    ANONYMOUS,
    ANYTHING,
    CLUSTER,
    Action,
    Need,
    Principal,
    Resource,
    topic_resource,
)

__all__ = [
    "ANONYMOUS",
    "ANYTHING",
    "CLUSTER",
    "Action",
    "Caller",
    "Credentials",
    "Guard",
    "Need",
    "Principal",
    "Refusal",
    "Resource",
    "announce_exposure",
    "load_certificate",
    "load_credentials",
    "load_guard",
    "new_key",
    "server_context",
    "topic_resource",
]
