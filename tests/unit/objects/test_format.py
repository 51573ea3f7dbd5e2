"""Format 1 of objects: pinned bytes, what is refused, keys, and sections of later versions."""

from __future__ import annotations

import struct
import zlib

import pytest

from frazil.errors import CorruptionError, InvalidRequest
from frazil.log import decode_sections, encode_sections
from frazil.objects import format as objects
from frazil.objects.descriptor import Descriptor, Intent, ObjectsState, decode_row
from tests.unit.objects.golden_objects import GOLDEN, golden_files
from tests.unit.objects.objects_world import BROKER, footer_of, records_of

pytestmark = pytest.mark.filterwarnings("error")


def pinned(name):
    return (GOLDEN / name).read_bytes()


def test_the_bytes_written_today_are_the_pinned_ones():
    """The same calls give the same objects, keys and rows as when the format was pinned."""
    assert golden_files() == {path.name: path.read_bytes() for path in sorted(GOLDEN.iterdir())}


def test_the_pinned_objects_read_as_they_were_written():
    """Records, gaps, schemas, producers and topics come back from the pinned bytes."""
    data = pinned("topic.frz")
    (found,) = footer_of(data).topics
    assert (found.first, found.end, found.records, found.frames) == (0, 10, 7, 6)
    assert found.ranges == (objects.Range(5, 8, "gap", "declared"),)
    assert sorted(found.producers.values()) == ["p1", "p2"]
    assert found.spec.name == "/default/messages"
    assert dict(records_of(data, found, 1)) == {
        **{number: b"message %d" % number for number in range(5)},
        8: b"behind the gap",
        9: b"",
    }
    shared = footer_of(pinned("shared.frz"))
    assert [(f.topic, f.first, f.end, list(f.schemas)) for f in shared.topics] == [
        (1, 10, 11, []),
        (2, 0, 5, [1]),
    ]
    assert 0 < shared.lsn_first < shared.lsn_last


def test_the_pinned_rows_read_as_they_were_written():
    """Descriptors, states and intents come back from the pinned bytes."""
    descriptor = decode_row(Descriptor, "k", pinned(f"00000001-{0:016x}.row"))
    assert (descriptor.first, descriptor.end, descriptor.shared) == (0, 10, False)
    assert descriptor.key.encode() == pinned("topic.key")
    assert descriptor.size == len(pinned("topic.frz"))
    assert [entry.offset for entry in descriptor.entries()] == [0, 2, 4]
    assert decode_row(ObjectsState, "k", pinned("00000001-state.row")).uploaded == 11
    assert decode_row(Intent, "k", pinned("intent.row")).end == 2
    with pytest.raises(CorruptionError, match="damaged"):
        decode_row(Descriptor, "k", b"junk")


def test_keys_say_what_is_in_an_object():
    """A key that was made is read back; anything else is none of ours."""
    given = {"first": 5, "end": 1 << 60, "epoch": 7, "sha": "0123456789abcdef" * 4}
    key = objects.topic_key(BROKER, 255, "a1b2", **given)
    assert key == (
        "000102030405060708090a0b0c0d0e0f/topics/000000ff-a1b2/"
        "0000000000000005-1000000000000000-00000007-0123456789abcdef.frz"
    )
    assert objects.parse_key(key) == objects.KeyParts(
        "topic", BROKER, 255, "a1b2", 5, 1 << 60, 7, "0123456789abcdef"
    )
    shared = objects.shared_key(BROKER, lsn_first=1, lsn_last=2, epoch=1 << 40, sha="f" * 64)
    parts = objects.parse_key(shared)
    assert (parts.kind, parts.topic, parts.first, parts.end) == ("shared", 0, 1, 2)
    assert parts.epoch == 1 << 40
    for other in ("", "a/b", key + "x", key.replace(".frz", ".frzb"), f"x{key}", key.upper()):
        assert objects.parse_key(other) is None


@pytest.mark.parametrize("name", ["topic.frz", "shared.frz"])
def test_every_flipped_bit_of_header_footer_and_trailer_is_found(name):
    """Damage outside the frames, which have checksums of their own, never goes unseen."""
    data = pinned(name)
    trailer = objects.decode_trailer(data[-objects.TRAILER_BYTES :], size=len(data))
    zeroes = range(len(data) - 12, len(data) - 8)
    for position in (*range(objects.HEADER_BYTES), *range(trailer.position, len(data))):
        wrong = bytearray(data)
        wrong[position] ^= 1 << position % 8
        if position in zeroes:
            continue
        with pytest.raises((CorruptionError, InvalidRequest)):
            objects.decode_header(bytes(wrong))
            footer_of(bytes(wrong))


@pytest.mark.parametrize("size", [0, 10, 31, 63, 64, 100])
def test_an_object_that_is_cut_short_is_refused(size):
    """A part of an object is never taken for the whole."""
    with pytest.raises(CorruptionError):
        footer_of(pinned("topic.frz")[:-1][:size] if size else b"")
    with pytest.raises(CorruptionError):
        footer_of(pinned("topic.frz")[size + 1 :])


def test_a_newer_format_is_refused_with_advice():
    """An object of a later version is told from a damaged one."""
    header = objects.Header(
        objects.KIND_TOPIC, BROKER, 1, 2, format_version=3, reader_version_min=2
    )
    with pytest.raises(InvalidRequest, match="newer"):
        objects.decode_header(objects.encode_header(header))
    other = struct.pack("<8sHHHH16sQq12x", b"FRAZOBJ2", 1, 1, 1, 0, BROKER, 1, 2)
    with pytest.raises(InvalidRequest, match="newer"):
        objects.decode_header(other + zlib.crc32(other).to_bytes(4, "little"))
    kind = objects.encode_header(objects.Header(9, BROKER, 1, 2))
    with pytest.raises(CorruptionError, match="kind"):
        objects.decode_header(kind)


def test_unknown_sections_are_kept():
    """What a later version adds to a footer survives being decoded and encoded."""
    data = pinned("topic.frz")
    footer = footer_of(data)
    encoded = objects.encode_footer(footer)
    more = encoded + encode_sections([(99, b"new")])
    decoded = objects.decode_footer(more, position=len(data))
    assert decoded.unknown == ((99, b"new"),)
    assert decode_sections(objects.encode_footer(decoded)) == decode_sections(more)


def test_a_footer_whose_numbers_do_not_fit_is_refused():
    """Slices outside the body, indexes out of order and gaps elsewhere are damage."""
    footer = footer_of(pinned("topic.frz"))
    (found,) = footer.topics
    fields = {name: getattr(found, name) for name in found.__struct_fields__}
    entries = found.index[:24], found.index[24:48]
    for change in (
        {"position": 10},
        {"length": 1 << 40},
        {"length": -8},
        {"end": -1},
        {"index": entries[1] + entries[0]},
        {"index": found.index + b"x"},
        {"index": objects.pack_index([objects.IndexEntry(0, 1 << 30, 0)])},
        {"ranges": (objects.Range(5, 50, "gap"),)},
        {"ranges": (objects.Range(5, 5, "gap"),)},
    ):
        wrong = objects.TopicSlice(**{**fields, **change})
        encoded = objects.encode_footer(objects.Footer(footer.heads_sha256, (wrong,)))
        with pytest.raises(CorruptionError):
            objects.decode_footer(encoded, position=found.position + found.length)
    with pytest.raises(CorruptionError):
        objects.decode_footer(objects.encode_footer(objects.Footer(b"", ())), position=64)
