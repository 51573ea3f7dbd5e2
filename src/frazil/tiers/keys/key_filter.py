"""Which keys a topic has certainly never had: bits by hash, for when its index is not complete.

Without it every key that the index does not have must be looked for in all chunks and files, and a
new key is in none of them. It is a Bloom filter of a fixed size with two bits a key; a wrong "maybe"
costs a look, nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    import numpy.typing as npt

    from frazil.schema import Key

    Flags = npt.NDArray[np.bool_]
    Hashes = npt.NDArray[np.uint32]

__all__ = ["KeyFilter"]

FILTER_SHARE: Final = 16
"""One part in so many of what an index may have goes to its filter."""
SEED_RATIO: Final = 8
"""So many keys of before are taken in for each key that comes."""
SEED_KEYS_MIN: Final = 256
SIZE_MIN: Final = 8

_SPREAD: Final = (0x9E37_79B9_7F4A_7C15, 0xC2B2_AE3D_27D4_EB4F)
_MASK_64: Final = (1 << 64) - 1


class KeyFilter:
    """Takes hashes of keys in and tells which were never taken in; the caller has the topic's lock.

    It starts with the keys that there are, and takes them in by and by: until it is `ready`, it
    cannot tell anything.
    """

    def __init__(self, size: int, keys: Collection[Key] = ()) -> None:
        assert size & (size - 1) == 0
        self._bytes = np.zeros(size, np.uint8)
        self._shift = 64 - 3 - (size.bit_length() - 1)
        self._waiting = list(keys)

    @classmethod
    def beside(cls, index_bytes: int, keys: Collection[Key] = ()) -> KeyFilter | None:
        """Return the filter for an index of this size with these keys; None if it is too small."""
        size = index_bytes // FILTER_SHARE
        return cls(1 << (size.bit_length() - 1), keys) if size >= SIZE_MIN else None

    @property
    def ready(self) -> bool:
        """Tell whether all keys of before are taken in."""
        return not self._waiting

    @property
    def nbytes(self) -> int:
        """Return the bytes it takes."""
        return self._bytes.nbytes + 8 * len(self._waiting)

    def add(self, hashes: Hashes) -> None:
        """Take hashes in."""
        for factor in _SPREAD:
            places = self._places(hashes, factor)
            np.bitwise_or.at(self._bytes, places >> np.uint64(3), _bit(places))

    def seed(self, came: int, hashes_of: Callable[[Sequence[Key]], Hashes]) -> None:
        """Take some of the keys of before in: as many as keep up with the keys that come."""
        count = max(SEED_RATIO * came, SEED_KEYS_MIN)
        part = self._waiting[-count:]
        self.add(hashes_of(part))
        # Only now: whoever finds it ready must find these, too.
        del self._waiting[-count:]

    def maybe(self, hashes: Hashes) -> Flags:
        """Tell of each hash whether it may have been taken in."""
        found = np.ones(len(hashes), np.bool_)
        for factor in _SPREAD:
            places = self._places(hashes, factor)
            found &= (self._bytes[places >> np.uint64(3)] & _bit(places)) != 0
        return found

    def has(self, hashed: int) -> bool:
        """Tell whether one hash may have been taken in."""
        for factor in _SPREAD:
            place = ((hashed + 1) * factor & _MASK_64) >> self._shift
            if not self._bytes[place >> 3] & (1 << (place & 7)):
                return False
        return True

    def _places(self, hashes: Hashes, factor: int) -> npt.NDArray[np.uint64]:
        wide = hashes.astype(np.uint64) + np.uint64(1)
        return (wide * np.uint64(factor)) >> np.uint64(self._shift)


def _bit(places: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
    found: npt.NDArray[np.uint8] = np.left_shift(
        np.uint8(1), (places & np.uint64(7)).astype(np.uint8), dtype=np.uint8
    )
    return found
