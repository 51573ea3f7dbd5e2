"""Verify bearer tokens and API keys: return the principal and the expiry, or refuse."""

from __future__ import annotations

import hashlib
import hmac
import math
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import attrs
import jwt

from frazil.serve.auth.roles import Principal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jwt.types import Options


__all__ = [
    "DIGEST_PATTERN",
    "KEY_ID_PATTERN",
    "KEY_PREFIX",
    "PRINCIPAL_KINDS",
    "SECRET_BYTES_MIN",
    "Authenticator",
    "BadCredential",
    "Keyring",
    "StoredKey",
    "TokenRules",
    "Verified",
    "new_key",
    "verify_token",
]


class BadCredential(Exception):
    """The credential is refused. The text gives the reason and never quotes the credential."""


class Verified(NamedTuple):
    """A principal and the expiry of its credential, in seconds since 1970."""

    principal: Principal
    expires_s: float


ALGORITHM: Final = "HS256"
SECRET_BYTES_MIN: Final = 32
"""The size of the hash; a shorter secret could be guessed from one token."""
PRINCIPAL_KINDS: Final = ("service_account", "user", "broker_internal")
"""The protocol's kinds of principal. A kind alone grants nothing."""
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
    """The rules that a token must meet: secrets, issuer, audience, clock skew."""

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
    """Return the principal of a token and its end.

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
            # A fixed text: the library's message may quote the token's contents.
            raise BadCredential(f"token is refused: {type(error).__name__}") from None
        except (ValueError, TypeError, RecursionError):
            raise BadCredential("token is malformed") from None
        return claims
    raise BadCredential("token is not signed with our secret")


def _time(claims: dict[str, Any], name: str) -> float:
    value = claims[name]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadCredential("token has a time that is no number")
    # Compared without conversion: values that are not finite numbers do not pass.
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


KEY_PREFIX: Final = "frazil_"
KEY_RANDOM_BYTES: Final = 32
KEY_ID_PATTERN: Final = r"[a-z0-9][a-z0-9-]{0,63}"
DIGEST_PATTERN: Final = r"[0-9a-f]{64}"
_KEY: Final = re.compile(rf"{KEY_PREFIX}({KEY_ID_PATTERN})_([0-9a-f]{{64}})")


class NewKey(NamedTuple):
    """A new key: its text for the holder, and its stored form."""

    text: str
    digest: str


def new_key(key_id: str, *, random: bytes) -> NewKey:
    """Make a key from 32 random bytes. Only `digest` may be stored."""
    assert re.fullmatch(KEY_ID_PATTERN, key_id)
    assert len(random) == KEY_RANDOM_BYTES
    text = f"{KEY_PREFIX}{key_id}_{random.hex()}"
    return NewKey(text, _digest(text))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@attrs.frozen
class StoredKey:
    """A stored API key: its id, hash, principal and expiry."""

    id: str
    digest: str = attrs.field(repr=False)
    principal: Principal
    expires_s: float = math.inf


class Keyring:
    """The API keys that the broker accepts."""

    def __init__(self, keys: Iterable[StoredKey] = ()) -> None:
        self._keys = {key.id: key for key in keys}

    def __len__(self) -> int:
        return len(self._keys)

    def verify(self, text: str, *, now_s: float) -> Verified:
        """Return the principal and the expiry of a key.

        Raises:
            BadCredential: if the key is unknown or has expired.
        """
        found = _KEY.fullmatch(text)
        if found is None:
            raise BadCredential("key is malformed")
        key = self._keys.get(found[1])
        # An unknown id takes as long as a wrong key, so that ids cannot be found out.
        expected = "0" * 64 if key is None else key.digest
        same = hmac.compare_digest(_digest(text), expected)
        if key is None or not same:
            raise BadCredential("key is unknown")
        if now_s >= key.expires_s:
            raise BadCredential("key has expired")
        return Verified(key.principal, key.expires_s)


CACHE_MAX: Final = 1024
HEADER_CHARACTERS_MAX: Final = 8192
_SCHEME: Final = "bearer "


class Authenticator:
    """Verifies bearer tokens and API keys. Verified credentials are cached until they expire.

    The cache has at most 1,024 entries. It has no bad credentials, so a flood of them evicts
    nothing.
    """

    def __init__(self, tokens: TokenRules | None, keys: Keyring) -> None:
        self._tokens = tokens
        self._keys = keys
        self._known: dict[str, Verified] = {}

    def known(self, header: str, *, now_s: float) -> Verified | None:
        """Return the cached result for a header, None if there is none or it has expired."""
        found = self._known.get(header)
        if found is None or now_s < found.expires_s:
            return found
        del self._known[header]
        return None

    def authenticate(self, header: str, *, now_s: float) -> Verified:
        """Return the principal of the header's credential.

        Raises:
            BadCredential: if the credential is not valid or has expired.
        """
        found = self.known(header, now_s=now_s)
        if found is not None:
            return found
        if len(header) > HEADER_CHARACTERS_MAX:
            raise BadCredential("credential is too long")
        if not header[: len(_SCHEME)].lower() == _SCHEME:
            raise BadCredential("credential is not a bearer token")
        text = header[len(_SCHEME) :].strip()
        if not text.isascii():
            raise BadCredential("credential is malformed")
        found = self._verify(text, now_s=now_s)
        if len(self._known) >= CACHE_MAX:
            del self._known[next(iter(self._known))]
        self._known[header] = found
        return found

    def _verify(self, text: str, *, now_s: float) -> Verified:
        if text.startswith(KEY_PREFIX):
            return self._keys.verify(text, now_s=now_s)
        if self._tokens is None:
            raise BadCredential("tokens are not taken")
        return verify_token(text, self._tokens, now_s=now_s)
