"""gRPC over `frazil.serve.h2`: what a call is, who handles it, and the asyncio shell around both.

`codec`, `router` and `calls` are pure; `shell` and `server` own sockets and timers. Handlers know
a `Call` and bytes, nothing of the transport.
"""
