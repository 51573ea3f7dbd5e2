"""What a catalog answers to plain requests: errors, tokens, limits, pages, transactions."""

from __future__ import annotations

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests

BODY_BYTES_MAX = 64 << 20


def error(answer, status, kind):
    """Check the specification's error body and return its message."""
    assert answer.status_code == status, answer.text
    body = answer.json()["error"]
    assert (set(body), body["type"], body["code"]) == ({"message", "type", "code"}, kind, status)
    return body["message"]


def setting(**properties):
    return {"action": "set-properties", "updates": properties}


def append(number, sequence, parent=None):
    snapshot = {
        "snapshot-id": number,
        "sequence-number": sequence,
        "timestamp-ms": 1_790_000_000_000 + sequence,
        "manifest-list": "/nowhere",
        "summary": {"operation": "append"},
    }
    if parent is not None:
        snapshot["parent-snapshot-id"] = parent
    return [
        {"action": "add-snapshot", "snapshot": snapshot},
        {
            "action": "set-snapshot-ref",
            "ref-name": "main",
            "type": "branch",
            "snapshot-id": number,
        },
    ]


def at(number):
    return {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": number}


# -------------------------------------------------------------------------------- tokens
@pytest.mark.parametrize(
    "header", [None, "Bearer wrong", "Bearer ", "Basic eA==", "bearer", "Bearer \u00e9"]
)
def test_without_the_token_every_request_is_refused(catalog, header):
    """Every path refuses a missing or wrong token, also that of the configuration."""
    headers = {} if header is None else {"Authorization": header.encode("latin-1")}
    for path in ("config", "namespaces", "namespaces/x/tables/y", "transactions/commit"):
        method = "POST" if path.startswith("trans") else "GET"
        answer = requests.request(
            method, f"{catalog.address.uri}/v1/{path}", headers=headers, timeout=30
        )
        error(answer, 401, "NotAuthorizedException")
        assert answer.headers["www-authenticate"] == "Bearer"


def test_the_configuration_lists_what_is_offered(catalog):
    """Clients learn the endpoints, so that they do not ask for views."""
    answer = catalog.http("GET", "config")
    assert answer.status_code == 200
    endpoints = answer.json()["endpoints"]
    assert "POST /v1/{prefix}/namespaces/{namespace}/tables/{table}" in endpoints
    assert "POST /v1/{prefix}/transactions/commit" in endpoints
    assert "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}" in endpoints
    assert not [endpoint for endpoint in endpoints if "view" in endpoint]


def test_a_path_that_does_not_exist_has_an_error_body(catalog):
    """Views, OAuth, unknown paths and methods are refused in the specification's form."""
    for method, path in (("GET", "namespaces/x/views"), ("POST", "oauth/tokens")):
        error(catalog.http(method, path), 404, "NotFoundException")
    error(catalog.http("DELETE", "config"), 405, "UnsupportedOperationException")


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'{"name": 3}', b"\xff\xfe", b'{"a":' * 2000, b"{}"]
)
def test_a_body_that_makes_no_sense_is_a_bad_request(catalog, body):
    """No body ends the server or is taken for something else."""
    ns = catalog.namespace()
    catalog.http.table(ns, "t")
    for path in (
        "namespaces",
        f"namespaces/{ns}/tables",
        f"namespaces/{ns}/tables/t",
        f"namespaces/{ns}/register",
        "tables/rename",
        "transactions/commit",
    ):
        answer = catalog.http("POST", path, data=body)
        error(answer, 400, "BadRequestException")
    assert catalog.http("GET", f"namespaces/{ns}/tables/t").ok


