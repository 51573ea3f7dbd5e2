"""A client for the tests of the connection: writes frames, reads frames, no socket between."""

from __future__ import annotations

from hpack import Decoder, Encoder

from frazil.serve.h2 import frames as f
from frazil.serve.h2.connection import Connection
from frazil.serve.h2.limits import ServerLimits

REQUEST = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/t.T/Echo"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
)


def prefixed(message):
    """Return a message with gRPC's five bytes in front of it."""
    return b"\0" + len(message).to_bytes(4) + message


def split_frames(data):
    """Return the (kind, flags, stream, payload) of whole frames, and nothing may be left over."""
    found, position = [], 0
    while position < len(data):
        length = int.from_bytes(data[position : position + 3])
        kind, flags = data[position + 3], data[position + 4]
        stream = int.from_bytes(data[position + 5 : position + 9])
        payload = data[position + 9 : position + 9 + length]
        assert len(payload) == length
        found.append((kind, flags, stream, payload))
        position += 9 + length
    return found


class Recorder:
    """An application that records its calls, and answers by `answer`."""

    def __init__(self, answer=None):
        self.requests, self.cancelled, self.excess, self.refused = [], [], [], []
        self.parted = []
        self.streams = {}
        self.resolved = 0
        self.answer = answer
        self.sender = None

    def resolve(self, fields):
        self.resolved += 1
        return dict(fields)

    def refuse_large(self):
        return "large"

    def admits(self, stream):
        self.parted.append(stream.sid)
        return True

    def on_request(self, stream, body):
        self.requests.append((stream.sid, body))
        self.streams[stream.sid] = stream
        if self.answer is not None:
            self.answer(self.sender, stream, body)

    def on_refused(self):
        self.refused.append(True)

    def on_large(self, stream, bytes_max):
        self.excess.append((stream.sid, f"larger than {bytes_max}"))
        self.sender.finish(stream, 11, b"too large")

    def on_excess(self, stream):
        self.excess.append((stream.sid, "one too many"))
        self.sender.finish(stream, 8, b"one too many")

    def on_cancel(self, stream):
        self.cancelled.append(stream.sid)


def echo(sender, stream, body):
    """Answer with what was asked."""
    sender.reply((stream,), (body[5:],))


class Peer:
    """Speaks to one connection; `dirtied` counts how often the connection asked to be taken."""

    def __init__(self, limits=None, answer=echo, *, greet=True):
        self.app = Recorder(answer)
        self.dirtied = 0
        self.connection = Connection(limits or ServerLimits(), self.app, self._on_dirty)
        self.app.sender = self.sender = self.connection.sender
        self.encoder, self.decoder = Encoder(), Decoder()
        self.alive = True
        if greet:
            self.greeting = self.send(f.PREFACE, f.settings({}))

    def _on_dirty(self):
        self.dirtied += 1

    def send(self, *parts):
        """Feed bytes; return the frames that come back."""
        self.alive = self.connection.receive(b"".join(parts))
        return self.take()

    def take(self):
        """Return the frames that wait to be sent."""
        return split_frames(self.sender.take())

    def headers(self, sid, fields=REQUEST, flags=f.END_HEADERS):
        return f.frame(f.HEADERS, flags, sid, self.encoder.encode(fields))

    def call(self, sid, message=b"hi", fields=REQUEST):
        """Return the bytes of a whole call."""
        data = f.frame(f.DATA, f.END_STREAM, sid, prefixed(message))
        return self.headers(sid, fields) + data

    def answers(self, frames):
        """Return {stream: (header lists, data, ended)} of frames, reading all header blocks."""
        found = {}
        for kind, flags, sid, payload in frames:
            lists, data, ended = found.setdefault(sid, ([], b"", False))
            if kind == f.HEADERS:
                lists.append(dict(self.decoder.decode(payload)))
                ended = bool(flags & f.END_STREAM)
            elif kind == f.DATA:
                data += payload
            found[sid] = (lists, data, ended)
        return found


def goaway_code(frames):
    """Return the code of the GOAWAY among frames, or None."""
    codes = [int.from_bytes(payload[4:8]) for kind, _, _, payload in frames if kind == f.GOAWAY]
    return f.ErrorCode(codes[-1]) if codes else None


def resets(frames):
    """Return {stream: code} of the RST_STREAM frames."""
    return {
        sid: f.ErrorCode(int.from_bytes(payload))
        for kind, _, sid, payload in frames
        if kind == f.RST_STREAM
    }
