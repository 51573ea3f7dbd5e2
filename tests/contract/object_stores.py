"""The object stores that one suite runs over: in this process, and as real servers."""

from __future__ import annotations

import contextlib

import pytest

from frazil.config import load_settings
from frazil.objects import open_store
from scripts.azurite import Missing
from tests.servers.azurite import AzuriteServer
from tests.servers.gcs import GcsServer
from tests.servers.moto import MotoServer
from tests.servers.seaweed import SeaweedServer
from tests.support import SimulatedClock
from tests.support.simulated_store import SimulatedStore

SERVERS = {
    "seaweed": SeaweedServer,
    "moto": MotoServer,
    "gcs": GcsServer,
    "azurite": AzuriteServer,
}
KINDS = ("fs", "memory", "simulated", *SERVERS)

NO_MACHINE = {
    "AWS_METADATA_ENDPOINT": "http://127.0.0.1:1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "GCE_METADATA_HOST": "127.0.0.1:1",
}
"""Variables under which no client asks the machine that tests run on for credentials."""


def settings_of(overrides):
    """Return the settings of the objects tier, without the environment."""
    return load_settings(environment={}, overrides=overrides).objects


@contextlib.contextmanager
def server_of(kind, directory):
    """Start a server; skip the test with a printed reason where it cannot be had."""
    try:
        server = SERVERS[kind](directory)
    except Missing as error:
        print(f"{kind} is skipped: {error}")
        pytest.skip(str(error))
    with server.start():
        yield server


def place_of(kind, server, directory, name):
    """Return the overrides of a root of its own, so that tests do not see each other."""
    if kind in {"fs", "memory"}:
        return {"objects.store": kind, "objects.root": str(directory / name)}
    overrides = server.settings()
    return {**overrides, "objects.root": f"{overrides['objects.root']}/{name}"}


def store_of(kind, server, directory, name):
    """Open a store with nothing in it."""
    if kind == "simulated":
        return SimulatedStore(SimulatedClock())
    return open_store(settings_of(place_of(kind, server, directory, name)))