def test_a_body_that_is_too_large_is_refused_unread(catalog):
    """Sixty-four megabytes are the limit, also for a body that does not tell its length."""
    place = urlsplit(catalog.address.uri)
    head = (
        f"POST /v1/namespaces HTTP/1.1\r\nHost: {place.netloc}\r\n"
        f"Authorization: Bearer {catalog.address.token}\r\n"
        f"Content-Length: {BODY_BYTES_MAX + 1}\r\n\r\n"
    )
    with socket.create_connection((place.hostname, place.port), timeout=30) as raw:
        raw.sendall(head.encode())
        assert raw.recv(4096).startswith(b"HTTP/1.1 413 ")

    def pieces():
        for _number in range(66):
            yield b" " * (1 << 20)

    try:
        chunked = catalog.http("POST", "namespaces", data=pieces())
    except requests.ConnectionError:
        chunked = None
    if chunked is not None:
        error(chunked, 413, "BadRequestException")
    assert catalog.http("GET", "config").ok


def test_broken_http_does_not_end_the_server(catalog):
    """Junk on the socket is answered or dropped, and the next request is served."""
    place = urlsplit(catalog.address.uri)
    for junk in (b"\x00" * 100, b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/config HTTP/1.1\r\nContent-"):
        with socket.create_connection((place.hostname, place.port), timeout=10) as raw:
            raw.sendall(junk)
    assert catalog.http("GET", "config").ok


# ------------------------------------------------------------------------------ namespaces
def test_namespaces_live_through_their_life(catalog):
    """Created, loaded, changed, found, dropped: with the specification's answers."""
    http, ns = catalog.http, catalog.namespace()
    error(http("POST", "namespaces", json={"namespace": [ns]}), 409, "AlreadyExistsException")
    path = f"namespaces/{ns}"
    assert http("GET", path).json() == {"namespace": [ns], "properties": {}}
    assert http("HEAD", path).status_code == 204
    assert http("HEAD", "namespaces/nobody").status_code == 404
    update = {"removals": ["never"], "updates": {"k": "v", "l": "w"}}
    answer = http("POST", f"{path}/properties", json=update)
    assert answer.json() == {"updated": ["k", "l"], "removed": [], "missing": ["never"]}
    answer = http("POST", f"{path}/properties", json={"removals": ["k"], "updates": {}})
    assert answer.json() == {"updated": [], "removed": ["k"], "missing": []}
    assert http("GET", path).json()["properties"] == {"l": "w"}
    both = {"removals": ["k"], "updates": {"k": "v"}}
    error(http("POST", f"{path}/properties", json=both), 422, "UnprocessableEntityException")
    http.table(ns, "t")
    message = error(http("DELETE", path), 409, "NamespaceNotEmptyException")
    assert "t" in message
    assert http("DELETE", f"{path}/tables/t").status_code == 204
    assert http("DELETE", path).status_code == 204
    for method in ("GET", "DELETE"):
        error(http(method, path), 404, "NoSuchNamespaceException")
    error(http("GET", f"{path}/tables"), 404, "NoSuchNamespaceException")
    error(http.table(ns, "t"), 404, "NoSuchNamespaceException")


def test_namespaces_have_levels(catalog):
    """A namespace may lie in another; each level lists its own."""
    http, ns = catalog.http, catalog.namespace()
    for inner in (["x"], ["y"], ["x", "deep"]):
        assert http("POST", "namespaces", json={"namespace": [ns, *inner]}).ok
    listed = http("GET", "namespaces", params={"parent": ns}).json()["namespaces"]
    assert listed == [[ns, "x"], [ns, "y"]]
    deeper = http("GET", "namespaces", params={"parent": f"{ns}\x1fx"}).json()["namespaces"]
    assert deeper == [[ns, "x", "deep"]]
    assert [ns] in http("GET", "namespaces").json()["namespaces"]
    assert http.table(f"{ns}%1Fx%1Fdeep", "t").ok
    assert http("GET", f"namespaces/{ns}%1Fx%1Fdeep/tables/t").ok
    error(http("DELETE", f"namespaces/{ns}%1Fx"), 409, "NamespaceNotEmptyException")
    missing = http("GET", "namespaces", params={"parent": "nobody"})
    error(missing, 404, "NoSuchNamespaceException")


@pytest.mark.parametrize("name", [[], [""], ["a.b"], ["a/b"], [".."], ["a\nb"], ["x" * 300]])
def test_a_namespace_without_a_proper_name_is_refused(catalog, name):
    """Names that rows or paths could confuse are refused when they are given."""
    answer = catalog.http("POST", "namespaces", json={"namespace": name})
    error(answer, 400, "BadRequestException")


@pytest.mark.parametrize("name", ["", "a/b", "..", "a\nb", "x" * 300])
def test_a_table_without_a_proper_name_is_refused(catalog, name):
    """The same holds for tables, at creation and at a rename."""
    ns = catalog.namespace()
    error(catalog.http.table(ns, name), 400, "BadRequestException")
    assert catalog.http.table(ns, "t").ok
    source, target = {"namespace": [ns], "name": "t"}, {"namespace": [ns], "name": name}
    answer = catalog.http("POST", "tables/rename", json={"source": source, "destination": target})
    error(answer, 400, "BadRequestException")


def test_names_of_other_scripts_are_names(catalog):
    """A table may have any printable name; its path stays plain."""
    ns = catalog.namespace()
    answer = catalog.http.table(ns, "Größe 100% #1.b")
    assert answer.ok
    assert answer.json()["metadata"]["location"].isascii()
    listed = catalog.http("GET", f"namespaces/{ns}/tables").json()["identifiers"]
    assert listed == [{"namespace": [ns], "name": "Größe 100% #1.b"}]
    assert catalog.http("GET", f"namespaces/{ns}/tables/Gr%C3%B6%C3%9Fe%20100%25%20%231.b").ok


# ---------------------------------------------------------------------------------- tables
def test_tables_that_are_missing_are_said(catalog):
    """Every verb on a missing table says so."""
    http, ns = catalog.http, catalog.namespace()
    path = f"namespaces/{ns}/tables/nobody"
    error(http("GET", path), 404, "NoSuchTableException")
    error(http("DELETE", path), 404, "NoSuchTableException")
    error(http.commit(ns, "nobody", setting(k="v")), 404, "NoSuchTableException")
    assert http("HEAD", path).status_code == 404
    source, target = {"namespace": [ns], "name": "nobody"}, {"namespace": [ns], "name": "x"}
    answer = http("POST", "tables/rename", json={"source": source, "destination": target})
    error(answer, 404, "NoSuchTableException")


def test_a_table_comes_once(catalog):
    """A name that is taken is refused, also for a registration and a staged table's commit."""
    http, ns = catalog.http, catalog.namespace()
    made = http.table(ns, "t").json()
    error(http.table(ns, "t"), 409, "AlreadyExistsException")
    register = {"name": "t", "metadata-location": made["metadata-location"]}
    answer = http("POST", f"namespaces/{ns}/register", json=register)
    error(answer, 409, "AlreadyExistsException")
    answer = http.commit(ns, "t", setting(k="v"), requires=[{"type": "assert-create"}])
    error(answer, 409, "AlreadyExistsException")


def test_a_dropped_table_can_be_registered_again(catalog):
    """Dropping keeps the files; registering the last metadata brings the table back."""
    http, ns = catalog.http, catalog.namespace()
    http.table(ns, "t", properties={"k": "v"})
    location = http.commit(ns, "t", *append(7, 1)).json()["metadata-location"]
    assert http("DELETE", f"namespaces/{ns}/tables/t").status_code == 204
    register = {"name": "back", "metadata-location": location}
    answer = http("POST", f"namespaces/{ns}/register", json=register)
    assert answer.json()["metadata"]["current-snapshot-id"] == 7
    missing = {"name": "no", "metadata-location": f"{location}.gone"}
    answer = http("POST", f"namespaces/{ns}/register", json=missing)
    error(answer, 404, "NotFoundException")


def test_a_table_is_renamed_across_namespaces(catalog):
    """A rename keeps the table; a taken name or a missing namespace is refused."""
    http, ns, other = catalog.http, catalog.namespace(), catalog.namespace()
    uuid = http.table(ns, "t").json()["metadata"]["table-uuid"]
    http.table(other, "taken")

    def rename(source, target):
        body = {
            "source": {"namespace": [source[0]], "name": source[1]},
            "destination": {"namespace": [target[0]], "name": target[1]},
        }
        return http("POST", "tables/rename", json=body)

    error(rename((ns, "t"), (other, "taken")), 409, "AlreadyExistsException")
    error(rename((ns, "t"), ("nobody", "x")), 404, "NoSuchNamespaceException")
    assert rename((ns, "t"), (other, "moved")).status_code == 204
    found = http("GET", f"namespaces/{other}/tables/moved").json()
    assert found["metadata"]["table-uuid"] == uuid
    error(http("GET", f"namespaces/{ns}/tables/t"), 404, "NoSuchTableException")


def test_a_location_outside_the_warehouse_is_refused(catalog, tmp_path):
    """At creation, by an update, for a namespace and for registered metadata."""
    http, ns = catalog.http, catalog.namespace()
    outside = str(tmp_path / "outside")
    error(http.table(ns, "t", location=outside), 400, "BadRequestException")
    assert http.table(ns, "t").ok
    update = {"action": "set-location", "location": outside}
    error(http.commit(ns, "t", update), 400, "BadRequestException")
    body = {"namespace": [f"{ns}x"], "properties": {"location": outside}}
    error(http("POST", "namespaces", json=body), 400, "BadRequestException")
    location = http("GET", f"namespaces/{ns}/tables/t").json()["metadata-location"]
    copy = tmp_path / "00000-x.metadata.json"
    copy.write_bytes(Path(location).read_bytes())
    register = {"name": "r", "metadata-location": str(copy)}
    answer = http("POST", f"namespaces/{ns}/register", json=register)
    error(answer, 400, "BadRequestException")
    link = Path(catalog.warehouse) / f"{ns}-link"
    link.symlink_to(tmp_path)
    error(http.table(ns, "l", location=str(link / "t")), 400, "BadRequestException")


def test_a_tables_own_directory_and_file_are_for_its_owner(catalog):
    """Metadata files are 0600: nobody else on the machine reads them."""
    ns = catalog.namespace()
    path = Path(catalog.http.table(ns, "t").json()["metadata-location"])
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


# --------------------------------------------------------------------------------- commits
def test_a_commit_answers_with_the_new_metadata(catalog):
    """The answer has the new state and the file that holds exactly it."""
    http, ns = catalog.http, catalog.namespace()
    http.table(ns, "t")
    answer = http.commit(ns, "t", *append(7, 1), requires=[at(None)]).json()
    assert answer["metadata"]["current-snapshot-id"] == 7
    assert json.loads(Path(answer["metadata-location"]).read_text()) == answer["metadata"]
    loaded = http("GET", f"namespaces/{ns}/tables/t").json()
    assert (loaded["metadata"], loaded["config"]) == (answer["metadata"], {})


@pytest.mark.parametrize(
    "body",
    [
        {"requirements": [], "updates": [{"action": "explode"}]},
        {"requirements": [{"type": "assert-everything"}], "updates": []},
        {"requirements": [], "updates": [{"action": "add-snapshot", "snapshot": {}}]},
        {"requirements": [], "updates": [{"action": "set-properties", "updates": {"k": 1}}]},
        {"requirements": [], "updates": [{"action": "upgrade-format-version"}]},
        {"updates": []},
    ],
)
def test_a_commit_that_cannot_be_understood_changes_nothing(catalog, body):
    """An unknown update is refused, never skipped."""
    http, ns = catalog.http, catalog.namespace()
    before = http.table(ns, "t").json()["metadata-location"]
    answer = http("POST", f"namespaces/{ns}/tables/t", json=body)
    error(answer, 400, "BadRequestException")
    assert http("GET", f"namespaces/{ns}/tables/t").json()["metadata-location"] == before


def test_what_the_catalog_does_not_know_survives(catalog):
    """Metadata stays raw: keys of another writer are there after a commit."""
    http, ns = catalog.http, catalog.namespace()
    made = http.table(ns, "t").json()
    metadata = {**made["metadata"], "future-key": {"x": [1, 2]}}
    path = Path(made["metadata-location"]).with_name("00007-foreign.metadata.json")
    path.write_text(json.dumps(metadata))
    register = {"name": "u", "metadata-location": str(path)}
    assert http("POST", f"namespaces/{ns}/register", json=register).ok
    answer = http.commit(ns, "u", setting(k="v")).json()
    assert answer["metadata"]["future-key"] == {"x": [1, 2]}
    assert Path(answer["metadata-location"]).name.startswith("00008-")


def test_one_of_many_wins_each_round(catalog):
    """Ten clients race from the same snapshot: one commit lands, nine get a conflict."""
    ns = catalog.namespace()
    catalog.http.table(ns, "t")
    parent = None
    for turn in range(5):

        def attempt(number, turn=turn, parent=parent):
            updates = append(turn * 100 + number + 1, turn + 1, parent)
            return catalog.http.commit(ns, "t", *updates, requires=[at(parent)])

        with ThreadPoolExecutor(10) as pool:
            answers = list(pool.map(attempt, range(10)))
        codes = sorted(answer.status_code for answer in answers)
        assert codes == [200] + [409] * 9
        parent = next(a.json()["metadata"]["current-snapshot-id"] for a in answers if a.ok)
    metadata = catalog.http("GET", f"namespaces/{ns}/tables/t").json()["metadata"]
    assert (metadata["current-snapshot-id"], len(metadata["snapshots"])) == (parent, 5)


def test_a_transaction_changes_all_its_tables_or_none(catalog):
    """Requirements of every table count for the whole transaction."""
    http, ns = catalog.http, catalog.namespace()
    for name in ("a", "b"):
        http.table(ns, name)

    def change(name, *updates, requires=()):
        identifier = {"namespace": [ns], "name": name}
        return {"identifier": identifier, "requirements": list(requires), "updates": list(updates)}

    def state():
        tables = [http("GET", f"namespaces/{ns}/tables/{name}").json() for name in ("a", "b")]
        return [table["metadata"]["properties"].get("k") for table in tables]

    wrong = [change("a", setting(k="v")), change("b", setting(k="v"), requires=[at(4)])]
    answer = http("POST", "transactions/commit", json={"table-changes": wrong})
    error(answer, 409, "CommitFailedException")
    assert state() == [None, None]
    right = [change("a", setting(k="v")), change("b", setting(k="v"), requires=[at(None)])]
    assert http("POST", "transactions/commit", json={"table-changes": right}).status_code == 204
    assert state() == ["v", "v"]
    missing = [change("a", setting(k="w")), change("nobody", setting(k="w"))]
    answer = http("POST", "transactions/commit", json={"table-changes": missing})
    error(answer, 404, "NoSuchTableException")
    nameless = [{"requirements": [], "updates": []}]
    answer = http("POST", "transactions/commit", json={"table-changes": nameless})
    error(answer, 400, "BadRequestException")
    assert state() == ["v", "v"]


def test_reports_of_clients_are_taken(catalog):
    """Metrics are answered with nothing, whatever they say."""
    http, ns = catalog.http, catalog.namespace()
    http.table(ns, "t")
    answer = http("POST", f"namespaces/{ns}/tables/t/metrics", json={"report-type": "scan-report"})
    assert (answer.status_code, answer.content) == (204, b"")


def test_old_metadata_files_go(catalog):
    """Old metadata files go when the table wants it: the directory has as many as it says."""
    http, ns = catalog.http, catalog.namespace()
    tidy = {
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": "5",
    }
    made = http.table(ns, "t", properties=tidy).json()
    for number in range(20):
        assert http.commit(ns, "t", setting(n=str(number))).ok
    files = list(Path(made["metadata-location"]).parent.iterdir())
    assert len(files) == 6
    log = http("GET", f"namespaces/{ns}/tables/t").json()["metadata"]["metadata-log"]
    assert len(log) == 5
    assert {entry["metadata-file"] for entry in log} <= {str(path) for path in files}
