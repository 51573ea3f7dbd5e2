"""What a server answers, and what our side makes of it: one request each, and the truth about it.

The server is a small one of this test, because no real one gives such answers when it is asked to.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from frazil.errors import Conflict, InvalidRequest, NotFound, Unavailable
from frazil.objects import PIECE_BYTES_MAX, open_store
from tests.contract.object_stores import settings_of
from tests.servers.running import free_port

pytestmark = pytest.mark.integration

OK = (200, {"ETag": '"mark"'}, b"")
ABSENT = (404, {}, b"")
PRESENT = (200, {"ETag": '"m"', "Last-Modified": "Mon, 16 Nov 2026 10:00:00 GMT"}, b"12345")
DROP = None
UPLOAD = (
    200,
    {},
    b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>",
)


def error(status, code):
    body = f"<Error><Code>{code}</Code><Message>as {code}</Message></Error>"
    return (status, {}, body.encode())


class Answering(BaseHTTPRequestHandler):
    """Answers by method; `POST` and others may have several answers in turn."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *words):
        """Say nothing."""

    def _serve(self):
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.asked.append(self.command)
        self.server.paths.append(self.path)
        answers = self.server.answers[self.command]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer is DROP:
            self.close_connection = True
            return
        status, headers, body = answer
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815 - names of the library


@contextlib.contextmanager
def serving(handler, **facts):
    """Yield a server that answers by a handler and has these attributes."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    vars(server).update(facts)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)


def opened(port=None, **changes):
    """Return a context of a store whose server is at a port; a None leaves a setting out."""
    overrides = {
        "root": "bucket/objects",
        "endpoint": f"http://127.0.0.1:{port}",
        "access_key": "any",
        "secret_key": "any",
        "allow_http": True,
        **changes,
    }
    given = {f"objects.{name}": value for name, value in overrides.items() if value is not None}
    return contextlib.closing(open_store(settings_of({"objects.store": "s3", **given})))


@contextlib.contextmanager
def answering(**answers):
    """Yield a store whose server gives these answers, and the list of what it was asked."""
    answers = {method: list(given) for method, given in answers.items()}
    own = {"answers": answers, "asked": [], "paths": []}
    with serving(Answering, **own) as server, opened(server.server_port) as store:
        yield store, server.asked


def put(answer, **others):
    """Put once; return the error and what the server was asked."""
    with answering(PUT=[answer], **others) as (store, asked):
        with pytest.raises((Conflict, InvalidRequest, NotFound, Unavailable)) as caught:
            store.put("k", b"12345")
        return caught.value, asked


def test_a_409_with_nothing_there_is_to_be_tried_again():
    """Another write was under way: nothing happened, and nothing is unknown (F25)."""
    found, asked = put(error(409, "ConditionalRequestConflict"), HEAD=[ABSENT])
    assert type(found) is Unavailable
    assert "outcome" not in found.details
    assert asked == ["PUT", "HEAD"]


@pytest.mark.parametrize("status", [409, 412])
def test_an_object_that_is_there_is_a_conflict(status):
    """A 412, and a 409 with an object, say that the key is taken; whose, the caller looks."""
    found, asked = put(error(status, "PreconditionFailed"), HEAD=[PRESENT])
    assert type(found) is Conflict
    assert asked == ["PUT", "HEAD"]


def test_who_cannot_look_says_so():
    """A 412 whose look fails is the look's trouble, not a verdict about the key."""
    found, asked = put(error(412, "PreconditionFailed"), HEAD=[error(500, "InternalError")])
    assert type(found) is Unavailable
    assert asked == ["PUT", "HEAD"]


