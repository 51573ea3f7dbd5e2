"""What each request of the REST specification means: a call in, an answer out. No sockets here.

`ROUTES` is the list of all of them; `app` serves it, and the list of endpoints that clients get
comes from it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import attrs
import msgspec

from frazil.lake.catalog.metadata import SEPARATOR, joined, levels, table_name, with_refs_only
from frazil.lake.catalog.refusals import Refusal, bad_request, no_table, unsupported
from frazil.lake.catalog.requirements import Requirement
from frazil.lake.catalog.service import Catalog, TableChange
from frazil.lake.catalog.updates import Update
from frazil.struct_types import learnt

if TYPE_CHECKING:
    from frazil.lake.catalog.files import Loaded

__all__ = ["ROUTES", "Answer", "Call", "Route"]

PAGE_SIZE_DEFAULT: Final = 100
PAGE_SIZE_MAX: Final = 1000
CHANGES_MAX: Final = 1000

Body = TypeVar("Body")


@attrs.frozen
class Call:
    """One request, read whole."""

    catalog: Catalog
    name: str
    path: Mapping[str, str]
    query: Mapping[str, str]
    headers: Mapping[str, str]
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
        """Return the body; a Refusal says what is wrong with it."""
        try:
            return msgspec.json.decode(self.body, type=learnt(kind))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise bad_request("request body cannot be understood", reason=error) from error


class Answer(NamedTuple):
    """A status, a body of JSON, and headers."""

    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}


class Route(NamedTuple):
    """A method and a path with its handler; `config` lists it to clients unless it is `hidden`."""

    method: str
    path: str
    handle: Callable[[Call], Answer]
    hidden: bool = False


class _Request(msgspec.Struct, rename="kebab"):
    """A request's body; keys that are not known are left out."""


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
    """Tell a client what this catalog offers."""
    wanted = call.query.get("warehouse", "").rstrip("/")
    own = call.catalog.warehouse.location.rstrip("/")
    if wanted.removeprefix("file://") not in {"", call.name, own, own.removeprefix("file://")}:
        raise bad_request(
            "warehouse is not known, leave it out or name the catalog", warehouse=wanted
        )
    endpoints = [
        f"{route.method} {route.path.replace('/v1/', '/v1/{prefix}/')}"
        for route in ROUTES
        if not route.hidden
    ]
    return _json({"defaults": {}, "overrides": {}, "endpoints": endpoints})


def refuse_oauth(call: Call) -> Answer:
    """Say that there are no tokens to be had."""
    del call
    text = "this catalog gives no tokens: use the one in its address file as a bearer token"
    return _json({"error": "unsupported_grant_type", "error_description": text}, 400)


def refuse_views(call: Call) -> Answer:
    """Say that there are no views."""
    del call
    raise unsupported("views are not supported by this catalog")


# --------------------------------------------------------------------------- namespaces
def list_namespaces(call: Call) -> Answer:
    """List the namespaces below a parent."""
    parent = call.query.get("parent")
    names = call.catalog.store.namespaces(joined(parent.split(SEPARATOR)) if parent else None)
    page, token = _page(call, names)
    return _json({"namespaces": [levels(name) for name in page], "next-page-token": token})


def create_namespace(call: Call) -> Answer:
    """Make a namespace."""
    request = call.decoded(_CreateNamespace)
    _check_location(call, request.properties)
    call.catalog.store.create_namespace(joined(request.namespace), request.properties)
    return _json({"namespace": request.namespace, "properties": request.properties})


def _check_location(call: Call, properties: Mapping[str, str]) -> None:
    if "location" in properties:
        call.catalog.warehouse.check(properties["location"])


def load_namespace(call: Call) -> Answer:
    """Tell a namespace's properties."""
    namespace = call.namespace
    properties = call.catalog.store.namespace_properties(namespace)
    return _json({"namespace": levels(namespace), "properties": properties})


def has_namespace(call: Call) -> Answer:
    """Tell whether a namespace exists."""
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
    page, token = _page(call, call.catalog.store.tables(namespace))
    above = levels(namespace)
    tables = [{"namespace": above, "name": name} for name in page]
    return _json({"identifiers": tables, "next-page-token": token})


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
    return _loaded(call, loaded)


def register_table(call: Call) -> Answer:
    """Take an existing metadata file as a table."""
    request = call.decoded(_Register)
    loaded = call.catalog.register(
        call.namespace,
        table_name(request.name),
        metadata_location=request.metadata_location,
        overwrite=request.overwrite,
    )
    return _loaded(call, loaded)


