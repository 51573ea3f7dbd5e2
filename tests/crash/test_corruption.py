"""Damage to any byte of a journal is noticed or harmless; it never changes or hides a record."""

from __future__ import annotations

import os
from functools import cache
from itertools import permutations
from random import Random

import pytest

from frazil.errors import FrazilError
from frazil.model import Ack
from tests.crash.driven_log import DrivenLog, log_settings, read_everything
from tests.crash.reference_log import PLAIN, build_reference, duties
from tests.support import SimulatedClock

EXHAUSTIVE = bool(os.environ.get("FRAZIL_TEST_EXHAUSTIVE"))
SEED = 20_240
SHARDS = 16 if EXHAUSTIVE else 2
FLIPS, CUTS, WILD, MOVED = 750, 150, 150, 150
"""Samples of each ending; there are two endings."""
SECTOR = 512
SETTINGS = log_settings()


@cache
def reference(clean):
    return build_reference(clean=clean)


def open_log(file_system, seed, known_frames=None):
    clock = SimulatedClock(seed, now_us=1_760_000_000_000_000)
    return DrivenLog(file_system, clock=clock, settings=SETTINGS, known_frames=known_frames)


class Case:
    """One damaged directory, opened twice with an append between."""

    def __init__(self, reference, path, data, spans, *, strict=True):
        self.reference = reference
        self.strict = strict
        self.duties = duties(reference, path, spans)
        self.file_system = reference.file_system({path: data})

    def check(self):
        """Open, read, append, close, open and read again; return what the first open reported."""
        log = open_log(self.file_system, 1, self.reference.known_frames)
        report = log.journal.report
        first = read_everything(log)
        self._check_content(first)
        self._check_offsets(log, first)
        log.close()
        again = open_log(self.file_system, 2, self.reference.known_frames)
        report_again = again.journal.report
        assert not report_again.bytes_torn, "torn again"
        assert not report_again.lost, "lost more at the second open"
        assert not report_again.gaps
        second = read_everything(again)
        for topic, content in first.items():
            later = second[topic]
            grown = {o: r for o, r in later.records.items() if o < content.end}
            assert grown == content.records, "records changed between two opens"
            assert all(later.covered(o) for o in _offsets(content.lost) if o < content.end)
        again.close()
        return report

    def _check_content(self, found):
        for topic, wanted in self.reference.content.items():
            content = found.get(topic)
            if content is not None and content.records == wanted.records:
                continue
            for offset, record in wanted.records.items():
                duty = self.duties.records[topic, offset]
                if content is None:
                    assert duty == "free", f"topic {topic} is gone"
                    continue
                if offset in content.records:
                    got = content.records[offset]
                    assert got == record, f"topic {topic}: another record at {offset}"
                    continue
                reported = content.covered(offset)
                allowed = duty == "free" or (reported and (duty == "reported" or not self.strict))
                assert allowed, f"topic {topic}: {offset} must be {duty}, reported={reported}"
            if content is not None:
                invented = set(content.records) - set(wanted.records)
                assert not invented, f"topic {topic}: invented {invented}"

    def _check_offsets(self, log, found):
        """New records get offsets that no record had before that may have been seen."""
        for topic in self.reference.content:
            if topic not in log.journal.state.topics:
                continue
            state = log.topic(topic)
            if state.spec.kind == "table":
                ack = log.rows(topic, {"id": 1}) if state.codec is not None else None
            else:
                ack = log.plain(topic, b"after the damage")
            if ack is None:
                continue
            assert isinstance(ack, Ack), ack
            assert ack.offset > self.duties.last_offsets[topic], f"topic {topic}: offset used twice"
            assert ack.offset >= found[topic].end


def _offsets(ranges):
    return [offset for first, end in ranges for offset in (first, end - 1)]


def damages_flip(reference, shard):
    """All single-bit flips of the files, or a sample of them."""
    files = reference.files
    bits = [(path, bit) for path in sorted(files) for bit in range(_reach(files[path]) * 8)]
    chosen = bits if EXHAUSTIVE else Random(SEED).sample(bits, FLIPS)
    for path, bit in chosen[shard::SHARDS]:
        data = bytearray(files[path])
        data[bit >> 3] ^= 1 << (bit & 7)
        yield f"flip {path} bit {bit}", path, bytes(data), [(bit >> 3, (bit >> 3) + 1)]


def _reach(data):
    """Return the end of what is written, with a sector of what was only made room for."""
    return min(len(data), len(data.rstrip(b"\0")) + SECTOR)


