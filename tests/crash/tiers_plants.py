"""Bugs of the tiers, to be planted: each function takes monkeypatch and changes one thing."""

from __future__ import annotations

import numpy as np

from frazil.model import OP_DELETE
from frazil.tiers import (
    OP_MASK,
    DeletionVectors,
    DiskDirectory,
    DiskTier,
    KeyedState,
    KeyIndex,
    SetWriter,
    Tiers,
    TopicTiers,
    topic_tiers,
)
from frazil.topic import TopicChanges
from tests.support.simulated_fs import SimulatedFile


def registered_before_fsync(monkeypatch):
    """The files of a set are never synced."""
    honest = SimulatedFile.sync

    def sync(self):
        if "/disk/" not in self._path:
            honest(self)

    monkeypatch.setattr(SimulatedFile, "sync", sync)


def directory_not_synced(monkeypatch):
    """The names of files are not durable when they are registered."""
    monkeypatch.setattr(DiskDirectory, "_sync", lambda self, path: None)


def released_before_registration(monkeypatch):
    """The log lets records go that are not in registered files yet."""
    honest = Tiers.note_flushed

    def note_flushed(self, topic, end):
        honest(self, topic, max(end, topic.state.durable))
        self._engine.release(topic.id, topic.state.durable + 16)

    monkeypatch.setattr(Tiers, "note_flushed", note_flushed)


def evicted_above_flushed(monkeypatch):
    """Memory lets records go that no file has."""

    def evict(self, *, before_us):
        del before_us
        return self.memory.evict(self.state.durable)

    monkeypatch.setattr(TopicTiers, "evict", evict)


def merged_without_replacing(monkeypatch):
    """The files that a merge has read stay registered beside the new one."""
    honest = DiskTier.swap

    def swap(self, picture, marks, *, add=(), remove=()):
        honest(self, picture, marks, add=add, remove=() if add else remove)

    monkeypatch.setattr(DiskTier, "swap", swap)


def unlinked_before_registration(monkeypatch):
    """A merge removes the old files before the new one is registered."""
    honest = SetWriter.commit

    def commit(self, replaces=()):
        for file in replaces:
            self._tier.directory.remove(file.topic, file.name)
        return honest(self, replaces)

    monkeypatch.setattr(SetWriter, "commit", commit)


def deletes_not_folded(monkeypatch):
    """A delete leaves the row that it deletes alive."""
    honest = KeyedState._supersede

    def supersede(self, old, codes):
        pairs = [(a, b) for a, b in zip(old, codes, strict=True) if b & OP_MASK != OP_DELETE]
        honest(self, [pair[0] for pair in pairs], [pair[1] for pair in pairs])

    monkeypatch.setattr(KeyedState, "_supersede", supersede)


def miss_means_absent(monkeypatch):
    """A key that the index has forgotten passes for one that never was."""
    honest = KeyIndex.shrink

    def shrink(self):
        keyed = owners.get(id(self))
        honest(self)
        if keyed is not None:
            keyed.complete = True

    owners = {}
    begin = KeyedState._begin

    def remember(self):
        begin(self)
        owners[id(self.index)] = self

    monkeypatch.setattr(KeyedState, "_begin", remember)
    monkeypatch.setattr(KeyIndex, "shrink", shrink)


def index_stale_after_eviction(monkeypatch):
    """What supersedes rows of evicted chunks is forgotten with the chunks."""
    monkeypatch.setattr(DeletionVectors, "evicted", lambda self, chunks: None)


def marks_not_computed(monkeypatch):
    """After a crash nobody computes which rows in files are superseded."""

    def rebuild(self, rows):
        del self, rows

    monkeypatch.setattr(KeyedState, "rebuild_disk_dead", rebuild)


def loaded_beyond_the_start(monkeypatch):
    """After a restart records are loaded that the journal has handed over already."""
    honest = TopicTiers.__init__

    def init(self, tiers, runtime):
        honest(self, tiers, runtime)
        self._load_end += 2

    monkeypatch.setattr(TopicTiers, "__init__", init)


def base_ignored(monkeypatch):
    """A partial update does not look at what its key is."""
    honest = TopicChanges._resolved

    def resolved(self, steps, images):
        blank = {key: image._replace(values=None, stored=None) for key, image in images.items()}
        return honest(self, steps, blank)

    monkeypatch.setattr(TopicChanges, "_resolved", resolved)


def rows_of_other_columns(monkeypatch):
    """Chunks of older columns are written to files as if they were of the current ones."""
    honest = topic_tiers.TopicTiers.convert

    def convert(self, version, batch, columns):
        found = honest(self, version, batch, columns)
        if version == columns.version or not found.num_rows:
            return found
        return found.take(np.arange(found.num_rows)[::-1].copy())

    monkeypatch.setattr(TopicTiers, "convert", convert)


PLANTS = {
    registered_before_fsync: 0,
    directory_not_synced: 0,
    released_before_registration: 8,
    evicted_above_flushed: 0,
    merged_without_replacing: 4,
    unlinked_before_registration: 1,
    deletes_not_folded: 0,
    miss_means_absent: 4,
    index_stale_after_eviction: 0,
    marks_not_computed: 0,
    loaded_beyond_the_start: 0,
    base_ignored: 0,
    rows_of_other_columns: 0,
}
"""Each with the seed to begin with: one that finds it soon."""
