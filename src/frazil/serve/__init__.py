"""The broker's front ends: the network access to the engine.

`h2` and `grpc` are the server: HTTP/2 and gRPC as pure state machines, and one asyncio shell around
them. `danube` has the services and `auth` the guard.
"""
