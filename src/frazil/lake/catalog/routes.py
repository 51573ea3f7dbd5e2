"""Handlers for the requests of the REST specification: a call in, an answer out. No sockets.

`ROUTES` lists all of them; `app` serves it and derives the clients' list of endpoints from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import attrs
import msgspec

from frazil.lake.catalog.metadata import SEPARATOR, joined, levels, table_name
from frazil.lake.catalog.refusals import Refusal, bad_request, no_table
from frazil.lake.catalog.requirements import Requirement
from frazil.lake.catalog.service import Catalog, TableChange
from frazil.lake.catalog.updates import Update
from frazil.struct_types import learnt

if TYPE_CHECKING:
    from frazil.lake.catalog.files import Loaded

__all__ = ["ROUTES", "Answer", "Call", "Route"]


Body = TypeVar("Body")


@attrs.frozen
class Call:
    """One request with its whole body."""

    catalog: Catalog
    path: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes

    @property
    def namespace(self) -> str:
        """Return the namespace of the path."""
        return joined(self.path["namespace"].split(SEPARATOR))

    @property
    def table(self) -> tuple[str, str]:
        """Return the table of the path."""
        return self.namespace, table_name(self.path["table"])

    def decoded(self, kind: type[Body]) -> Body:
        """Return the decoded body; raise a Refusal if it is invalid."""
        try:
            return msgspec.json.decode(self.body, type=learnt(kind))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise bad_request("request body cannot be understood", reason=error) from error


class Answer(NamedTuple):
    """A status and a body of JSON."""

    status: int
    body: bytes = b""


class Route(NamedTuple):
    """A method and a path with its handler."""

    method: str
    path: str
    handle: Callable[[Call], Answer]


class _Request(msgspec.Struct, rename="kebab"):
    """A request's body; unknown keys are ignored."""


class _Identifier(_Request):
    namespace: list[str]
    name: str

    @property
    def table(self) -> tuple[str, str]:
        return joined(self.namespace), table_name(self.name)


class _CreateNamespace(_Request):
    namespace: list[str]
    properties: dict[str, str] = {}


class _UpdateNamespace(_Request):
    removals: list[str] = []
    updates: dict[str, str] = {}


class _CreateTable(_Request):
    name: str
    schema: dict[str, Any]
    location: str | None = None
    partition_spec: dict[str, Any] | None = None
    write_order: dict[str, Any] | None = None
    stage_create: bool | None = False
    properties: dict[str, str] | None = None


class _Register(_Request):
    name: str
    metadata_location: str
    overwrite: bool = False


class _Commit(_Request):
    requirements: list[Requirement]
    updates: list[Update]
    identifier: _Identifier | None = None


class _CommitTransaction(_Request):
    table_changes: list[_Commit]


class _Rename(_Request):
    source: _Identifier
    destination: _Identifier


def _json(value: object, status: int = 200) -> Answer:
    return Answer(status, msgspec.json.encode(value))


# ---------------------------------------------------------------------------- the whole
def config(call: Call) -> Answer:
    """Return the catalog's configuration and endpoints."""
    del call
    endpoints = [
        f"{route.method} {route.path.replace('/v1/', '/v1/{prefix}/')}" for route in ROUTES[1:]
    ]
    return _json({"defaults": {}, "overrides": {}, "endpoints": endpoints})


# --------------------------------------------------------------------------- namespaces
def list_namespaces(call: Call) -> Answer:
    """List the namespaces below a parent."""
    parent = call.query.get("parent")
    names = call.catalog.store.namespaces(joined(parent.split(SEPARATOR)) if parent else None)
    return _json({"namespaces": [levels(name) for name in names], "next-page-token": None})


def create_namespace(call: Call) -> Answer:
    """Make a namespace."""
    request = call.decoded(_CreateNamespace)
    _check_location(call, request.properties)
    call.catalog.store.create_namespace(joined(request.namespace), request.properties)
    return _json({"namespace": request.namespace, "properties": request.properties})


def _check_location(call: Call, properties: Mapping[str, str]) -> None:
    if "location" in properties:
        call.catalog.check_location(properties["location"])


def load_namespace(call: Call) -> Answer:
    """Return a namespace's properties."""
    namespace = call.namespace
    properties = call.catalog.store.namespace_properties(namespace)
    return _json({"namespace": levels(namespace), "properties": properties})


def has_namespace(call: Call) -> Answer:
    """Return whether a namespace exists."""
    return Answer(204 if call.catalog.store.has_namespace(call.namespace) else 404)


def drop_namespace(call: Call) -> Answer:
    """Remove an empty namespace."""
    call.catalog.store.drop_namespace(call.namespace)
    return Answer(204)


