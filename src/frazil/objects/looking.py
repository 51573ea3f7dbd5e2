"""Look whether an object is there and is what it should be: size, trailer and footer.

After a write whose outcome is unknown, after "there is such an object already", and after a crash
this is what decides; and nothing is registered that was not looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import attrs

from frazil.errors import CorruptionError, NotFound, Unavailable
from frazil.objects import format as fmt

if TYPE_CHECKING:
    from frazil.objects.store import ObjectMeta, ObjectStore

__all__ = ["Seen", "look", "read_tail"]

TAIL_BYTES: Final = 64 << 10
"""So much of an object's end is read at once; it holds most footers whole."""

Verdict = Literal["absent", "ours", "damaged", "foreign"]


@attrs.frozen
class Seen:
    """What lies under a key.

    `damaged` is no whole object; `foreign` is one, but another than expected.
    """

    verdict: Verdict
    etag: str = ""
    footer: fmt.Footer | None = None
    reason: str = ""


def look(store: ObjectStore, key: str, *, size: int, sha: str) -> Seen:
    """Compare what is under a key with the object that should be there.

    Raises:
        Unavailable: the store cannot say.
    """
    meta = store.head(key)
    if meta is None:
        return Seen("absent")
    reason: object = ""
    for _ in range(2):
        # A damaged answer does not mean that the object is damaged: ask once more.
        try:
            footer, found = read_tail(store, meta)
        except CorruptionError as error:
            reason = error
            continue
        if found != sha or meta.size != size:
            return Seen("foreign", meta.etag, footer, f"its content is {found}")
        return Seen("ours", meta.etag, footer)
    return Seen("damaged", meta.etag, None, str(reason))


def read_tail(store: ObjectStore, meta: ObjectMeta) -> tuple[fmt.Footer, str]:
    """Return the footer of an object and the hash of its content.

    Raises:
        CorruptionError: it is damaged or cut short.
        Unavailable: the store cannot say, or it is gone meanwhile.
    """
    if meta.size < fmt.HEADER_BYTES + fmt.TRAILER_BYTES:
        raise CorruptionError("object is cut short", key=meta.key, size=meta.size)
    length = min(meta.size, TAIL_BYTES)
    tail = _get(store, meta.key, meta.size - length, length)
    trailer = fmt.decode_trailer(tail[-fmt.TRAILER_BYTES :], size=meta.size)
    if trailer.length + fmt.TRAILER_BYTES <= len(tail):
        start = len(tail) - fmt.TRAILER_BYTES - trailer.length
        data = tail[start : start + trailer.length]
    else:
        data = _get(store, meta.key, trailer.position, trailer.length)
    return fmt.read_footer(data, trailer), fmt.content_hash(data)


def _get(store: ObjectStore, key: str, start: int, length: int) -> bytes:
    try:
        data = store.get(key, start=start, length=length)
    except NotFound as error:
        raise Unavailable("object is there and is not, try again", key=key) from error
    if len(data) != length:
        raise Unavailable("store gave too few bytes, try again", key=key, bytes=len(data))
    return data
