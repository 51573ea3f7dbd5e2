"""JSON web tokens: signed with HS256, with an end and an issuer, for the audience if one is set.

Only that one algorithm is taken, whatever the token's header says, so that neither `none` nor
another key type can be smuggled in. The times are compared here and not by the library, so that
the time is an argument.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs
import jwt

from frazil.serve.auth.credentials import BadCredential, Verified
from frazil.serve.auth.roles import Principal

if TYPE_CHECKING:
    from jwt.types import Options

__all__ = ["PRINCIPAL_KINDS", "SECRET_BYTES_MIN", "TokenRules", "verify_token"]

ALGORITHM: Final = "HS256"
SECRET_BYTES_MIN: Final = 32
"""A shorter secret than the hash can be guessed from one token."""
PRINCIPAL_KINDS: Final = ("service_account", "user", "broker_internal")
"""The kinds of the protocol. None of them grants anything by itself."""
NAME_CHARACTERS_MAX: Final = 255
TIME_MAX_S: Final = float(1 << 40)

_OPTIONS: Final[Options] = {
    "require": ["exp", "iss", "sub"],
    "verify_signature": True,
    "verify_iss": True,
    "verify_sub": True,
    "verify_exp": False,
    "verify_nbf": False,
    "verify_iat": False,
}


@attrs.frozen
class TokenRules:
    """What a token must be."""

    secrets: tuple[bytes, ...] = attrs.field(repr=False)
    issuer: str
    audience: str = ""
    skew_s: float = 30.0

    def __attrs_post_init__(self) -> None:
        assert self.issuer
        assert 0 <= self.skew_s <= 60
        assert self.secrets
        assert all(len(secret) >= SECRET_BYTES_MIN for secret in self.secrets)


def verify_token(text: str, rules: TokenRules, *, now_s: float) -> Verified:
    """Return whose token it is and when it ends.

    Raises:
        BadCredential: if it is not signed with one of the secrets, or not for here and now.
    """
    claims = _claims(text, rules)
    expires_s = _time(claims, "exp") + rules.skew_s
    if now_s >= expires_s:
        raise BadCredential("token has expired")
    for name in ("nbf", "iat"):
        if name in claims and _time(claims, name) > now_s + rules.skew_s:
            raise BadCredential("token is not valid yet")
    return Verified(_principal(claims), expires_s)


def _claims(text: str, rules: TokenRules) -> dict[str, Any]:
    for secret in rules.secrets:
        try:
            claims: dict[str, Any] = jwt.decode(
                text,
                secret,
                algorithms=[ALGORITHM],
                issuer=rules.issuer,
                audience=rules.audience or None,
                options={**_OPTIONS, "verify_aud": bool(rules.audience)},
            )
        except jwt.InvalidSignatureError:
            continue
        except jwt.PyJWTError as error:
            # The reason is a word of ours: the library's may quote what the token holds.
            raise BadCredential(f"token is refused: {type(error).__name__}") from None
        except (ValueError, TypeError, RecursionError):
            raise BadCredential("token is malformed") from None
        return claims
    raise BadCredential("token is not signed with our secret")


def _time(claims: dict[str, Any], name: str) -> float:
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadCredential("token has a time that is no number")
    # Compared as it is: neither what is no number nor one that no float can hold passes this.
    if not 0 <= value <= TIME_MAX_S:
        raise BadCredential("token has a time out of range")
    return float(value)


def _principal(claims: dict[str, Any]) -> Principal:
    kind = claims.get("principal_type", "user")
    name = claims.get("principal_name", claims["sub"])
    if kind not in PRINCIPAL_KINDS:
        raise BadCredential("token is of an unknown kind of principal")
    if not isinstance(name, str) or not 0 < len(name) <= NAME_CHARACTERS_MAX:
        raise BadCredential("token names no principal")
    if not name.isprintable():
        raise BadCredential("token names a principal with unprintable characters")
    return Principal(kind, name)
