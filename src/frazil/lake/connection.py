"""The connection to the catalog: its address, its calls and its errors.

PyIceberg makes the calls. This module adds a time limit on every call, the raw metadata of the
answer (PyIceberg's model takes 50 ms for a table of 500 snapshots), and Frazil's errors.
"""

from __future__ import annotations

import contextlib
import errno
import functools
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec
import pydantic
import requests
from pyiceberg import exceptions as theirs
from pyiceberg.catalog.rest import Endpoints, RestCatalog
from requests.adapters import HTTPAdapter

from frazil.errors import (
    CommitUnknown,
    Conflict,
    FrazilError,
    InvalidRequest,
    NotFound,
    Unavailable,
)
from frazil.lake.catalog.address import CatalogAddress
from frazil.struct_types import learnt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyiceberg.catalog import Catalog

    from frazil.lake.plan import TableName

__all__ = ["CatalogAddress", "Loaded", "calls", "connect", "load"]

TIMEOUT_SECONDS: Final = 30.0
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})


class Loaded(msgspec.Struct, frozen=True):
    """A table's metadata as JSON, all of one moment, and the settings of its files' storage."""

    metadata: bytes
    config: dict[str, str] = {}
    location: str = ""
    """The location of the metadata's own file; empty if the catalog did not send it."""


class _Response(msgspec.Struct, frozen=True, rename="kebab"):
    metadata: msgspec.Raw
    config: dict[str, str] = {}
    metadata_location: str | None = None


class _LimitedAdapter(HTTPAdapter):
    """Sets a time limit for every request: without one a hanging catalog stops its caller."""

    def __init__(self, timeout_seconds: float) -> None:
        self._timeout_seconds = timeout_seconds
        super().__init__()

    def send(self, *args: Any, **options: Any) -> requests.Response:
        if options.get("timeout") is None:
            options["timeout"] = self._timeout_seconds
        return super().send(*args, **options)


class RestTables(RestCatalog):
    """PyIceberg's REST catalog, with a time limit and the raw metadata."""

    def __init__(self, address: CatalogAddress, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._timeout_seconds = timeout_seconds
        super().__init__("frazil", uri=address.uri, token=address.token)

    def _create_session(self) -> requests.Session:
        session = super()._create_session()
        for scheme in ("http://", "https://"):
            session.mount(scheme, _LimitedAdapter(self._timeout_seconds))
        if urlsplit(self.uri).hostname in _LOOPBACK:
            # The machine's proxy cannot reach services on the loopback address.
            session.trust_env = False
        return session

    def load_raw(self, table: TableName) -> Loaded:
        """Return a table's metadata as the catalog sent it."""
        path = self._split_identifier_for_path(tuple(table))
        response = self._session.get(self.url(Endpoints.load_table, prefixed=True, **path))
        if response.status_code == 404:
            raise theirs.NoSuchTableError(str(table))
        if response.status_code != 200:
            # PyIceberg converts the answer to its error.
            self.load_table(tuple(table))
            raise theirs.ServerError(f"status {response.status_code}")
        found = msgspec.json.decode(response.content, type=learnt(_Response))
        return Loaded(bytes(found.metadata), found.config, found.metadata_location or "")


def connect(address: CatalogAddress, *, timeout_seconds: float = TIMEOUT_SECONDS) -> Catalog:
    """Return a catalog that has answered once.

    Raises:
        InvalidRequest: the address or the token is wrong; the message names the setting.
        Unavailable: nothing answers there.
    """
    parts = urlsplit(address.uri)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise InvalidRequest("catalog address is no http address, correct its uri", uri=address.uri)
    with calls("connect", uri=address.uri):
        return RestTables(address, timeout_seconds)


def load(catalog: Catalog, table: TableName) -> Loaded:
    """Read a table's metadata once.

    Raises:
        NotFound: there is no such table.
        Unavailable: the catalog cannot be reached.
    """
    with calls("load table", table=table):
        if isinstance(catalog, RestTables):
            return catalog.load_raw(table)
        found = catalog.load_table(tuple(table))
        raw = found.metadata.model_dump_json().encode()
        return Loaded(raw, dict(found.config), found.metadata_location)


@contextlib.contextmanager
def calls(action: str, *, writes: bool = False, **facts: object) -> Iterator[None]:
    """Convert the errors of a catalog or its storage to Frazil's errors.

    With `writes` the outcome of a broken connection is unknown: `CommitUnknown`.
    """
    try:
        yield
    except (
        requests.RequestException,
        theirs.RESTError,
        OSError,
        *_REFUSALS,
        *_UNREADABLE,
    ) as error:
        raise _meaning(error, writes=writes)(action=action, reason=error, **facts) from error


_REFUSALS: Final = (
    theirs.NoSuchTableError,
    theirs.NoSuchNamespaceError,
    theirs.CommitFailedException,
)
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_UNREADABLE: Final = (pydantic.ValidationError, msgspec.MsgspecError)
_BUSY: Final = (
    theirs.ServerError,
    theirs.ServiceUnavailableError,
    theirs.TooManyRequestsError,
    requests.RequestException,
)


def _meaning(error: Exception, *, writes: bool) -> Callable[..., FrazilError]:
    """Return the error that a failure is to the caller; the first that fits."""
    unknown = writes and not isinstance(error, requests.ConnectTimeout)
    meanings: tuple[tuple[tuple[type[Exception], ...], type[FrazilError], str], ...] = (
        (
            (theirs.NoSuchTableError, theirs.NoSuchNamespaceError),
            NotFound,
            "table or namespace does not exist",
        ),
        (
            (theirs.UnauthorizedError, theirs.ForbiddenError, theirs.OAuthError),
            InvalidRequest,
            "catalog refuses the token, correct the token",
        ),
        ((theirs.CommitFailedException,), Conflict, "another program changed the table first"),
        (
            (theirs.CommitStateUnknownException, *(_BUSY if unknown else ())),
            CommitUnknown,
            "catalog gave no answer, it may have happened: look before anything else",
        ),
        (
            _BUSY,
            Unavailable,
            "catalog cannot be reached, check that it runs and where it listens",
        ),
        (
            (theirs.RESTError, *_UNREADABLE),
            InvalidRequest,
            "answer is not that of an Iceberg catalog to this request, check its address",
        ),
    )
    for classes, meaning, message in meanings:
        if isinstance(error, classes):
            return functools.partial(meaning, message)
    if isinstance(error, OSError) and error.errno in _FULL:
        return functools.partial(
            Unavailable,
            "disk of the tables is full, free room or set lake.warehouse to another disk",
        )
    return functools.partial(
        Unavailable, "storage of the table failed, check lake.warehouse and its rights"
    )
