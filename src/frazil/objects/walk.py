"""Frames in a stretch of an object's bytes: checked one by one, from a frame's start on. Pure."""

from __future__ import annotations

import zlib
from typing import NamedTuple

from frazil.log import Frame
from frazil.log import format as fmt

__all__ = ["Damage", "Walked", "Wanted", "walk"]


class Wanted(NamedTuple):
    """Which frames are looked for: those of a topic that have offsets of `[offset, offset_end)`."""

    topic: int
    offset: int
    offset_end: int
    bytes_max: int


class Damage(NamedTuple):
    """A frame that is not what it should be."""

    first: int
    end: int | None
    """The offset behind it; None if its head is gone, too, and only the index knows."""
    reason: str


class Walked(NamedTuple):
    """Frames in order, and where the walk ended: at `position`, before damage if there is any."""

    frames: list[Frame]
    position: int
    damage: Damage | None


def walk(data: bytes, position: int, wanted: Wanted) -> Walked:
    """Check the frames from `position` on and return those that are wanted, without a hole.

    The walk ends at the end of `data`, where the frames reach `offset_end`, or when they have about
    `bytes_max`, but at least one. Damage below the wanted offsets is passed over if it is
    known where it ends.
    """
    topic, offset, offset_end, bytes_max = wanted
    view = memoryview(data)
    frames: list[Frame] = []
    size, expected, limit = 0, offset, len(data) - fmt.FRAME_HEAD_BYTES
    unpack, crc32, new_tuple = fmt.FRAME_HEAD.unpack_from, zlib.crc32, tuple.__new__
    while position <= limit:
        fields = unpack(data, position)
        payload = position + fmt.FRAME_HEAD_BYTES + fields[6] * fmt.RUN.size
        behind = position + fmt.FRAME_PREFIX_BYTES + fields[1]
        crc = crc32(view[position + 16 : payload], crc32(view[payload:behind]))
        if (
            crc32(view[position : position + 12], crc) != fields[2]
            or fields[7] != topic
            or not 0 < fields[3] <= fmt.KIND_ROWS
            or behind > len(data)
        ):
            damage, following = _damage(data, position, wanted)
            if frames or following is None:
                return Walked(frames, position, damage)
            position = following
            continue
        end = fields[0] + fields[8]
        if end > offset:
            if fields[0] > expected:
                damage = Damage(expected, fields[0], "records are missing")
                return Walked(frames, position, damage)
            if frames and (fields[0] < expected or size + behind - position > bytes_max):
                damaged = Damage(expected, end, "offsets go back") if fields[0] < expected else None
                return Walked(frames, position, damaged)
            frames.append(new_tuple(Frame, (new_tuple(fmt.FrameHead, fields), data, payload)))
            size += behind - position
            expected = end
        position = behind
        if expected >= offset_end:
            break
    if position < len(data) and expected < offset_end:
        return Walked(frames, position, Damage(expected, None, "object is cut short"))
    return Walked(frames, position, None)


def _damage(data: bytes, position: int, wanted: Wanted) -> tuple[Damage, int | None]:
    """Say what is lost with a damaged frame; also where the next one is, if the walk may go on."""
    head = fmt.mend_head(data[position : position + fmt.FRAME_HEAD_BYTES])
    reason = "checksum does not match"
    if head is None or head.topic != wanted.topic or not 0 < head.kind <= fmt.KIND_ROWS:
        return Damage(wanted.offset, None, reason), None
    following = position + fmt.FRAME_PREFIX_BYTES + head.length
    if following > len(data):
        return Damage(head.offset, None, reason), None
    end = head.offset + head.records
    is_below = end <= wanted.offset
    return Damage(head.offset, end, reason), following if is_below else None
