"""Bugs of the commit protocol, to be planted: each function takes monkeypatch and changes one thing."""

from __future__ import annotations

import msgspec

from frazil.errors import CommitUnknown, Unavailable
from frazil.lake import commit as module
from frazil.lake import ends_of, watermark
from frazil.lake.commit import CommitAttempt
from tests.crash.lake_table import IcebergTable
from tests.crash.lake_world import World


def marker_only_in_the_summary(monkeypatch):
    """Where others expired the summaries, the table counts as empty."""
    honest = watermark.watermarks

    def watermarks(view, remembered):
        if view.summary_ends is None and view.sid is not None:
            return {}, False
        return honest(view, remembered)

    for where in (watermark, module):
        monkeypatch.setattr(where, "watermarks", watermarks)


def no_fence(monkeypatch):
    """The snapshot is that of the moment of the write, not that of the watermark."""
    honest = CommitAttempt._append

    def append(self, table, rows, sid, summary):
        return honest(self, table, rows, self._tables.load(table).sid, summary)

    monkeypatch.setattr(CommitAttempt, "_append", append)


def cleaned_up_after_an_unknown_outcome(monkeypatch):
    """The file of a write without a reply is removed."""
    honest = CommitAttempt._failed

    def failed(self, error):
        if isinstance(error, (CommitUnknown, Unavailable)):
            self._tables.discard()
        honest(self, error)

    monkeypatch.setattr(CommitAttempt, "_failed", failed)


def watermark_moved_before_the_commit(monkeypatch):
    """A snapshot with the new watermark comes first, the rows with the next."""
    honest = CommitAttempt._append

    def append(self, table, rows, sid, summary):
        sid = honest(self, table, [], sid, summary)
        return None if sid is None else honest(self, table, rows, sid, summary)

    monkeypatch.setattr(CommitAttempt, "_append", append)


def rejects_after_main(monkeypatch):
    """Main is committed before the side table."""

    def commit_main(self, view, decision, verdict):
        result = honest_main(self, view, decision, verdict)
        if result is not None and verdict.rows_rejected:
            while honest_rejects(self, decision, verdict) is None:
                pass
        return result

    honest_main, honest_rejects = CommitAttempt._commit_main, CommitAttempt._commit_rejects
    monkeypatch.setattr(CommitAttempt, "_commit_main", commit_main)
    monkeypatch.setattr(CommitAttempt, "_commit_rejects", lambda *_args: True)


def unknown_taken_for_done(monkeypatch):
    """A write without a reply counts as a commit."""
    honest = CommitAttempt._append

    def append(self, table, rows, sid, summary):
        try:
            return self._tables.cas_append(table, rows, sid=sid, summary=summary)
        except CommitUnknown:
            return sid or 0
        except Unavailable:
            return honest(self, table, rows, sid, summary)

    monkeypatch.setattr(CommitAttempt, "_append", append)


def whole_files_moved_again(monkeypatch):
    """A table in the middle of a range gets all of the range."""
    honest = watermark.decide

    def decide(table, view, known, ranges=()):
        decision = honest(table, view, known, ranges)
        starts = {each.part: each.lo for each in ranges if each.part in decision.starts}
        rows = watermark.rows_between(ranges, starts)
        return msgspec.structs.replace(decision, starts=starts, rows=rows)

    monkeypatch.setattr(module, "decide", decide)


def side_table_without_a_watermark(monkeypatch):
    """All rejects of a batch are appended, also those that are there."""
    monkeypatch.setattr(module, "watermarks", lambda _view, _remembered: ({}, True))


def other_parts_left_out_of_the_summary(monkeypatch):
    """A summary has the ends of its own plan's parts alone, and the newest counts alone."""
    honest = CommitAttempt._summary

    def summary(self, ends, verdict):
        own = {each.part for each in self._plan.parts}
        return honest(self, {part: end for part, end in ends.items() if part in own}, verdict)

    monkeypatch.setattr(CommitAttempt, "_summary", summary)


def newest_summary_counts(monkeypatch):
    """Of the summaries the newest counts, not the highest: a late one may lie above it."""

    def ends(self):
        return next((ends for each in self.line() if (ends := ends_of(each.summary))), None)

    monkeypatch.setattr(IcebergTable, "ends", ends)


def committed_before_the_result(monkeypatch):
    """The engine takes a plan for committed when it is sent."""
    honest = World.do_dispatch

    def do_dispatch(self):
        honest(self)
        if self.worker is not None and self.plan is not None:
            self.committed |= {each.part: each.hi for each in self.plan.parts}
            self._remember()

    monkeypatch.setattr(World, "do_dispatch", do_dispatch)


PLANTS = (
    marker_only_in_the_summary,
    no_fence,
    cleaned_up_after_an_unknown_outcome,
    watermark_moved_before_the_commit,
    rejects_after_main,
    unknown_taken_for_done,
    whole_files_moved_again,
    side_table_without_a_watermark,
    other_parts_left_out_of_the_summary,
    newest_summary_counts,
    committed_before_the_result,
)
