"""Every call of the protocol, from the descriptors: its path, messages, direction and ports."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from frazil.serve.danube.proto import danube_admin_pb2, danube_pb2, danube_schema_pb2


class Port(StrEnum):
    """Where a service is reached."""

    DATA = "data"
    ADMIN = "admin"


class Rpc(NamedTuple):
    """One call: one request, then one reply or a stream of them."""

    path: str
    request: type
    reply: type
    is_stream: bool
    ports: frozenset[Port]

    @property
    def service(self):
        return self.path.split("/")[1]

    @property
    def name(self):
        return self.path.split("/")[2]


_MODULES = (
    (danube_pb2, frozenset({Port.DATA})),
    (danube_schema_pb2, frozenset(Port)),
    (danube_admin_pb2, frozenset({Port.ADMIN})),
)
SERVICES = {
    service.full_name: ports
    for module, ports in _MODULES
    for service in module.DESCRIPTOR.services_by_name.values()
}
"""Every service by its full name, with its ports; two have no calls."""
RPCS = {
    path: Rpc(
        path,
        getattr(module, method.input_type.name),
        getattr(module, method.output_type.name),
        method.server_streaming,
        ports,
    )
    for module, ports in _MODULES
    for service in module.DESCRIPTOR.services_by_name.values()
    for method in service.methods
    for path in [f"/{service.full_name}/{method.name}"]
}
"""Every call by its path."""
