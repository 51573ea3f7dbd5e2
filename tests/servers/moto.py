"""Moto, Amazon's services in one process, from the package `moto[server]`."""

from __future__ import annotations

from tests.servers.running import Server, asked, free_port, listens, program

BUCKET = "frazil-test"


class MotoServer(Server):
    """S3 and STS in memory: what it holds is gone with the process."""

    name = "moto"

    def __init__(self, directory):
        super().__init__(directory)
        self.port = free_port()

    @property
    def endpoint(self):
        """The URL that clients ask."""
        return f"http://127.0.0.1:{self.port}"

    def command(self):
        return [program("moto_server"), "-H", "127.0.0.1", "-p", str(self.port)]

    def is_ready(self):
        return listens(self.port) and asked(self.port, "PUT", f"/{BUCKET}")[0] == 200

    def settings(self, **changes):
        """Return overrides for `load_settings` that use this server."""
        return {
            "objects.store": "s3",
            "objects.root": f"s3://{BUCKET}/root",
            "objects.endpoint": self.endpoint,
            "objects.access_key": "any",
            "objects.secret_key": "any",
            "objects.allow_http": True,
            **changes,
        }
