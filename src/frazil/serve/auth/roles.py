"""Authorisation: principals, their roles, the grants of a role, and one check.

An action needs a grant. A grant names actions and the resources on which they are allowed. `admin`
implies neither `produce` nor `consume`: an operator need not read the topics.
"""

from __future__ import annotations

import enum
import fnmatch
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, Literal, NamedTuple

import attrs

__all__ = [
    "ANONYMOUS",
    "ANYTHING",
    "CLUSTER",
    "Action",
    "Grant",
    "Need",
    "Principal",
    "Resource",
    "ResourceKind",
    "Roles",
    "topic_resource",
]

DECIDED_MAX: Final = 4096
_PART: Final = re.compile(r"(.+)-part-(?:0|[1-9][0-9]{0,8})\Z")


class Action(enum.StrEnum):
    """The actions that a grant can allow."""

    PRODUCE = "produce"
    CONSUME = "consume"
    ADMIN = "admin"


class Principal(NamedTuple):
    """A caller, as the token or key names it."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS: Final = Principal("anonymous", "anonymous")
"""The principal of every call while authentication is off."""


ResourceKind = Literal["topic", "namespace", "subject", "cluster", "anything"]


class Resource(NamedTuple):
    """The resource of an action; a topic has both names, other kinds only those they need."""

    kind: ResourceKind
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        if self.kind == "topic":
            return f"topic /{self.namespace}/{self.name}"
        return f"{self.kind} {self.namespace or self.name}".rstrip()


CLUSTER: Final = Resource("cluster")
ANYTHING: Final = Resource("anything")
"""Allowed to a principal that has the action anywhere."""


class Need(NamedTuple):
    """An action on a resource that a request needs; no action is any of them."""

    action: Action | None
    resource: Resource


def topic_resource(topic: str) -> Resource:
    """Return the topic with this full name, which is as the engine has it."""
    _, namespace, name = topic.split("/")
    return Resource("topic", namespace, name)


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(fnmatch.translate(pattern))


def _fits(patterns: tuple[str, ...], name: str) -> bool:
    return any(_compiled(pattern).match(name) is not None for pattern in patterns)


@attrs.frozen
class Grant:
    """Actions, and where they are allowed.

    Patterns are names with `*` and `?`.
    """

    actions: frozenset[Action]
    namespace: str
    topics: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()

    def covers(self, resource: Resource) -> bool:
        """Tell whether the actions are allowed on `resource`."""
        kind = resource.kind
        if kind == "anything":
            return True
        if kind == "subject":
            return _fits(self.subjects, resource.name)
        if kind == "cluster":
            return self.namespace == "*" and "*" in self.topics
        if not _fits((self.namespace,), resource.namespace):
            return False
        if kind == "namespace":
            return "*" in self.topics
        # A grant for a topic is one for its parts.
        whole = _PART.sub(r"\1", resource.name)
        return _fits(self.topics, resource.name) or _fits(self.topics, whole)


class Roles:
    """The grants of every principal that has any. Decisions are cached, up to a bound.

    Principals without a grant are not cached: any token could fill the cache.
    """

    def __init__(self, grants: Mapping[Principal, tuple[Grant, ...]] | None = None) -> None:
        self.grants: Final = dict(grants or {})
        self._decided: dict[tuple[Principal, Action | None, Resource], bool] = {}

    def authorize(self, principal: Principal, action: Action | None, resource: Resource) -> bool:
        """Tell whether a grant allows the action on the resource; no action is any of them."""
        question = (principal, action, resource)
        decided = self._decided.get(question)
        if decided is not None:
            return decided
        grants = self.grants.get(principal)
        if not grants:
            return False
        if len(self._decided) >= DECIDED_MAX:
            self._decided.clear()
        found = any(
            (action is None or action in grant.actions) and grant.covers(resource)
            for grant in grants
        )
        self._decided[question] = found
        return found
