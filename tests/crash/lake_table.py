"""A table as Iceberg keeps it, in memory: snapshots, files, properties, and what others do to it.

Rows are `(part, offset, ours)`. A conditional append fails as Iceberg's does: if a snapshot since
the given one added files, or if that one is not among the ancestors. Snapshots that add nothing,
compactions and merge-on-read deletes are no conflict.
"""

from __future__ import annotations

from typing import NamedTuple

from frazil.errors import Conflict
from frazil.lake import TOPIC_ID, RejectRatio, Snapshot, TableMetadata, TableState, ends_of

COMMITS_COUNTED = 50
"""What one commit counts for the age of the property: the third is already too old."""


class Broken(AssertionError):
    """A promise of the protocol does not hold."""


class Kept(NamedTuple):
    sid: int
    parent: int | None
    operation: str
    summary: dict
    added: tuple
    live: tuple
    deleted: frozenset = frozenset()


class IcebergTable:
    """One table: metadata, and the storage that holds its files."""

    def __init__(self, topic_id, ids):
        self.ids = ids
        self.properties = {TOPIC_ID: topic_id}
        self.snapshots = {}
        self.head = None
        self.files = {}
        self.history = []
        self.highest = {}
        self.inverted = False
        """A mark below an older one has landed: harmless where it has no rows, but it looks odd."""

    # -- reading --

    def line(self):
        """Give the snapshots of main, newest first, as far as they exist."""
        sid = self.head
        while sid in self.snapshots:
            yield self.snapshots[sid]
            sid = self.snapshots[sid].parent

    def rows(self):
        """Return the live rows of main as (file, row)."""
        if self.head is None:
            return []
        head = self.snapshots[self.head]
        return [
            (file, row)
            for file in head.live
            for row in self._content(file)
            if (file, row) not in head.deleted
        ]

    def _content(self, file):
        if file not in self.files:
            raise Broken(f"file {file} is referenced and gone")
        return self.files[file]

    def ours(self):
        """Return part and offset of our live rows."""
        return [(part, offset) for _file, (part, offset, ours) in self.rows() if ours]

    def ends(self):
        """Return the highest marks along main, None if no summary has any."""
        found = {}
        for snapshot in self.line():
            for part, end in ends_of(snapshot.summary).items():
                found[part] = max(end, found.get(part, 0))
        return found or None

    def highest_expired(self):
        """Tell whether a lower mark landed late and the higher one below it has been expired."""
        marks = [ends_of(each.summary) for each in self.line()]
        return self.inverted and any(
            all(each.get(part, 0) < end for each in marks) for part, end in self.highest.items()
        )

    def view(self):
        ends = self.ends()
        property_ends = ends_of(self.properties)
        bounds = {}
        if ends is None and self.head is not None:
            # Bounds are those of whole files: deleted rows still count until they are rewritten.
            for file in self.snapshots[self.head].live:
                for part, offset, _ours in self._content(file):
                    bounds[part] = max(offset + 1, bounds.get(part, 0))
        since = 0
        for snapshot in self.line():
            if property_ends and ends_of(snapshot.summary) == property_ends:
                break
            since += 1
        counts = [Snapshot(0, summary=each.summary) for each in self.line()]
        recent = RejectRatio(
            sum(each.number("frazil.rows-in") for each in counts),
            sum(each.number("frazil.rows-rejected") for each in counts),
        )
        return TableState(
            sid=self.head,
            topic_id=self.properties.get(TOPIC_ID),
            schema_version=None,
            summary_ends=ends,
            property_ends=property_ends,
            bound_ends=bounds,
            recent=recent,
            commits_since_property=COMMITS_COUNTED * since,
            snapshots=len(self.snapshots),
        )

    def metadata(self):
        """Return the metadata as expiry reads it, snapshots oldest first."""
        return TableMetadata(
            location="",
            current_snapshot_id=self.head,
            snapshots=[
                Snapshot(each.sid, each.parent, summary=each.summary)
                for each in self.snapshots.values()
            ],
        )

    # -- writing, ours --

    def write_file(self, rows):
        """Put a file into storage; nobody references it yet."""
        file = next(self.ids)
        self.files[file] = tuple(rows)
        return file

    def land(self, files, *, sid, summary):
        """Append files if nothing was added since `sid`."""
        self._validate(sid)
        ends = ends_of(summary)
        if any(ends.get(part, 0) < end for part, end in self.highest.items()):
            self.inverted = True
        self.highest |= {part: max(end, self.highest.get(part, 0)) for part, end in ends.items()}
        added = tuple(file for file in files if self.files.get(file, True))
        operation = "append" if added else "overwrite"
        return self._snapshot(operation, added, self._live() + added, self._deleted(), summary)

    def _validate(self, sid):
        for snapshot in self.line():
            if snapshot.sid == sid:
                return
            if snapshot.operation != "replace" and snapshot.added:
                raise Conflict("found conflicting files", snapshot=snapshot.sid)
            if snapshot.parent is None and sid is None:
                return
        if sid is not None or self.head is not None:
            raise Conflict("cannot determine history", sid=sid)

    def _live(self):
        return () if self.head is None else self.snapshots[self.head].live

    def _deleted(self):
        return frozenset() if self.head is None else self.snapshots[self.head].deleted

    def _snapshot(self, operation, added, live, deleted, summary=None):
        sid = next(self.ids)
        self.snapshots[sid] = Kept(
            sid, self.head, operation, dict(summary or {}), added, live, deleted
        )
        self.head = sid
        self.history.append((operation, sid, dict(summary or {})))
        return sid

    # -- what others do --

    def compact(self):
        """Write all live rows into one file; the summary has no mark."""
        if self._live():
            file = self.write_file([row for _file, row in self.rows()])
            self._snapshot("replace", (file,), (file,), frozenset())

    def append_foreign(self, part):
        file = self.write_file([(part, -1, False)])
        self._snapshot("append", (file,), (*self._live(), file), self._deleted())

    def delete_rows(self, random):
        """Delete some rows, by deletes of their own or by writing files anew; return ours."""
        rows = self.rows()
        if not rows:
            return []
        gone = random.sample(rows, random.randint(1, min(3, len(rows))))
        if random.random() < 0.3:
            gone = rows[-len(gone) :]
        if random.random() < 0.5:
            self._snapshot("delete", (), self._live(), self._deleted() | set(gone))
        else:
            touched = {file for file, _row in gone}
            kept = [row for file, row in rows if file in touched and (file, row) not in gone]
            new = (self.write_file(kept),) if kept else ()
            live = tuple(file for file in self._live() if file not in touched) + new
            deleted = frozenset(each for each in self._deleted() if each[0] not in touched)
            self._snapshot("overwrite", new, live, deleted)
        return [(part, offset) for _file, (part, offset, ours) in gone if ours]

    def expire(self, sids):
        """Drop snapshots, and the files that no other has."""
        before = {file for each in self.snapshots.values() for file in each.live}
        for sid in sids:
            if sid != self.head:
                self.snapshots.pop(sid, None)
        after = {file for each in self.snapshots.values() for file in each.live}
        for file in before - after:
            self.files.pop(file, None)

    def expire_all(self):
        self.expire(list(self.snapshots))

    def roll_back(self, sid):
        """Set main to one of its ancestors; return our rows that are gone by it."""
        before = set(self.ours())
        self.head = sid
        self.history.append(("rollback", sid, {}))
        return before - set(self.ours())

    # -- checking --

    def check_files(self):
        """Every file that a snapshot references exists."""
        for snapshot in self.snapshots.values():
            for file in snapshot.live:
                self._content(file)
