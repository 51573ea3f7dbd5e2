"""API keys: long random texts of which only the hash is kept.

A key is `frazil_<id>_<64 hex digits>`. Its digits are 256 random bits, so one round of SHA-256 is
enough: there is nothing to guess, and checking costs a client no more than it costs the broker.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import re
from collections.abc import Iterable
from typing import Final, NamedTuple

import attrs

from frazil.serve.auth.credentials import BadCredential, Verified
from frazil.serve.auth.roles import Principal

__all__ = ["DIGEST_PATTERN", "KEY_ID_PATTERN", "KEY_PREFIX", "Keyring", "StoredKey", "new_key"]

KEY_PREFIX: Final = "frazil_"
KEY_RANDOM_BYTES: Final = 32
KEY_ID_PATTERN: Final = r"[a-z0-9][a-z0-9-]{0,63}"
DIGEST_PATTERN: Final = r"[0-9a-f]{64}"
_KEY: Final = re.compile(rf"{KEY_PREFIX}({KEY_ID_PATTERN})_([0-9a-f]{{64}})")


class NewKey(NamedTuple):
    """A key for its holder, and what is kept of it."""

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
    """What is kept of a key: its hash, whose it is, and until when."""

    id: str
    digest: str = attrs.field(repr=False)
    principal: Principal
    expires_s: float = math.inf


class Keyring:
    """The keys that are taken."""

    def __init__(self, keys: Iterable[StoredKey] = ()) -> None:
        self._keys = {key.id: key for key in keys}

    def __len__(self) -> int:
        return len(self._keys)

    def verify(self, text: str, *, now_s: float) -> Verified:
        """Return whose key it is and when it ends.

        Raises:
            BadCredential: if it is none of the keys, or has ended.
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
