"""Azurite, the emulator of Azure's blob storage, from npm where node is installed."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import hmac

from scripts.azurite import find
from tests.servers.running import Server, asked, free_port, listens

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account that every Azurite has, with the key that its documentation prints."""
CONTAINER = "frazil-test"


class AzuriteServer(Server):
    """The blob service alone, with one container.

    Raises `scripts.azurite.Missing` when it is made where there is no Azurite.
    """

    name = "azurite"

    def __init__(self, directory):
        super().__init__(directory)
        self._program = find()
        self.port = free_port()

    @property
    def endpoint(self):
        """The URL that clients ask, with the account."""
        return f"http://127.0.0.1:{self.port}/{ACCOUNT}"

    def command(self):
        return [
            *(*self._program, "--location", str(self.directory / "data"), "--silent"),
            *("--blobHost", "127.0.0.1", "--blobPort", str(self.port)),
            *("--skipApiVersionCheck", "--disableTelemetry"),
        ]

    def is_ready(self):
        return listens(self.port) and self._make_container() in {201, 409}

    def _make_container(self):
        """Ask for the container, signed by hand: no client of Azure is installed."""
        path = f"/{ACCOUNT}/{CONTAINER}"
        now = dt.datetime.now(dt.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        headers = {"x-ms-date": now, "x-ms-version": "2021-08-06"}
        named = "".join(f"{name}:{value}\n" for name, value in headers.items())
        signed = "PUT" + "\n" * 12 + named + f"/{ACCOUNT}{path}\nrestype:container"
        mac = hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(mac).decode()}"
        headers["Content-Length"] = "0"
        return asked(self.port, "PUT", f"{path}?restype=container", headers)[0]

    def settings(self, **changes):
        """Return overrides for `load_settings` that use this server."""
        return {
            "objects.store": "azblob",
            "objects.root": f"azblob://{CONTAINER}/root",
            "objects.endpoint": self.endpoint,
            "objects.account_name": ACCOUNT,
            "objects.account_key": KEY,
            "objects.allow_http": True,
            **changes,
        }
