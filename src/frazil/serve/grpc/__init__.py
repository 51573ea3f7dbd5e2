"""gRPC over `frazil.serve.h2`: calls, routes, and the asyncio server around both.

`codec`, `router` and `calls` are pure; `protocol` and `server` own sockets and timers. Handlers see
a `Call` and bytes, not the transport.
"""
