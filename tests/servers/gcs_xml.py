"""Google's XML interface in front of the storage of `gcp-storage-emulator`.

obstore speaks the XML interface; the emulator has the JSON one, and of XML only reads and plain
writes. This adds what is missing as Google documents it: looks, lists with pages, uploads in parts,
deletes, and writes on the condition that nothing is there. Bytes and their marks are the
emulator's.

    python -m tests.servers.gcs_xml DIRECTORY PORT BUCKET
"""

from __future__ import annotations

import base64
import datetime as dt
import email.utils
import hashlib
import re
import sys
import threading
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

from gcp_storage_emulator.exceptions import NotFound
from gcp_storage_emulator.handlers import buckets
from gcp_storage_emulator.handlers.objects import _checksums, _make_object_resource
from gcp_storage_emulator.storage import Storage

PAGE_KEYS = 100
"""Google's pages have 1000 keys; a list has pages sooner here."""

_RANGE = re.compile(r"bytes=(\d+)-(\d+)?")


class Refused(Exception):
    """A status with the code and words of the XML interface."""

    def __init__(self, status, code, words):
        super().__init__(words)
        self.status, self.code, self.words = status, code, words


class Handler(BaseHTTPRequestHandler):
    """One connection; `mutex` makes a condition and its write one step."""

    protocol_version = "HTTP/1.1"
    mutex = threading.Lock()
    uploads: dict[str, dict[int, bytes]] = {}  # noqa: RUF012 - shared by all connections

    def __init__(self, storage, *arguments):
        self.storage = storage
        super().__init__(*arguments)

    def log_message(self, *words):
        """Say nothing of what went well."""

    def _serve(self):
        parts = urlsplit(self.path)
        bucket, _, self.key = unquote(parts.path).lstrip("/").partition("/")
        self.query = {k: v[0] for k, v in parse_qs(parts.query, keep_blank_values=True).items()}
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.bucket = bucket
        try:
            with self.mutex:
                self._check_bucket()
                getattr(self, f"_{self.command.lower()}")()
        except Refused as refused:
            text = f"<Error><Code>{refused.code}</Code><Message>{refused.words}</Message></Error>"
            self._answer(refused.status, text.encode())

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815 - names of the library

    def _check_bucket(self):
        if self.bucket not in self.storage.buckets:
            raise Refused(404, "NoSuchBucket", "The specified bucket does not exist.")

    def _answer(self, status, body=b"", length=None, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _found(self):
        try:
            return self.storage.get_file_obj(self.bucket, self.key)
        except NotFound as error:
            raise Refused(404, "NoSuchKey", "The specified key does not exist.") from error

    def _marks(self, found):
        when = dt.datetime.fromisoformat(found["updated"])
        return {
            "ETag": _etag(found),
            "Last_Modified": email.utils.format_datetime(when, usegmt=True),
            "x_goog_generation": found["generation"],
        }

    def _write(self, data):
        if self.headers.get("x-goog-if-generation-match") == "0":
            try:
                self.storage.get_file_obj(self.bucket, self.key)
            except NotFound:
                pass
            else:
                raise Refused(412, "PreconditionFailed", "At least one condition did not hold.")
        kind = "application/octet-stream"
        made = _make_object_resource("", self.bucket, self.key, kind, str(len(data)))
        found = _checksums(data, made)
        self.storage.create_file(self.bucket, self.key, data, found)
        return self._marks(found)

    def _head(self):
        found = self._found()
        self._answer(200, length=int(found["size"]), **self._marks(found))

    def _get(self):
        if not self.key:
            self._list()
            return
        found = self._found()
        data = self.storage.get_file(self.bucket, self.key)
        wanted = _RANGE.fullmatch(self.headers.get("Range", ""))
        if wanted is None:
            self._answer(200, data, **self._marks(found))
            return
        start = int(wanted[1])
        if start >= len(data):
            raise Refused(416, "InvalidRange", "The requested range cannot be satisfied.")
        end = min(int(wanted[2] or len(data)), len(data) - 1)
        place = f"bytes {start}-{end}/{len(data)}"
        part = data[start : end + 1]
        self._answer(206, part, Content_Range=place, **self._marks(found))

    def _list(self):
        found, _ = self.storage.get_file_list(self.bucket, self.query.get("prefix"))
        after = self.query.get("continuation-token") or self.query.get("start-after", "")
        rest = [each for each in found if each["name"] > after]
        page = rest[:PAGE_KEYS]
        text = "".join(
            f"<Contents><Key>{escape(each['name'])}</Key><Size>{each['size']}</Size>"
            f"<LastModified>{each['updated']}</LastModified><ETag>{_etag(each)}</ETag></Contents>"
            for each in page
        )
        if len(rest) > len(page):
            text += f"<NextContinuationToken>{escape(page[-1]['name'])}</NextContinuationToken>"
        self._answer(200, f"<ListBucketResult>{text}</ListBucketResult>".encode())

    def _put(self):
        upload = self.query.get("uploadId")
        if upload is None:
            self._answer(200, **self._write(self.body))
            return
        self._parts(upload)[int(self.query["partNumber"])] = self.body
        self._answer(200, ETag=_quoted(hashlib.md5(self.body).digest()))

    def _parts(self, upload):
        if upload not in self.uploads:
            raise Refused(404, "NoSuchUpload", "The requested upload was not found.")
        return self.uploads[upload]

    def _post(self):
        if "uploads" in self.query:
            upload = f"upload-{len(self.uploads)}"
            self.uploads[upload] = {}
            text = f"<UploadId>{upload}</UploadId>"
            self._answer(
                200,
                f"<InitiateMultipartUploadResult>{text}</InitiateMultipartUploadResult>".encode(),
            )
            return
        parts = self._parts(self.query["uploadId"])
        named = ET.fromstring(self.body).iter()
        numbers = [int(each.text) for each in named if each.tag.endswith("PartNumber")]
        marks = self._write(b"".join(parts[number] for number in numbers))
        parts.clear()
        text = f"<ETag>{escape(marks['ETag'])}</ETag>"
        body = f"<CompleteMultipartUploadResult>{text}</CompleteMultipartUploadResult>"
        self._answer(200, body.encode(), **marks)

    def _delete(self):
        if "uploadId" in self.query:
            self._parts(self.query["uploadId"]).clear()
        else:
            self._found()
            self.storage.delete_file(self.bucket, self.key)
        self._answer(204)


def _quoted(digest):
    return f'"{digest.hex()}"'


def _etag(found):
    return _quoted(base64.b64decode(found["md5Hash"]))


def main():
    """Serve until killed."""
    directory, port, bucket = sys.argv[1:]
    storage = Storage(data_dir=directory)
    if bucket not in storage.buckets:
        buckets.create_bucket(bucket, storage)
    ThreadingHTTPServer(("127.0.0.1", int(port)), partial(Handler, storage)).serve_forever()


if __name__ == "__main__":
    main()
