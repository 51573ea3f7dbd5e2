"""The part of HTTP/2 that a gRPC server needs, without a socket; see `docs/internals/http2.md`."""
