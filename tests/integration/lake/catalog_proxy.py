"""A proxy in front of a catalog: it loses or holds a chosen commit, before or after the catalog has it."""

from __future__ import annotations

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import msgspec

HOLD_SECONDS = 900.0
HOP_HEADERS = {"connection", "keep-alive", "transfer-encoding", "content-length", "host"}
FAULTS = ("pass", "drop_request", "drop_reply", "hold_request", "hold_reply")


class CatalogProxy:
    """Forwards everything; the commit that is armed for is lost or held, once.

    `drop_request` closes the connection instead of forwarding, `drop_reply` after the catalog has
    answered. `hold_request` and `hold_reply` wait there for `release`; `reached` tells that they
    do. What was held is forwarded whether the caller is still there or not. `pass` does nothing:
    the fault behind it is for the commit after the next.
    """

    def __init__(self, address):
        self.behind = urlsplit(address.uri)
        self.reached = threading.Event()
        self.release = threading.Event()
        self.happened = []
        """The faults, each with the catalog's status, 0 if it was not asked."""
        self._armed = []
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        uri = f"http://127.0.0.1:{self._server.server_port}{self.behind.path}"
        self.address = msgspec.structs.replace(address, uri=uri)

    def arm(self, table, *faults, update="add-snapshot"):
        """Let the next commits with that update to a table meet a fault each."""
        assert set(faults) <= set(FAULTS)
        self.reached.clear()
        self.release.clear()
        self._armed = [(f"/tables/{table}", update.encode(), fault) for fault in faults]

    @property
    def armed(self):
        """Return how many faults have not happened yet."""
        return len(self._armed)

    def fault_of(self, method, path, body):
        """Return what becomes of a request, empty if nothing."""
        with self._lock:
            if method == "POST" and self._armed:
                end, update, fault = self._armed[0]
                if urlsplit(path).path.endswith(end) and update in body:
                    del self._armed[0]
                    return fault
        return ""

    def hold(self):
        self.reached.set()
        self.release.wait(HOLD_SECONDS)

    def close(self):
        self.release.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: CatalogProxy

    def log_message(self, *_arguments):
        """Say nothing: the tests look at what happened."""

    def handle_one_request(self):
        try:
            super().handle_one_request()
        except ConnectionError:
            # The caller was killed: nobody is left to answer.
            self.close_connection = True

    def _forward(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        fault = self.proxy.fault_of(self.command, self.path, body)
        if fault == "hold_request":
            self.proxy.hold()
        if fault == "drop_request":
            self._drop(fault, 0)
            return
        status, headers, data = self._asked(body)
        if fault == "drop_reply":
            self._drop(fault, status)
            return
        if fault:
            self.proxy.happened.append((fault, status))
        if fault == "hold_reply":
            self.proxy.hold()
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in HOP_HEADERS:
                self.send_header(name, value)
        if status >= 200 and status != 204 and self.command != "HEAD":
            self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _asked(self, body):
        connection = http.client.HTTPConnection(self.proxy.behind.hostname, self.proxy.behind.port)
        try:
            headers = {k: v for k, v in self.headers.items() if k.lower() not in HOP_HEADERS}
            connection.request(self.command, self.path, body=body or None, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _drop(self, fault, status):
        self.proxy.happened.append((fault, status))
        self.close_connection = True

    do_GET = do_POST = do_DELETE = do_HEAD = _forward  # noqa: N815 - names of the library
