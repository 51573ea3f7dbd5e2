"""The access file: roles, their principals and the hashes of API keys, in YAML.

    roles:
      orders-writer:
        - actions: [produce]
          namespace: default
          topics: ["orders", "orders-*"]
          subjects: ["orders*"]
    principals:
      service_account:orders-app: [orders-writer]
    keys:
      orders-app-1:
        sha256: 64 hex digits
        principal: service_account:orders-app
        expires: 2027-01-31T00:00:00Z

The whole file is checked: an unknown word, a role that does not exist or a pattern that could never
match is refused, because a misread grant is worse than none.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from datetime import UTC, datetime
from typing import Annotated, Any
from unicodedata import normalize

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainValidator,
    StringConstraints,
)
from pydantic import ValidationError as TreeError

from frazil.errors import InvalidRequest
from frazil.serve.auth.credentials import (
    DIGEST_PATTERN,
    KEY_ID_PATTERN,
    PRINCIPAL_KINDS,
    Keyring,
    StoredKey,
)
from frazil.serve.auth.roles import (
    Action,
    Grant,
    Principal,
    Roles,
)

__all__ = ["parse_access"]


def _principal(text: object) -> Principal:
    kind, _, name = str(text).partition(":")
    if kind not in PRINCIPAL_KINDS or not name:
        raise ValueError(f"a principal is kind:name, its kind one of {', '.join(PRINCIPAL_KINDS)}")
    return Principal(kind, name)


_Pattern = Annotated[
    # Names of topics are in this form, too.
    str,
    BeforeValidator(lambda text: normalize("NFC", text) if isinstance(text, str) else text),
    StringConstraints(pattern=r"^[\w*?-]+$", max_length=255),
]
# Unchanged: the names of subjects are not normalised either.
_SubjectPattern = Annotated[str, StringConstraints(pattern=r"^[\w./:+@*?-]+$", max_length=255)]
_Principal = Annotated[Principal, PlainValidator(_principal)]
_KeyId = Annotated[str, StringConstraints(pattern=f"^{KEY_ID_PATTERN}$")]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class _GrantText(_Part):
    actions: list[Action] = Field(min_length=1)
    namespace: _Pattern = "*"
    topics: list[_Pattern] = []
    subjects: list[_SubjectPattern] = []


class _KeyText(_Part):
    sha256: Annotated[str, StringConstraints(pattern=f"^{DIGEST_PATTERN}$")]
    principal: _Principal
    expires: datetime | None = None


class _AccessText(_Part):
    roles: dict[_KeyId, list[_GrantText]] = {}
    principals: dict[_Principal, list[str]] = {}
    keys: dict[_KeyId, _KeyText] = {}


class _StrictLoader(yaml.SafeLoader):
    """YAML without names given twice: the second would silently win."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002 - the library's signature
        names = [each.value for each, _ in node.value]
        if len(set(map(str, names))) < len(names):
            raise yaml.constructor.ConstructorError(None, None, "name is given twice")
        return super().construct_mapping(node, deep=deep)


def parse_access(text: str, *, file: str = "access file") -> tuple[Roles, Keyring]:
    """Return the roles and keys of the access file's text.

    Raises:
        InvalidRequest: with the line or key, and never with the text of the file.
    """
    try:
        tree = yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = file if mark is None else f"{file}:{mark.line + 1}"
        reason = getattr(error, "problem", None) or type(error).__name__
        raise InvalidRequest("access file is not valid YAML", reason=reason, set_at=place) from None
    try:
        found = _AccessText.model_validate({} if tree is None else tree)
    except TreeError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        key = ".".join(str(step) for step in first["loc"])
        reason = str(first["msg"]).removeprefix("Value error, ")
        raise InvalidRequest("access file is refused", key=key, reason=reason, file=file) from None
    return _roles(found, file), Keyring(_key(*item) for item in found.keys.items())


def _roles(found: _AccessText, file: str) -> Roles:
    roles = {
        name: tuple(
            Grant(frozenset(each.actions), each.namespace, tuple(each.topics), tuple(each.subjects))
            for each in grants
        )
        for name, grants in found.roles.items()
    }
    granted: dict[Principal, tuple[Grant, ...]] = {}
    for principal, names in found.principals.items():
        for name in names:
            if name not in roles:
                raise InvalidRequest(
                    "role does not exist", role=name, key=f"principals.{principal}", file=file
                )
        granted[principal] = tuple(grant for name in names for grant in roles[name])
    return Roles(granted)


def _key(key_id: str, key: _KeyText) -> StoredKey:
    expires_s = math.inf
    if key.expires is not None:
        at = key.expires if key.expires.tzinfo is not None else key.expires.replace(tzinfo=UTC)
        expires_s = at.timestamp()
    return StoredKey(key_id, key.sha256, key.principal, expires_s)
