"""Moto, Amazon's services in one process, from the package `moto[server]`."""

from __future__ import annotations

import sys

from tests.servers.running import Server, asked, free_port, listens

BUCKET = "frazil-test"

# Moto compares the condition of a put and stores the object in two steps: of two puts of one key
# that it serves at once, both can win. `moto_server` serves each request in a thread of its own;
# this serves one request after the other.
SERVE = """
import sys
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
run_simple("127.0.0.1", int(sys.argv[1]), DomainDispatcherApplication(create_backend_app))
"""


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
        return [sys.executable, "-c", SERVE, str(self.port)]

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