def update_namespace(call: Call) -> Answer:
    """Change a namespace's properties."""
    request = call.decoded(_UpdateNamespace)
    both = set(request.removals) & set(request.updates)
    if both:
        raise Refusal(
            422,
            "UnprocessableEntityException",
            "property is both set and removed",
            key=min(both),
        )
    _check_location(call, request.updates)
    removed, missing = call.catalog.store.update_namespace(
        call.namespace, removals=list(dict.fromkeys(request.removals)), updates=request.updates
    )
    return _json({"updated": list(request.updates), "removed": removed, "missing": missing})


# ------------------------------------------------------------------------------- tables
def list_tables(call: Call) -> Answer:
    """List a namespace's tables."""
    namespace = call.namespace
    above = levels(namespace)
    tables = [{"namespace": above, "name": name} for name in call.catalog.store.tables(namespace)]
    return _json({"identifiers": tables, "next-page-token": None})


def create_table(call: Call) -> Answer:
    """Make a table, or stage one."""
    request = call.decoded(_CreateTable)
    location, loaded = call.catalog.create(
        call.namespace,
        table_name(request.name),
        schema=request.schema,
        spec=request.partition_spec,
        order=request.write_order,
        location=request.location,
        properties=request.properties or {},
        stage=bool(request.stage_create),
    )
    if location is None:
        return _json({"metadata-location": None, "metadata": loaded.metadata, "config": {}})
    return _answer(loaded, config=True)


def register_table(call: Call) -> Answer:
    """Take an existing metadata file as a table."""
    request = call.decoded(_Register)
    loaded = call.catalog.register(
        call.namespace,
        table_name(request.name),
        metadata_location=request.metadata_location,
        overwrite=request.overwrite,
    )
    return _answer(loaded, config=True)


def load_table(call: Call) -> Answer:
    """Return a table's metadata."""
    return _answer(call.catalog.load(*call.table), config=True)


def has_table(call: Call) -> Answer:
    """Return whether a table exists."""
    namespace, name = call.table
    if call.catalog.store.location(namespace, name) is None:
        raise no_table(namespace, name)
    return Answer(204)


def commit_table(call: Call) -> Answer:
    """Change a table."""
    request = call.decoded(_Commit)
    namespace, name = call.table
    if request.identifier is not None and request.identifier.table != (namespace, name):
        raise bad_request("table of the body is not that of the path", table=name)
    change = TableChange(namespace, name, request.requirements, request.updates)
    (loaded,) = call.catalog.commit([change])
    return _answer(loaded, config=False)


def commit_transaction(call: Call) -> Answer:
    """Change several tables, all or none."""
    request = call.decoded(_CommitTransaction)
    changes = []
    for change in request.table_changes:
        if change.identifier is None:
            raise bad_request("change of a transaction does not name its table")
        changes.append(TableChange(*change.identifier.table, change.requirements, change.updates))
    call.catalog.commit(changes)
    return Answer(204)


def drop_table(call: Call) -> Answer:
    """Drop a table, with its files if the client requests it."""
    wanted = call.query.get("purgeRequested", "false").lower() == "true"
    call.catalog.drop(*call.table, wants_purge=wanted)
    return Answer(204)


def rename_table(call: Call) -> Answer:
    """Rename a table."""
    request = call.decoded(_Rename)
    call.catalog.store.rename(request.source.table, request.destination.table)
    return Answer(204)


def take_metrics(call: Call) -> Answer:
    """Accept a client's report of a scan or commit, and ignore it."""
    del call
    return Answer(204)


# ------------------------------------------------------------------------------ answers
def _answer(loaded: Loaded, *, config: bool) -> Answer:
    """Put the bytes of a metadata file into an answer as they are."""
    tail = b',"config":{}}' if config else b"}"
    head = b'{"metadata-location":' + msgspec.json.encode(loaded.location) + b',"metadata":'
    return Answer(200, b"".join((head, loaded.raw, tail)))


_NAMESPACE = "/v1/namespaces/{namespace}"
_TABLE = f"{_NAMESPACE}/tables/{{table}}"

ROUTES: Final[tuple[Route, ...]] = (
    Route("GET", "/v1/config", config),
    Route("GET", "/v1/namespaces", list_namespaces),
    Route("POST", "/v1/namespaces", create_namespace),
    Route("GET", _NAMESPACE, load_namespace),
    Route("HEAD", _NAMESPACE, has_namespace),
    Route("DELETE", _NAMESPACE, drop_namespace),
    Route("POST", f"{_NAMESPACE}/properties", update_namespace),
    Route("GET", f"{_NAMESPACE}/tables", list_tables),
    Route("POST", f"{_NAMESPACE}/tables", create_table),
    Route("POST", f"{_NAMESPACE}/register", register_table),
    Route("GET", _TABLE, load_table),
    Route("HEAD", _TABLE, has_table),
    Route("POST", _TABLE, commit_table),
    Route("DELETE", _TABLE, drop_table),
    Route("POST", f"{_TABLE}/metrics", take_metrics),
    Route("POST", "/v1/tables/rename", rename_table),
    Route("POST", "/v1/transactions/commit", commit_transaction),
)
