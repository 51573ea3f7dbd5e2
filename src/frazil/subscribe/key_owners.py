"""Which consumer a key belongs to."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from frazil.subscribe.places import Consumer

__all__ = ["KeyOwners"]


class KeyOwners:
    """Remembers the consumer of each key, by name, so that a consumer that returns has its keys.

    A key seen for the first time goes to the eligible consumer that has fewest. A key moves only
    when its owner is gone or does not accept it. At most `keys_max` keys are remembered; those
    beyond belong to a consumer by hash.
    """

    __slots__ = ("_counts", "_keys_max", "_owners")

    def __init__(self, keys_max: int) -> None:
        self._keys_max = keys_max
        self._owners: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def find(self, key: str, members: dict[str, Consumer]) -> Consumer | None:
        """Return the attached consumer that gets the key; None if no one accepts it."""
        name = self._owners.get(key)
        if name is not None:
            owner = members.get(name)
            if owner is not None and owner.accepts(key):
                return owner
        eligible = [each for each in members.values() if each.accepts(key)]
        return self.choose(key, eligible, members) if eligible else None

    def choose(
        self, key: str, eligible: Sequence[Consumer], members: dict[str, Consumer]
    ) -> Consumer:
        """Give a key without an owner among the members to one of those that accept it."""
        name, counts = self._owners.get(key), self._counts
        if name is None and len(self._owners) >= self._keys_max:
            self._sweep(members)
            if len(self._owners) >= self._keys_max:
                return _by_hash(key, eligible)
        chosen = min(eligible, key=lambda each: counts.get(each.name, 0))
        if name is not None:
            self._uncount(name)
        self._owners[key] = chosen.name
        counts[chosen.name] = counts.get(chosen.name, 0) + 1
        return chosen

    def _uncount(self, name: str) -> None:
        self._counts[name] -= 1
        if not self._counts[name]:
            del self._counts[name]

    def _sweep(self, members: dict[str, Consumer]) -> None:
        """Forget the keys of consumers that are gone."""
        gone = self._counts.keys() - members.keys()
        if not gone:
            return
        self._owners = {key: name for key, name in self._owners.items() if name not in gone}
        for name in gone:
            del self._counts[name]


def _by_hash(key: str, eligible: Sequence[Consumer]) -> Consumer:
    """Choose by the highest of the hashes of key and name: few keys move when consumers change."""
    data = key.encode("utf-8", "surrogatepass")
    return max(eligible, key=lambda each: _weight(data, each.name))


def _weight(key: bytes, name: str) -> tuple[bytes, str]:
    mixed = b"%d:%b%b" % (len(key), key, name.encode("utf-8", "surrogatepass"))
    return hashlib.blake2b(mixed, digest_size=8).digest(), name
