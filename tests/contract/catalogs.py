"""Catalogs that the behaviour suite runs against: each knows how clients reach it.

A catalog to come joins by a class with the same attributes and a parameter of the fixture.
"""

from __future__ import annotations

import itertools
import threading

import requests
from pyiceberg.catalog.rest import RestCatalog

from frazil.clock import SystemClock
from frazil.lake.catalog import CatalogProcess
from frazil.lake.catalog.process import CatalogOptions

_numbers = itertools.count(1)


class Http:
    """Plain requests to a catalog, with its token."""

    def __init__(self, uri, token):
        self.uri = uri
        self.session = requests.Session()
        if token is not None:
            self.session.headers["Authorization"] = f"Bearer {token}"

    def __call__(self, method, path, **given):
        return self.session.request(method, f"{self.uri}/v1/{path}", timeout=60, **given)

    def table(self, namespace, name, **more):
        """Create a table with one column and return the answer."""
        fields = [{"id": 1, "name": "a", "required": False, "type": "long"}]
        body = {"name": name, "schema": {"type": "struct", "fields": fields}, **more}
        return self("POST", f"namespaces/{namespace}/tables", json=body)

    def commit(self, namespace, name, *updates, requires=()):
        """Commit updates and return the answer."""
        body = {"requirements": list(requires), "updates": list(updates)}
        return self("POST", f"namespaces/{namespace}/tables/{name}", json=body)


class EmbeddedCatalog:
    """Frazil's own catalog in its child process."""

    def __init__(self, directory, **options):
        self.directory = directory
        self.process = CatalogProcess(
            CatalogOptions(
                run_directory=str(directory / "run"),
                port=0,
                log_path=str(directory / "catalog.log"),
                db=str(directory / "catalog.db"),
                warehouse=str(directory / "warehouse"),
                **options,
            ),
            clock=SystemClock(),
        )
        self._local = threading.local()

    def __enter__(self):
        self.process.start()
        return self

    def __exit__(self, *failure):
        self.process.stop()

    @property
    def address(self):
        return self.process.wait_ready()

    @property
    def warehouse(self):
        return self.address.warehouse

    def pyiceberg(self, **properties):
        """Return a new PyIceberg catalog."""
        address = self.address
        return RestCatalog("it", uri=address.uri, token=address.token, **properties)

    @property
    def http(self):
        """Return plain requests, one session a thread."""
        address = self.address
        if getattr(self._local, "http", None) is None or self._local.http.uri != address.uri:
            self._local.http = Http(address.uri, address.token)
        return self._local.http

    def namespace(self):
        """Make a namespace that no other test has."""
        name = f"ns{next(_numbers)}"
        assert self.http("POST", "namespaces", json={"namespace": [name]}).status_code == 200
        return name
