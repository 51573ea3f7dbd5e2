"""Expiry keeps metadata small and never gives up the snapshots that tell the watermark."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from frazil.lake.expiry import METADATA_BYTES_MAX, SNAPSHOTS_MAX, expirable
from frazil.lake.iceberg import Reference, Snapshot, TableMetadata
from frazil.lake.table import end_key


def snapshot(sid, parent, ends):
    summary = {end_key(part): str(end) for part, end in (ends or {}).items()}
    return Snapshot(sid, parent, summary=summary)


def chain(*ends):
    """A line of snapshots 1, 2, ... with these watermarks; None for one without."""
    return [snapshot(number, number - 1 or None, each) for number, each in enumerate(ends, start=1)]


def expired(facts, current, metadata_bytes, refs=(), **limits):
    """Return what expiry removes from a table with these snapshots."""
    found = TableMetadata(
        location="",
        current_snapshot_id=current,
        snapshots=facts,
        refs={str(sid): Reference(sid) for sid in refs},
    )
    return expirable(found, metadata_bytes=metadata_bytes, **limits)


def left(facts, gone):
    return [each.snapshot_id for each in facts if each.snapshot_id not in gone]


def marks(facts, current):
    """The watermark as a look finds it: from child to parent."""
    by_sid = {each.snapshot_id: each for each in facts}
    found = {}
    while current in by_sid:
        for part, end in by_sid[current].ends.items():
            found[part] = max(end, found.get(part, 0))
        current = by_sid[current].parent_snapshot_id
    return found


def test_a_small_table_keeps_all():
    """At the limits nothing goes."""
    facts = chain(*({-1: n} for n in range(SNAPSHOTS_MAX)))
    gone = expired(facts, current=SNAPSHOTS_MAX, metadata_bytes=METADATA_BYTES_MAX)
    assert gone == []


def test_too_many_snapshots_leave_half_of_the_limit():
    """Above 500 snapshots the newest 250 stay."""
    facts = chain(*({-1: n} for n in range(SNAPSHOTS_MAX + 1)))
    gone = expired(facts, current=501, metadata_bytes=1000)
    assert left(facts, gone) == list(range(252, 502))


def test_too_much_metadata_leaves_half_a_megabyte():
    """Above 1 MB so many stay that about half of it is left, at least 20."""
    facts = chain(*({-1: n} for n in range(100)))
    assert len(left(facts, expired(facts, current=100, metadata_bytes=2 << 20))) == 25
    assert len(left(facts, expired(facts, current=100, metadata_bytes=64 << 20))) == 20


def test_the_mark_stays_reachable_below_foreign_snapshots():
    """The newest snapshot with a mark stays, and all above it, through which it is found."""
    facts = chain({-1: 5}, {-1: 9}, *[None] * 600)
    gone = expired(facts, current=602, metadata_bytes=0)
    assert gone == [1]
    assert marks([each for each in facts if each.snapshot_id not in gone], 602) == {-1: 9}


def test_heads_of_branches_and_tags_stay():
    """A referenced snapshot stays, a rolled-back line that nobody references goes first."""
    facts = [*chain(*({-1: n} for n in range(600))), snapshot(700, 3, None)]
    gone = expired(facts, current=600, refs=[2], metadata_bytes=0)
    assert 2 not in gone
    assert {700, 1, 3} <= set(gone)


@given(
    ends=st.lists(
        st.none() | st.dictionaries(st.integers(0, 2), st.integers(0, 99), max_size=3),
        min_size=1,
        max_size=60,
    ),
    limit=st.integers(0, 20),
    least=st.integers(1, 5),
    size=st.integers(0, 4 << 20),
)
def test_expiry_never_changes_the_watermark(ends, limit, least, size):
    """Whatever is expired, a look finds the same marks, and the current snapshot is there."""
    facts = chain(*ends)
    gone = expired(
        facts, current=len(facts), metadata_bytes=size, snapshots_max=limit, snapshots_min=least
    )
    rest = [each for each in facts if each.snapshot_id not in gone]
    assert marks(rest, len(facts)) == marks(facts, len(facts))
    assert len(facts) not in gone
