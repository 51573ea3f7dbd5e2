"""HTTP/2 without a socket, as far as a gRPC server needs it; `docs/internals/http2.md` has its limits."""
