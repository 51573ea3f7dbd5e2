"""Backups in a store: their bytes, their names, and which of them counts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.errors import CorruptionError, InvalidRequest
from frazil.objects.backup import (
    HEAD_BYTES,
    Backup,
    TopicCopy,
    backup_key,
    backup_keys,
    brokers_in,
    decode_backup,
    encode_backup,
    newest_backup,
    write_backup,
)
from frazil.objects.descriptor import Descriptor, ObjectsState
from tests.support.simulated_clock import SimulatedClock
from tests.support.simulated_store import SimulatedStore

BROKER = bytes(range(16))
OTHER = bytes(range(16, 32))
GOLDEN = Path(__file__).parents[2] / "data" / "backup-1" / "backup.frzb"


def backup(seq=1, *, epoch=1, broker=BROKER, checkpoint=b"checkpoint"):
    """Return a small backup."""
    descriptor = Descriptor(
        key="k", first=0, end=9, size=100, length=10, records=9, time_first_us=1, time_last_us=2,
        epoch=1, etag="e", created_us=1, index=b"",
    )  # fmt: skip
    return Backup(
        broker=broker,
        epoch=epoch,
        seq=seq,
        created_us=77,
        checkpoint=checkpoint,
        topics=(TopicCopy(4, ObjectsState(start=0, uploaded=9), (descriptor,)),),
    )


@pytest.fixture
def store():
    """Return an empty store without faults."""
    return SimulatedStore(SimulatedClock())


def test_backups_of_format_1_are_read():
    """The bytes that the first version wrote are read by every later one."""
    assert decode_backup(GOLDEN.read_bytes()) == backup()


@given(st.binary(max_size=200))
def test_junk_is_never_a_backup(data):
    """Any bytes are refused as damage, nothing else happens."""
    with pytest.raises(CorruptionError):
        decode_backup(data)


def test_every_flipped_byte_is_noticed():
    """No damage gives another backup, or any."""
    data = encode_backup(backup())
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 0x41
        with pytest.raises(CorruptionError):
            decode_backup(bytes(damaged))
    for length in range(len(data)):
        with pytest.raises(CorruptionError):
            decode_backup(data[:length])


def test_a_newer_format_is_refused_and_not_called_damage():
    """The error says that a newer version wrote it; nothing is guessed."""
    import zlib

    data = bytearray(encode_backup(backup()))
    data[10:12] = (2).to_bytes(2, "little")
    data[HEAD_BYTES - 4 : HEAD_BYTES] = zlib.crc32(data[: HEAD_BYTES - 4]).to_bytes(4, "little")
    with pytest.raises(InvalidRequest, match="newer Frazil"):
        decode_backup(bytes(data))


def test_the_newest_is_that_of_the_last_owner(store):
    """A late backup of an earlier owner does not count, however high its number is."""
    for seq, epoch in ((1, 1), (2, 1), (3, 2), (9, 1)):
        write_backup(store, backup(seq, epoch=epoch))
    assert [(key.epoch, key.seq) for key in backup_keys(store, BROKER)] == [
        (1, 1),
        (1, 2),
        (1, 9),
        (2, 3),
    ]
    newest = newest_backup(store, BROKER)
    assert (newest.backup.epoch, newest.backup.seq, newest.unreadable) == (2, 3, {})


def test_the_one_before_a_damaged_one_counts(store):
    """What cannot be read is named with its reason, and the next older one is used."""
    write_backup(store, backup(1))
    data = bytearray(encode_backup(backup(2)))
    key = backup_key(backup(2), bytes(data))
    data[-1] ^= 1
    store.put(key, bytes(data))
    foreign = backup_key(backup(3), b"something else")
    store.put(foreign, encode_backup(backup(3)))
    newest = newest_backup(store, BROKER)
    assert newest.backup.seq == 1
    assert set(newest.unreadable) == {key, foreign}


def test_a_backup_that_is_there_already_is_fine(store):
    """The second write of the same bytes finds them: an answer may have been lost."""
    assert write_backup(store, backup()) == write_backup(store, backup())


def test_a_large_backup_goes_in_pieces(store):
    """One beyond the size of a single put is written as a stream and read again."""
    import hashlib

    noise = b"".join(hashlib.sha256(b"%d" % n).digest() for n in range(300_000))
    written, size = write_backup(store, backup(checkpoint=noise))
    assert size > 9_000_000
    newest = newest_backup(store, BROKER)
    assert (newest.key, newest.backup.checkpoint) == (written, noise)


def test_brokers_are_found_without_listing_all(store):
    """Each broker is named once; what else lies in the store is passed over."""
    for number in range(30):
        store.put(f"{BROKER.hex()}/topics/00000001-u/{number:016x}.frz", b"x")
    write_backup(store, backup(broker=OTHER))
    store.put("readme.txt", b"x")
    store.put("zzz/other", b"x")
    assert brokers_in(store) == [BROKER, OTHER]
