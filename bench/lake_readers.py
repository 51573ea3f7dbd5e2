"""Readers that ask a catalog for one table as fast as it answers: `lake_readers.py COUNT`.

A line on standard input names address, token, namespace and table. They ask until standard input
ends, then the answers a second are printed. Not part of Frazil: the lowest priority is theirs.
"""

from __future__ import annotations

import http.client
import os
import sys
import threading
import time
from urllib.parse import urlsplit


class Reader(threading.Thread):
    """Asks for the table until it is stopped."""

    def __init__(self, uri: str, path: str, token: str, stop: threading.Event) -> None:
        super().__init__()
        parts = urlsplit(uri)
        self._connection = http.client.HTTPConnection(str(parts.hostname), parts.port)
        self._path = f"{parts.path.rstrip('/')}{path}"
        self._headers = {"Authorization": f"Bearer {token}"}
        self._stopped = stop
        self.answers = 0
        self.refusal = ""

    def run(self) -> None:
        while not self._stopped.is_set():
            self._connection.request("GET", self._path, headers=self._headers)
            answer = self._connection.getresponse()
            body = answer.read()
            if answer.status != http.client.OK:
                self.refusal = f"{answer.status}: {body[:200]!r}"
                return
            self.answers += 1


def main(count: int) -> int:
    os.nice(19)
    uri, token, namespace, table = sys.stdin.readline().split()
    path = f"/v1/namespaces/{namespace}/tables/{table}"
    stop = threading.Event()
    readers = [Reader(uri, path, token, stop) for _ in range(count)]
    begin = time.perf_counter()
    for reader in readers:
        reader.start()
    print("asking", flush=True)
    sys.stdin.read()
    stop.set()
    for reader in readers:
        reader.join()
    for reader in readers:
        if reader.refusal:
            print(f"the catalog answered {reader.refusal}", file=sys.stderr)
            return 1
    print(sum(each.answers for each in readers) / (time.perf_counter() - begin), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(int(sys.argv[1])))
