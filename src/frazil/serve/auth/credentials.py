"""What a credential turns into: somebody, until a time; or a refusal without the credential."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from frazil.serve.auth.roles import Principal

__all__ = ["BadCredential", "Verified"]


class BadCredential(Exception):
    """The credential is refused. The text says why in our words and never quotes it."""


class Verified(NamedTuple):
    """Somebody, until a time in seconds since 1970."""

    principal: Principal
    expires_s: float
