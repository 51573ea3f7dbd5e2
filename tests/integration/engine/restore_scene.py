"""A broker's engine with an object store, whose machine can be lost and had again."""

from __future__ import annotations

import shutil

from frazil.clock import SystemClock
from frazil.config import load_settings
from frazil.engine import Engine
from frazil.fs import RealFileSystem
from frazil.objects import backup_keys, brokers_in, open_store, restore

SMALL = {
    "log.ballast_bytes": 0,
    "log.free_bytes_min": 0,
    "log.free_ratio_min": 0.0,
    "objects.interval_s": "1h",
}
"""Little data reaches every limit, and nothing is uploaded that no test asks for."""


MARGIN = 1000
"""Offsets that a restore leaves free."""


class Scene:
    """One broker: `engine` is its present life, `store` what outlives its machine."""

    def __init__(self, path, *, opened=True, **settings):
        self.path = path
        self.machine = 0
        path.mkdir(exist_ok=True)
        (path / "store").mkdir(exist_ok=True)
        root = {"objects.store": "fs", "objects.root": str(path / "store")}
        self.overrides = {**SMALL, **root, **settings}
        self.engine = None
        if opened:
            self.open()

    @property
    def directory(self):
        """The data directory of the present machine."""
        return str(self.path / f"machine-{self.machine}")

    @property
    def settings(self):
        """Settings of the present machine."""
        overrides = {**self.overrides, "data_dir": self.directory}
        return load_settings(environment={}, overrides=overrides)

    def store(self):
        """Return the store itself."""
        return open_store(self.settings.objects)

    def open(self):
        """Begin a life on the present machine."""
        self.engine = Engine(self.settings, file_system=RealFileSystem(), clock=SystemClock())
        self.engine.objects.waiting_interval_s = 0.005
        return self.engine

    def close(self):
        """End the present life."""
        if self.engine is not None:
            self.engine.close()
            self.engine = None

    def broker(self):
        """Return the id under which the store has the broker's objects."""
        (found,) = brokers_in(self.store())
        return found

    def forget_backups_since(self, made):
        """End the present life as if no backup had been made since that one, or ever."""
        store = self.store()
        broker = self.engine.log.journal.journal_id
        self.close()
        keys = [found.key for found in backup_keys(store, broker)]
        store.delete(keys[keys.index(made["key"]) + 1 :] if made is not None else keys)

    def lose_machine(self):
        """End the present life with all that its disk had."""
        self.close()
        shutil.rmtree(self.directory)
        self.machine += 1

    def restore(self, **options):
        """Restore the broker on the present, empty machine."""
        store = self.store()
        try:
            return restore(
                store,
                self.directory,
                offset_margin=options.pop("offset_margin", MARGIN),
                settings=self.settings,
                file_system=RealFileSystem(),
                clock=SystemClock(),
                **options,
            )
        finally:
            store.close()

    def lose_and_restore(self, **options):
        """Lose the machine, restore on a new one and open that; return the report."""
        self.lose_machine()
        report = self.restore(**options)
        self.open()
        return report


def restored(report, name):
    """Return what a report says of one topic."""
    (found,) = [topic for topic in report["topics"] if topic["name"] == f"/default/{name}"]
    return found