@pytest.mark.parametrize(
    ("answer", "unknown", "throttled"),
    [
        (error(503, "SlowDown"), False, True),
        (error(429, "TooManyRequests"), False, True),
        (error(503, "ServiceUnavailable"), True, True),
        (error(500, "InternalError"), True, False),
        (error(502, "BadGateway"), True, False),
        (error(504, "GatewayTimeout"), True, False),
        (DROP, True, False),
    ],
    ids=["slow down", "429", "503", "500", "502", "504", "dropped"],
)
def test_trouble_is_asked_once_and_reported_truly(answer, unknown, throttled):
    """The client repeats nothing; what may have been written is unknown; patience is asked for."""
    found, asked = put(answer)
    assert type(found) is Unavailable
    assert asked == ["PUT"]
    assert (found.details.get("outcome") == "unknown") == unknown
    assert ("retry_after_ms" in found.details) == throttled


@pytest.mark.parametrize(
    ("answer", "setting"),
    [
        (error(403, "InvalidAccessKeyId"), "objects.access_key"),
        (error(403, "SignatureDoesNotMatch"), "objects.secret_key"),
        (error(403, "AccessDenied"), "objects.access_key"),
        (error(403, "RequestTimeTooSkewed"), "objects.access_key"),
        (error(400, "ExpiredToken"), "objects.access_key"),
        (error(400, "AuthorizationHeaderMalformed"), "objects.region"),
        (error(301, "PermanentRedirect"), "objects.region"),
        (error(404, "NoSuchBucket"), "objects.root"),
        (error(400, "InvalidRequest"), "objects.endpoint"),
        (error(405, "MethodNotAllowed"), "objects.endpoint"),
    ],
    ids=lambda given: given if isinstance(given, str) else given[2].split(b"<")[2][5:].decode(),
)
def test_refusals_name_the_setting(answer, setting):
    """What a store refuses for good is traced to the setting, and asked once."""
    found, asked = put(answer)
    assert type(found) is InvalidRequest
    assert found.details["setting"] == setting
    assert asked == ["PUT"]


def test_a_write_that_was_never_sent_is_not_unknown():
    """Where nobody listens nothing can have happened, and the endpoint is named."""
    with opened(free_port()) as store, pytest.raises(Unavailable) as caught:
        store.put("k", b"12345")
    assert "outcome" not in caught.value.details
    assert caught.value.details["setting"] == "objects.endpoint"


PIECES = [bytes(PIECE_BYTES_MAX), bytes(PIECE_BYTES_MAX), b"end"]
SIZE = 2 * PIECE_BYTES_MAX + 3


def stream(**answers):
    """Write in two parts; return the error and what the server was asked."""
    with answering(**answers, DELETE=[(204, {}, b"")]) as (store, asked):
        with pytest.raises(Unavailable) as caught:
            store.put_stream("k", PIECES)
        return caught.value, asked


@pytest.mark.parametrize("code", ["InternalError", "SlowDown"])
def test_an_error_inside_a_200_is_an_error(code):
    """The last step of an upload answers 200 with an error in its body: it is not done (F21)."""
    found, asked = stream(PUT=[OK], POST=[UPLOAD, error(200, code)])
    assert asked.count("PUT") == 2
    assert ("retry_after_ms" in found.details) == (code == "SlowDown")
    if code == "InternalError":
        assert found.details["outcome"] == "unknown"


def test_a_part_that_fails_ends_the_upload():
    """No part is repeated, the upload is not completed, and its parts are given up."""
    found, asked = stream(PUT=[OK, error(500, "InternalError")], POST=[UPLOAD])
    assert type(found) is Unavailable
    assert asked.count("POST") == 1
    assert asked.count("PUT") == 2
    assert asked[-1] == "DELETE"


@pytest.mark.parametrize("answer", [error(500, "InternalError"), error(503, "SlowDown"), DROP])
def test_reads_are_asked_once_and_nothing_is_unknown(answer):
    """A read that fails may be asked again; it is never reported as a missing object."""
    with answering(GET=[answer], HEAD=[answer]) as (store, asked):
        for read in (
            lambda: store.get("k", start=0, length=5),
            lambda: store.head("k"),
            lambda: store.list(""),
        ):
            with pytest.raises(Unavailable) as caught:
                read()
            assert "outcome" not in caught.value.details
        assert asked == ["GET", "HEAD", "GET"]