def damages_cut(reference, shard):
    """All truncations of each file, or a sample of them."""
    files = reference.files
    cuts = [(path, size) for path in sorted(files) for size in range(_reach(files[path]))]
    chosen = cuts if EXHAUSTIVE else Random(SEED + 1).sample(cuts, CUTS)
    # Without its header a file is as if it were missing: the first one has no successor's word.
    chosen += [] if EXHAUSTIVE else [(path, size) for path in sorted(files) for size in (0, 100)]
    for path, size in chosen[shard::SHARDS]:
        yield f"cut {path} at {size}", path, files[path][:size], [(size, len(files[path]) + 1)]


def damages_wild(reference, shard):
    """Many flipped bits, zeroed, exchanged and doubled sectors."""
    files = reference.files
    for number in range(shard, (20_000 if EXHAUSTIVE else WILD), SHARDS):
        random = Random(SEED + 2 + number)
        path = random.choice(sorted(files))
        data = bytearray(files[path])
        kind = random.choice(("bits", "zero", "swap", "double", "junk"))
        one, two = (random.randrange(len(data) // SECTOR) * SECTOR for _ in range(2))
        spans = [(one, one + SECTOR), (two, two + SECTOR)]
        if kind == "bits":
            spans = []
            for _ in range(random.randrange(2, 12)):
                bit = random.randrange(len(data) * 8)
                data[bit >> 3] ^= 1 << (bit & 7)
                spans.append((bit >> 3, (bit >> 3) + 1))
        elif kind == "zero":
            data[one : one + SECTOR] = bytes(SECTOR)
        elif kind == "swap":
            left, right = data[one : one + SECTOR], data[two : two + SECTOR]
            data[one : one + SECTOR], data[two : two + SECTOR] = right, left
        elif kind == "double":
            data[one : one + SECTOR] = data[two : two + SECTOR]
        else:
            data[one : one + SECTOR] = random.randbytes(SECTOR)
        yield f"{kind} {number} {path} {spans}", path, bytes(data), spans


def damages_moved(reference, shard):
    """Every sector in the place of every other of its file, and every frame likewise."""
    moves = [*_moved_sectors(reference), *_moved_frames(reference)]
    chosen = moves if EXHAUSTIVE else Random(SEED + 3).sample(moves, MOVED)
    for path, pieces in chosen[shard::SHARDS]:
        whole = reference.files[path]
        data = bytearray(whole)
        for source, target, size in pieces:
            data[target : target + size] = whole[source : source + size]
        spans = [(target, target + size) for _source, target, size in pieces]
        yield f"move {path} {pieces}", path, bytes(data), spans


def _moved_sectors(reference):
    """Copies of a sector, and exchanges of two."""
    for path, data in sorted(reference.files.items()):
        for one, two in permutations(range(0, len(data) - SECTOR + 1, SECTOR), 2):
            yield path, [(one, two, SECTOR)]
            if one < two:
                yield path, [(one, two, SECTOR), (two, one, SECTOR)]


def _moved_frames(reference):
    """Copies of a frame to where another one starts, as far as the file reaches."""
    for one, two in permutations(reference.frames, 2):
        size = one.end - one.position
        fits = one.path == two.path and two.position + size <= len(reference.files[one.path])
        if fits:
            yield one.path, [(one.position, two.position, size)]


DAMAGES = {
    "flip": damages_flip,
    "cut": damages_cut,
    "wild": damages_wild,
    "moved": damages_moved,
}


@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.parametrize("kind", DAMAGES)
@pytest.mark.parametrize("clean", [True, False], ids=["closed", "killed"])
def test_damage_is_noticed_or_harmless(clean, kind, shard):
    """No damage gives a wrong record, hides a synced one, or lets an offset be used twice."""
    whole = reference(clean)
    failures = []
    for name, path, data, spans in DAMAGES[kind](whole, shard):
        try:
            # Frames put elsewhere may hide whole ones; that must be reported, and is.
            Case(whole, path, data, spans, strict=kind in ("flip", "cut")).check()
        except FrazilError as error:
            failures.append(f"{name}: {type(error).__name__}: {error}")
        except AssertionError as error:
            failures.append(f"{name}: {error}")
        except Exception as error:  # noqa: BLE001 - any traceback is what this test looks for
            failures.append(f"{name}: {type(error).__name__}: {error!r}")
    assert not failures, f"{len(failures)} failures\n" + "\n".join(failures[:20])


def test_the_reference_is_large_enough():
    """The directory has 64 KiB at least, sealed and unsealed segments, gaps and every topic."""
    for clean in (True, False):
        whole = reference(clean)
        assert sum(map(len, whole.files.values())) >= 64 << 10
        assert {frame.kind for frame in whole.frames} == set(range(1, 10))
        assert any(data.endswith(b"FRAZEND1") for data in whole.files.values())
        assert not whole.files[whole.segments[-2]].endswith(b"FRAZEND1")
        assert whole.content[PLAIN].records
