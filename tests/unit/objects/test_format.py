"""Format 1 of objects: pinned bytes, refusals, keys."""

from __future__ import annotations

import msgspec
import pytest

from frazil.errors import CorruptionError, InvalidRequest
from frazil.log import SpecialRange
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
    found = footer_of(data)
    assert (found.topic, found.first, found.end, found.records, found.frames) == (1, 0, 10, 7, 6)
    assert found.ranges == (SpecialRange(5, 8, "gap", "declared"),)
    assert sorted(found.producers.values()) == ["p1", "p2"]
    assert found.spec.name == "/default/messages"
    assert dict(records_of(data, found, 1)) == {
        **{number: b"message %d" % number for number in range(5)},
        8: b"behind the gap",
        9: b"",
    }
    table = footer_of(pinned("table.frz"))
    assert (table.topic, table.first, table.end, list(table.schemas)) == (2, 0, 5, [1])
    assert table.lsn_last > found.lsn_last > 0


def test_the_pinned_rows_read_as_they_were_written():
    """Descriptors, states and intents come back from the pinned bytes."""
    descriptor = decode_row(Descriptor, "k", pinned(f"00000001-{0:016x}.row"))
    assert (descriptor.first, descriptor.end) == (0, 10)
    assert descriptor.key.encode() == pinned("topic.key")
    assert descriptor.size == len(pinned("topic.frz"))
    assert [entry.offset for entry in descriptor.entries()] == [0, 2, 4]
    assert decode_row(ObjectsState, "k", pinned("00000001-state.row")).uploaded == 10
    assert decode_row(ObjectsState, "k", pinned("intent.row")).intent == Intent("key", 1, 3)
    with pytest.raises(CorruptionError, match="damaged"):
        decode_row(Descriptor, "k", b"junk")


def test_a_key_has_the_topic_the_offsets_and_the_epoch():
    """A key that was made is read back; anything else is not an object's key."""
    parts = objects.KeyParts(BROKER, 255, "a1b2", 5, 7, "01234567")
    key = objects.object_key(parts)
    assert key == (
        "000102030405060708090a0b0c0d0e0f/topics/000000ff-a1b2/"
        "0000000000000005-00000007-01234567.frz"
    )
    assert objects.parse_key(key) == parts
    large = parts._replace(epoch=1 << 40)
    assert objects.parse_key(objects.object_key(large)) == large
    for other in ("", "a/b", key + "x", key.replace(".frz", ".frzb"), f"x{key}", key.upper()):
        assert objects.parse_key(other) is None


@pytest.mark.parametrize("name", ["topic.frz", "table.frz"])
def test_every_flipped_bit_of_footer_and_trailer_is_found(name):
    """Damage outside the frames, which have checksums of their own, is always found."""
    data = pinned(name)
    trailer = objects.decode_trailer(data[-objects.TRAILER_BYTES :], size=len(data))
    for position in range(trailer.position, len(data)):
        wrong = bytearray(data)
        wrong[position] ^= 1 << position % 8
        with pytest.raises((CorruptionError, InvalidRequest)):
            footer_of(bytes(wrong))


@pytest.mark.parametrize("size", [0, 10, 31, 63, 64, 100])
def test_an_object_that_is_cut_short_is_refused(size):
    """A part of an object is never taken for the whole."""
    with pytest.raises(CorruptionError):
        footer_of(pinned("topic.frz")[:-1][:size] if size else b"")
    with pytest.raises(CorruptionError):
        footer_of(pinned("topic.frz")[size + 1 :])


@pytest.mark.parametrize(
    ("name", "value"), [("READER_VERSION", 2), ("MAGIC_END", b"FRAZOBE2")], ids=["reader", "magic"]
)
def test_a_newer_format_is_refused_with_advice(monkeypatch, name, value):
    """An object of a later version is not called damaged."""
    with monkeypatch.context() as patch:
        patch.setattr(objects, name, value)
        newer = objects.encode_trailer(b"footer", position=64)
    with pytest.raises(InvalidRequest, match="newer"):
        objects.decode_trailer(newer, size=64 + 6 + objects.TRAILER_BYTES)


@pytest.mark.parametrize("what", ["length", "end", "order", "cut", "index", "gap", "empty gap"])
def test_a_footer_whose_numbers_do_not_fit_is_refused(what):
    """Frames of another length, indexes out of order and gaps elsewhere are damage."""
    footer = footer_of(pinned("topic.frz"))
    position = objects.HEADER_BYTES + footer.length
    entries = footer.index[:24], footer.index[24:48]
    change = {
        "length": {"length": footer.length + 8},
        "end": {"end": -1},
        "order": {"index": entries[1] + entries[0]},
        "cut": {"index": footer.index + b"x"},
        "index": {"index": objects.pack_index([objects.IndexEntry(0, 1 << 30, 0)])},
        "gap": {"ranges": (SpecialRange(5, 50, "gap", ""),)},
        "empty gap": {"ranges": (SpecialRange(5, 5, "gap", ""),)},
    }[what]
    data = objects.encode_footer(msgspec.structs.replace(footer, **change))
    trailer = objects.encode_trailer(data, position=position)
    size = position + len(data) + objects.TRAILER_BYTES
    with pytest.raises(CorruptionError):
        objects.read_footer(data, objects.decode_trailer(trailer, size=size))
