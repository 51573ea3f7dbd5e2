"""Types of structs, complete before threads decode them.

msgspec learns what a struct's fields are when the struct is first decoded, and another thread that
decodes the same type meanwhile finds it half learnt: that ends the process. A `Decoder` made while
its module is imported is complete; a type that is named where it is decoded goes through `learnt`.
"""

from __future__ import annotations

import threading
from typing import TypeVar

import msgspec

__all__ = ["learnt"]

T = TypeVar("T")

_lock = threading.Lock()
_learnt: set[object] = set()


def learnt(kind: type[T]) -> type[T]:
    """Return a type, known in full: the first caller learns it, the others wait for that."""
    if kind not in _learnt:
        with _lock:
            if kind not in _learnt:
                msgspec.msgpack.Decoder(kind)
                _learnt.add(kind)
    return kind
