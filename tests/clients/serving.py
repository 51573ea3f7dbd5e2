"""Brokers for clients of other languages: `frazil serve` on ports that it gets again."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import ssl
import urllib.error
import urllib.request
from pathlib import Path

from frazil.clock import SystemClock
from tests.crash.broker_process import Broker
from tests.unit.serve.auth.world import ISSUER, SECRET, token

MESSAGE_BYTES_MAX = 1 << 20
SETTINGS = {
    "log.ballast_bytes": 0,
    "log.free_bytes_min": 0,
    "log.free_ratio_min": 0,
    "lake.default": "false",
    "topics.message_bytes_max": MESSAGE_BYTES_MAX,
}
ACCESS = """
roles:
  app: [{actions: [produce, consume], namespace: default, topics: [orders, "orders-*"]}]
principals:
  user:app: [app]
"""


def cache_directory():
    """Return where compiled programs are kept from run to run."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "frazil-clients"


def lasting_ports(count):
    """Return free ports that no connection of a client gets while a broker is away."""
    found = set()
    while len(found) < count:
        # Not from a seed: tests that run beside each other must not choose the same.
        port = random.SystemRandom().randrange(10_000, 30_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            found.add(port)
    return sorted(found)


class Serving(Broker):
    """A broker as it is installed, with or without TLS; settings have `__` for the dot."""

    def __init__(self, directory, **settings):
        super().__init__(directory)
        pairs = {key.replace("__", "."): value for key, value in settings.items()}
        self.settings = {**SETTINGS, **pairs}
        self.port, self.admin_port, self.http_port = lasting_ports(3)
        self.context = None
        self.scheme = "https" if "serve.tls_key_file" in pairs else "http"
        self.url = f"{self.scheme}://127.0.0.1:{self.port}"

    def is_ready(self):
        """Whether the broker says that it is, whatever its certificate."""
        page = f"{self.scheme}://127.0.0.1:{self.http_port}/readyz"
        try:
            with urllib.request.urlopen(page, timeout=60, context=self.context) as answer:
                return answer.status == 200
        except urllib.error.HTTPError as error:
            error.close()
            return False
        except OSError:
            return False

    def __enter__(self):
        self.start()
        self.wait_ready()
        return self

    def __exit__(self, *failure):
        self.close()

    def end_and_begin(self, number):
        """End the process by a signal, and start the next one in its place."""
        if number == signal.SIGKILL:
            self.kill()
        else:
            assert self.stop() == 0, self.last_words()
        self.start()
        self.wait_ready()


def protected(directory, authority, **settings):
    """Return a broker that asks for tokens over TLS."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in (("access.yaml", ACCESS), ("secrets", SECRET)):
        (directory / name).touch(0o600)
        (directory / name).write_text(text)
    certificate, key = authority.issue("localhost")
    found = Serving(
        directory,
        serve__tls_certificate_file=certificate,
        serve__tls_key_file=key,
        auth__enabled="true",
        auth__access_file=directory / "access.yaml",
        auth__jwt_secret_file=directory / "secrets",
        auth__jwt_issuer=ISSUER,
        **settings,
    )
    found.context = ssl.create_default_context(cafile=authority.certificate)
    found.context.load_cert_chain(certificate, key)
    return found


def tokens():
    """Return tokens: one with a grant, one without, one that is over."""
    clock = SystemClock()
    headers = {
        "token": token("app", clock),
        "stranger": token("stranger", clock),
        "expired": token("app", clock, lives_s=-3600),
    }
    return {name: header.removeprefix("Bearer ") for name, header in headers.items()}
