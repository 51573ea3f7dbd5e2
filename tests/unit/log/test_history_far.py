"""A chain with a far source: asked last, and for what is damaged at hand."""

from __future__ import annotations

import pyarrow as pa
import pytest

from frazil.errors import CorruptionError, NotFound, Unavailable
from frazil.log.history import Batch, ChainedHistory, Piece
from frazil.model import OffsetRange


class Pinned:
    """A pin that remembers its calls."""

    def __init__(self, offset):
        self.offset = offset
        self.is_open = True

    def advance(self, offset):
        self.offset = offset

    def close(self):
        self.is_open = False


class Held:
    """A source of one range; a record's time is ten times its offset, its value names the source."""

    def __init__(self, name, first, end, *, damaged=(), fails=None):
        self.name = name
        self.held = OffsetRange(first, end)
        self.damaged = damaged
        self.fails = fails
        self.asked = []
        self.pins = []

    def range(self, topic):
        return self.held

    def read(self, topic, *, offset, bytes_max):
        self.asked.append(offset)
        if self.fails is not None:
            raise self.fails
        if not self.held.first <= offset < self.held.end:
            raise NotFound("not here")
        if offset in self.damaged:
            raise CorruptionError("damaged", offset_first=offset, offset_next=offset + 1)
        data = pa.record_batch({"source": [self.name]})
        return Piece([Batch(data, offset=offset, times=((1, offset * 10),))], offset + 1)

    def offset_at(self, topic, *, time_us):
        self.asked.append(time_us)
        offset = max(-(-time_us // 10), self.held.first)
        return offset if offset < self.held.end else None

    def time_at(self, topic, *, offset):
        return offset * 10

    def pin(self, topic, *, offset):
        self.pins.append(Pinned(offset))
        return self.pins[-1]


def source_of(chain, offset):
    piece = chain.read(1, offset=offset, bytes_max=1)
    return piece.batches[0].data.column("source")[0].as_py()


def test_what_is_at_hand_is_never_fetched_from_far():
    """Each offset comes from the first source that has it, from the far one only if none does."""
    far = Held("objects", 0, 30)
    chain = ChainedHistory([Held("disk", 10, 20), Held("log", 20, 40)], far=far)
    found = [source_of(chain, offset) for offset in (0, 9, 10, 19, 20, 39)]
    assert found == ["objects", "objects", "disk", "disk", "log", "log"]
    assert far.asked == [0, 9]
    assert chain.range(1) == OffsetRange(0, 40)


def test_the_range_of_an_empty_neighbourhood_is_that_of_the_far_source():
    """A topic with nothing at hand begins where its objects do, and ends at its head."""
    chain = ChainedHistory([Held("log", 30, 30)], far=Held("objects", 5, 30))
    assert chain.range(1) == OffsetRange(5, 30)
    assert source_of(chain, 5) == "objects"
    assert chain.read(1, offset=30, bytes_max=1) == Piece([], 30)
    empty = ChainedHistory([Held("log", 30, 30)], far=Held("objects", 0, 0))
    assert empty.range(1) == OffsetRange(30, 30)


def test_an_offset_below_all_sources_names_the_first_one_there_is():
    """The error for an offset that is gone names the first offset, be it far or near."""
    chain = ChainedHistory([Held("log", 20, 40)], far=Held("objects", 5, 10))
    with pytest.raises(NotFound, match="offset_first=5"):
        chain.read(1, offset=3, bytes_max=1)
    with pytest.raises(NotFound, match="offset_first=20"):
        chain.read(1, offset=15, bytes_max=1)


def test_damage_at_hand_is_served_from_far():
    """Records that are damaged here but uploaded are given; what is nowhere whole stays an error."""
    near = Held("log", 0, 20, damaged={3, 4, 15})
    far = Held("objects", 0, 10, damaged={4})
    chain = ChainedHistory([near], far=far)
    assert [source_of(chain, offset) for offset in (2, 3, 5)] == ["log", "objects", "log"]
    for offset in (4, 15):
        with pytest.raises(CorruptionError, match=f"offset_first={offset}"):
            chain.read(1, offset=offset, bytes_max=1)


def test_a_store_out_of_reach_is_reported_and_hides_nothing_at_hand():
    """Reads at hand go on while the store is down; far reads say that it is unavailable."""
    down = Held("objects", 0, 30, fails=Unavailable("store is down", retry_after_ms=1_000))
    chain = ChainedHistory([Held("log", 20, 40)], far=down)
    assert source_of(chain, 25) == "log"
    with pytest.raises(Unavailable, match="retry_after_ms=1000"):
        chain.read(1, offset=5, bytes_max=1)


@pytest.mark.parametrize(
    ("time_us", "offset", "asks"),
    [(250, 25, False), (200, 20, True), (45, 5, True), (0, 2, True), (400, None, False)],
)
def test_a_time_is_looked_up_far_only_if_it_may_be_there(time_us, offset, asks):
    """Times within the records at hand do not ask the store; earlier ones do."""
    far = Held("objects", 2, 30)
    chain = ChainedHistory([Held("log", 20, 40)], far=far)
    assert chain.offset_at(1, time_us=time_us) == offset
    assert bool(far.asked) == asks


def test_a_pin_reaches_the_far_source():
    """A reader's claim holds in all sources, moves in all and is let go in all."""
    sources = [Held("log", 20, 40), Held("objects", 0, 30)]
    pin = ChainedHistory(sources[:1], far=sources[1]).pin(1, offset=7)
    pin.advance(9)
    assert [source.pins[0].offset for source in sources] == [9, 9]
    pin.close()
    assert not any(source.pins[0].is_open for source in sources)


def test_the_time_of_a_record_far_away_does_not_ask_for_it():
    """Times of records at hand are exact; far ones come from what is known of them."""
    far = Held("objects", 0, 30)
    chain = ChainedHistory([Held("log", 20, 40, damaged={22})], far=far)
    assert chain.time_at(1, offset=25) == 250
    assert chain.time_at(1, offset=7) == 70
    assert chain.time_at(1, offset=40) is None
    with pytest.raises(CorruptionError):
        chain.time_at(1, offset=22)
    assert far.asked == []
    assert ChainedHistory([Held("log", 20, 40)]).time_at(1, offset=7) is None


def test_what_a_source_claims_and_does_not_find_is_not_gone():
    """Files that move away under a reader, again and again, are no reason to begin further on."""
    moving = Held("disk", 0, 30, fails=NotFound("files are being moved"))
    chain = ChainedHistory([moving, Held("log", 20, 40)])
    with pytest.raises(Unavailable, match="try again"):
        chain.read(1, offset=7, bytes_max=1)
    assert moving.asked == [7, 7]
    assert source_of(chain, 25) == "log"
    moving.held = OffsetRange(0, 5)
    with pytest.raises(NotFound) as met:
        chain.read(1, offset=7, bytes_max=1)
    assert met.value.details["offset_first"] == 20
