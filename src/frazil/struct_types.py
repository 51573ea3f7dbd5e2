"""Types of structs, complete before threads decode them.

msgspec collects the fields of a struct type when the struct is first decoded. A second thread that
decodes the same type at that moment finds it incomplete, which crashes the process. A `Decoder`
created at its module's import is complete; a type named at the decoding call goes through `learnt`.
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
    """Return a type with its fields collected: the first caller does it, the others wait."""
    if kind not in _learnt:
        with _lock:
            if kind not in _learnt:
                msgspec.msgpack.Decoder(kind)
                _learnt.add(kind)
    return kind
