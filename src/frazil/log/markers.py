"""The frame that proves what was synced before it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from frazil.log import format as fmt

if TYPE_CHECKING:
    from frazil.log.segment import Segment
    from frazil.log.state import JournalState


def marker_frame(state: JournalState, segment: Segment, *, synced: int, close: bool) -> bytes:
    """Return a marker of a segment; one that closes it gives the unused reservations back."""
    payload = b""
    if close:
        released = [(t.id, t.next) for t in state.topics.values() if t.reserved > t.next]
        payload = msgspec.msgpack.encode(released) if released else b""
    head, body, padding, _size = fmt.frame_buffers(
        fmt.KIND_MARKER,
        payload,
        len(payload),
        offset=0,
        salt=segment.salt,
        generation=segment.generation,
        lsn=state.lsn,
        synced=synced,
        time_us=state.time_us,
        flags=fmt.FLAG_CLOSE if close else 0,
    )
    return b"".join((head, body, padding))
