"""The emulator of Google Cloud Storage, from the package `gcp-storage-emulator`."""

from __future__ import annotations

from tests.servers.running import Server, free_ports, listens, program

BUCKET = "frazil-test"


class GcsServer(Server):
    """One bucket, in the server's directory; nobody is asked who he is."""

    name = "gcs"

    def __init__(self, directory):
        super().__init__(directory)
        [self.port] = free_ports(1)

    @property
    def endpoint(self):
        """The URL that clients ask."""
        return f"http://127.0.0.1:{self.port}"

    def command(self):
        return [
            *(program("gcp-storage-emulator"), "--data-dir", str(self.directory / "data")),
            *("start", "--host", "127.0.0.1", "--port", str(self.port)),
            *("--default-bucket", BUCKET),
        ]

    def is_ready(self):
        return listens(self.port)

    def settings(self, **changes):
        """Return overrides for `load_settings` that use this server."""
        return {
            "objects.store": "gcs",
            "objects.root": f"gcs://{BUCKET}/root",
            "objects.gcs.endpoint": self.endpoint,
            "objects.gcs.anonymous": True,
            "objects.gcs.allow_http": True,
            **changes,
        }