def load_table(call: Call) -> Answer:
    """Tell a table's metadata, or that the client has it already."""
    loaded = call.catalog.load(*call.table)
    given = call.headers.get("if-none-match")
    if given is not None and _tag(call, loaded) in {tag.strip() for tag in given.split(",")}:
        return Answer(304, headers={"etag": _tag(call, loaded)})
    return _loaded(call, loaded)


def has_table(call: Call) -> Answer:
    """Tell whether a table exists."""
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
    return _answer(loaded.location, loaded.raw, config=False)


def commit_transaction(call: Call) -> Answer:
    """Change several tables, all or none."""
    request = call.decoded(_CommitTransaction)
    if len(request.table_changes) > CHANGES_MAX:
        raise bad_request("transaction has too many tables", tables_max=CHANGES_MAX)
    changes = []
    for change in request.table_changes:
        if change.identifier is None:
            raise bad_request("change of a transaction does not name its table")
        changes.append(TableChange(*change.identifier.table, change.requirements, change.updates))
    call.catalog.commit(changes)
    return Answer(204)


def drop_table(call: Call) -> Answer:
    """Remove a table, with its files if the client asks for it."""
    wanted = call.query.get("purgeRequested", "false").lower() == "true"
    call.catalog.drop(*call.table, wants_purge=wanted)
    return Answer(204)


def rename_table(call: Call) -> Answer:
    """Give a table another name."""
    request = call.decoded(_Rename)
    call.catalog.store.rename(request.source.table, request.destination.table)
    return Answer(204)


def take_metrics(call: Call) -> Answer:
    """Take a client's report of a scan or commit; nothing is kept of it."""
    del call
    return Answer(204)


# ------------------------------------------------------------------------------ answers
def _answer(location: str, raw: bytes, *, config: bool, headers: Mapping[str, str] = {}) -> Answer:
    """Put the bytes of a metadata file into an answer as they are."""
    tail = b',"config":{}}' if config else b"}"
    head = b'{"metadata-location":' + msgspec.json.encode(location) + b',"metadata":'
    return Answer(200, b"".join((head, raw, tail)), headers)


def _loaded(call: Call, loaded: Loaded) -> Answer:
    raw = loaded.raw
    if _snapshots(call) == "refs":
        raw = msgspec.json.encode(with_refs_only(loaded.metadata))
    return _answer(loaded.location, raw, config=True, headers={"etag": _tag(call, loaded)})


def _snapshots(call: Call) -> str:
    wanted = call.query.get("snapshots", "all").lower()
    if wanted not in {"all", "refs"}:
        raise bad_request("snapshots must be all or refs", snapshots=wanted)
    return wanted


def _tag(call: Call, loaded: Loaded) -> str:
    text = f"{loaded.location} {_snapshots(call)}".encode()
    return f'W/"{hashlib.sha256(text).hexdigest()[:32]}"'


def _page(call: Call, names: list[str]) -> tuple[list[str], str | None]:
    """Return one page of sorted names and the token of the next; all of them without a token."""
    token = call.query.get("pageToken")
    if token is None:
        return names, None
    size = call.query.get("pageSize", str(PAGE_SIZE_DEFAULT))
    if not size.isascii() or not size.isdigit() or int(size[:9]) < 1:
        raise bad_request("page size is no number above zero", pageSize=size)
    try:
        after = base64.b64decode(token.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise bad_request("page token is none of this catalog", pageToken=token) from error
    left = [name for name in names if not token or name > after]
    page = left[: min(int(size[:9]), PAGE_SIZE_MAX)]
    has_more = len(left) > len(page)
    return page, base64.urlsafe_b64encode(page[-1].encode()).decode() if has_more else None


_NAMESPACE = "/v1/namespaces/{namespace}"
_TABLE = f"{_NAMESPACE}/tables/{{table}}"
_VIEW = f"{_NAMESPACE}/views"
_HIDDEN = True

ROUTES: Final[tuple[Route, ...]] = (
    Route("GET", "/v1/config", config, _HIDDEN),
    Route("POST", "/v1/oauth/tokens", refuse_oauth, _HIDDEN),
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
    *(
        Route(method, path, refuse_views, _HIDDEN)
        for method in ("GET", "HEAD", "POST", "DELETE")
        for path in (_VIEW, f"{_VIEW}/{{view}}", f"{_NAMESPACE}/register-view", "/v1/views/rename")
    ),
)
