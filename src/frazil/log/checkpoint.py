"""The checkpoint at the start of each segment: tagged sections that hold the whole state. Pure.

A section with an unknown tag is copied unchanged into later checkpoints.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import msgspec

from frazil.errors import CorruptionError
from frazil.log.cursor_state import CursorState
from frazil.log.state import (
    JournalState,
    Sent,
    SpecialRange,
)
from frazil.model import TopicSpec
from frazil.struct_types import learnt

_SECTION: Final = struct.Struct("<HHI")
"""tag, zero, length"""
TAG_TOPICS: Final = 1
TAG_SCHEMAS: Final = 2
TAG_HOLDS: Final = 3
TAG_PRODUCERS: Final = 4
TAG_CURSORS: Final = 5
TAG_RANGES: Final = 6
TAG_VALUES: Final = 7
TAG_JOURNAL: Final = 8

_encode = msgspec.msgpack.encode


def encode_checkpoint(state: JournalState, *, lsn: int) -> bytes:
    """Encode the state as a checkpoint's payload.

    Frames after `lsn` follow the checkpoint even if the state includes them already: applying a
    frame again is harmless. Recovery therefore needs only the state at the checkpoint's end.
    """
    topics = state.topics.values()
    sections: list[tuple[int, bytes]] = [
        (
            TAG_JOURNAL,
            _encode(
                [
                    lsn,
                    state.time_us,
                    state.producer_id_last,
                    state.segment_first,
                    state.topic_id_last,
                ]
            ),
        ),
        (TAG_TOPICS, _encode([[t.spec, t.next, t.start] for t in topics])),
        (
            TAG_SCHEMAS,
            _encode([[t.id, version, data] for t in topics for version, data in t.schemas.items()]),
        ),
        (TAG_HOLDS, _encode([[t.id, name, end] for t in topics for name, end in t.holds.items()])),
        (TAG_RANGES, _encode([[t.id, *special] for t in topics for special in t.ranges])),
        (
            TAG_PRODUCERS,
            _encode(
                [[p.id, p.topic, p.name, p.epoch, list(p.window)] for p in state.producers.values()]
            ),
        ),
        (
            TAG_CURSORS,
            _encode([[t.id, name, c.encode()] for t in topics for name, c in t.cursors.items()]),
        ),
        (TAG_VALUES, _encode([[*key, value] for key, value in state.values.items()])),
    ]
    return encode_sections([*sections, *state.unknown_sections])


def decode_checkpoint(data: bytes) -> JournalState:
    """Rebuild the state from a checkpoint's payload.

    Raises:
        CorruptionError: if the sections do not fit.
    """
    state = JournalState()
    sections: dict[int, bytes] = {}
    for tag, body in decode_sections(data):
        if TAG_TOPICS <= tag <= TAG_JOURNAL:
            sections[tag] = body
        else:
            state.unknown_sections.append((tag, body))
    try:
        _fill(state, sections)
    except (msgspec.MsgspecError, KeyError, ValueError, TypeError) as error:
        raise CorruptionError("checkpoint cannot be decoded", error=error) from error
    return state


def _fill(state: JournalState, sections: dict[int, bytes]) -> None:
    def rows(tag: int, kind: Any) -> Any:
        return msgspec.msgpack.decode(sections[tag], type=learnt(kind))

    journal = rows(TAG_JOURNAL, tuple[int, int, int, int, int])
    state.lsn, state.time_us, state.producer_id_last = journal[:3]
    state.segment_first, state.topic_id_last = journal[3:]
    for spec, following, start in rows(TAG_TOPICS, list[tuple[TopicSpec, int, int]]):
        topic = state.define_topic(spec)
        topic.next = topic.durable = following
        topic.start = start
    for topic_id, version, data in rows(TAG_SCHEMAS, list[tuple[int, int, bytes]]):
        state.topics[topic_id].schemas[version] = data
        state.topics[topic_id].schema_version = max(state.topics[topic_id].schema_version, version)
    for topic_id, name, end in rows(TAG_HOLDS, list[tuple[int, str, int]]):
        state.topics[topic_id].holds[name] = end
    for topic_id, *special in rows(TAG_RANGES, list[tuple[int, int, int, str, str]]):
        state.topics[topic_id].add_range(SpecialRange(*special))
    for producer_id, topic_id, name, epoch, window in rows(
        TAG_PRODUCERS, list[tuple[int, int, str, int, list[tuple[int, int, int, int, int]]]]
    ):
        producer = state.add_producer(producer_id, topic=topic_id, name=name, epoch=epoch)
        producer.window.extend(Sent(*sent) for sent in window)
    for topic_id, name, value in rows(TAG_CURSORS, list[tuple[int, str, bytes]]):
        cursor = state.topics[topic_id].cursors[name] = CursorState.decode(value)
        cursor.lsn = state.lsn
    for tag, key, value in rows(TAG_VALUES, list[tuple[int, str, Any]]):
        state.values[tag, key] = value


def encode_sections(sections: list[tuple[int, bytes]]) -> bytes:
    """Join tagged sections."""
    return b"".join([_SECTION.pack(tag, 0, len(body)) + body for tag, body in sections])


def decode_sections(data: bytes) -> list[tuple[int, bytes]]:
    """Split tagged sections; raises `CorruptionError` when their lengths do not add up."""
    sections: list[tuple[int, bytes]] = []
    position = 0
    while position < len(data):
        if position + _SECTION.size > len(data):
            raise CorruptionError("checkpoint section is cut short", position=position)
        tag, _zero, length = _SECTION.unpack_from(data, position)
        position += _SECTION.size
        if position + length > len(data):
            raise CorruptionError("checkpoint section ends after its frame", tag=tag)
        sections.append((tag, data[position : position + length]))
        position += length
    return sections
