"""Who calls: the `authorization` header turned into a principal."""

from __future__ import annotations

from typing import Final

from frazil.serve.auth.credentials import BadCredential, Verified
from frazil.serve.auth.keys import KEY_PREFIX, Keyring
from frazil.serve.auth.tokens import TokenRules, verify_token

__all__ = ["Authenticator"]

CACHE_MAX: Final = 1024
HEADER_CHARACTERS_MAX: Final = 8192
_SCHEME: Final = "bearer "


class Authenticator:
    """Takes bearer tokens and API keys. What was verified is remembered until it ends.

    At most 1,024 credentials are remembered, good ones only: a flood of bad ones drives none out.
    """

    def __init__(self, tokens: TokenRules | None, keys: Keyring) -> None:
        self._tokens = tokens
        self._keys = keys
        self._known: dict[str, Verified] = {}

    def known(self, header: str, *, now_s: float) -> Verified | None:
        """Return what a header seen before stands for, if it has not ended."""
        found = self._known.get(header)
        if found is None or now_s < found.expires_s:
            return found
        del self._known[header]
        return None

    def authenticate(self, header: str, *, now_s: float) -> Verified:
        """Return whom the header's credential belongs to.

        Raises:
            BadCredential: if it is not one of ours, or has ended.
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