def test_a_missing_bucket_is_no_missing_object():
    """A read from a bucket that is gone is a wrong setting: no record is declared lost."""
    with answering(GET=[error(404, "NoSuchBucket")]) as (store, _):
        for read in (lambda: store.get("k", start=0, length=5), lambda: store.list("")):
            with pytest.raises(InvalidRequest) as caught:
                read()
            assert caught.value.details["setting"] == "objects.root"


def test_an_answer_that_is_cut_off_is_not_believed():
    """Fewer bytes than the server announced are trouble, not an object that ends."""
    headers = {
        "ETag": '"m"',
        "Content-Range": "bytes 0-4/5",
        "Last-Modified": PRESENT[1]["Last-Modified"],
    }
    with answering(GET=[(206, headers, b"12345")]) as (store, _):
        assert store.get("k", start=0, length=5) == b"12345"
    with (
        answering(GET=[(206, headers, b"123")]) as (store, _),
        pytest.raises((Unavailable, NotFound)),
    ):
        store.get("k", start=0, length=5)


class Machine(Answering):
    """The metadata service of a machine of Amazon's, and a store beside it."""

    def _serve(self):
        role = "/latest/meta-data/iam/security-credentials/"
        answers = {
            "/latest/api/token": b"session",
            role: b"uploads",
            f"{role}uploads": json.dumps(
                {
                    "AccessKeyId": "OF-THE-MACHINE",
                    "SecretAccessKey": "secret",
                    "Token": "its-token",
                    "Expiration": "2099-01-01T00:00:00Z",
                }
            ).encode(),
        }
        if self.path not in answers:
            self.server.signed.append(
                (self.headers["Authorization"], self.headers["x-amz-security-token"])
            )
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = answers.get(self.path, b"")
        self.send_response(200)
        self.send_header("ETag", '"mark"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = _serve  # noqa: N815 - names of the library


def test_credentials_of_the_machine_are_used(monkeypatch):
    """Without keys in settings and environment the machine's role gives them, with its token."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    with serving(Machine, signed=[]) as server:
        port = server.server_port
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{port}")
        with opened(port, access_key=None, secret_key=None) as store:
            store.put("k", b"12345")
    [(signature, token)] = server.signed
    assert "Credential=OF-THE-MACHINE/" in signature
    assert token == "its-token"


@pytest.mark.parametrize("path_style", [True, False])
def test_the_bucket_is_in_the_path_or_in_the_name(path_style, monkeypatch):
    """Path style asks host/bucket/key, the other style bucket.host/key."""
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serving(Answering, answers={"PUT": [OK]}, asked=[], paths=[]) as server:
        # A proxy is asked for any name, so that none has to be known on this machine.
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{server.server_port}")
        with opened(endpoint="http://store.invalid", path_style=path_style) as store:
            store.put("k", b"12345")
    place = "store.invalid/bucket" if path_style else "bucket.store.invalid"
    assert server.paths == [f"http://{place}/objects/k"]


class Receiving(Answering):
    """Takes everything, and notes the hash that was promised beside the one that arrived."""

    def _receive(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.command == "PUT":
            promised = self.headers["x-amz-content-sha256"]
            self.server.hashes.append((promised, hashlib.sha256(body).hexdigest()))
        answer = b"<R><UploadId>u</UploadId><ETag>m</ETag></R>" if self.command == "POST" else b""
        self.send_response(200)
        self.send_header("ETag", '"mark"')
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_PUT = do_POST = _receive  # noqa: N815 - names of the library


def test_every_body_goes_with_its_hash():
    """The store can tell bytes that changed on their way, of one request and of each part (F21)."""
    with serving(Receiving, hashes=[]) as server, opened(server.server_port) as store:
        store.put("k", b"12345")
        store.put_stream("l", [*PIECES[:2], b"y"])
    assert len(server.hashes) == 3
    assert all(promised == arrived for promised, arrived in server.hashes)
