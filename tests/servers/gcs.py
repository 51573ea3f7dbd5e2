"""The emulator of Google Cloud Storage, from the package `gcp-storage-emulator`."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.servers.running import Server, free_port, listens

ROOT = Path(__file__).resolve().parents[2]

BUCKET = "frazil-test"


class GcsServer(Server):
    """One bucket, in the server's directory; nobody is asked who he is.

    The XML interface that clients use is in front of the emulator's storage: see `gcs_xml`.
    """

    name = "gcs"

    def __init__(self, directory):
        super().__init__(directory)
        self.port = free_port()

    @property
    def endpoint(self):
        """The URL that clients ask."""
        return f"http://127.0.0.1:{self.port}"

    def command(self):
        data = str((self.directory / "data").resolve())
        return [sys.executable, "-m", "tests.servers.gcs_xml", data, str(self.port), BUCKET]

    def environment(self):
        return {**super().environment(), "PYTHONPATH": str(ROOT)}

    def is_ready(self):
        return listens(self.port)

    def settings(self, **changes):
        """Return overrides for `load_settings` that use this server."""
        return {
            "objects.store": "gcs",
            "objects.root": f"gcs://{BUCKET}/root",
            "objects.endpoint": self.endpoint,
            "objects.credentials": "none",
            "objects.allow_http": True,
            **changes,
        }
