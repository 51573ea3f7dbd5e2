"""Every call of the protocol, from the descriptors: its path, messages, direction and ports.

A path that is not here is answered UNIMPLEMENTED, as are all calls of `ClusterAdmin` and
`SecurityAdmin`, which are services by name only.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Final, Protocol, Self, cast

import attrs

from frazil.serve.danube.proto import danube_admin_pb2, danube_pb2, danube_schema_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = [
    "RPCS",
    "SERVICES",
    "Descriptor",
    "FileDescriptor",
    "MethodDescriptor",
    "Port",
    "Rpc",
    "ServiceDescriptor",
    "WireMessage",
    "rpcs_of",
]


class Descriptor(Protocol):
    """A message."""

    @property
    def name(self) -> str: ...
    @property
    def full_name(self) -> str: ...


class MethodDescriptor(Protocol):
    """A call of a service."""

    @property
    def name(self) -> str: ...
    @property
    def input_type(self) -> Descriptor: ...
    @property
    def output_type(self) -> Descriptor: ...
    @property
    def client_streaming(self) -> bool: ...
    @property
    def server_streaming(self) -> bool: ...


class ServiceDescriptor(Protocol):
    """A service."""

    @property
    def full_name(self) -> str: ...
    @property
    def methods(self) -> Sequence[MethodDescriptor]: ...


class FileDescriptor(Protocol):
    """A file of messages and services."""

    @property
    def name(self) -> str: ...
    @property
    def services_by_name(self) -> Mapping[str, ServiceDescriptor]: ...
    @property
    def message_types_by_name(self) -> Mapping[str, Descriptor]: ...


class Port(StrEnum):
    """Where a service is reached."""

    DATA = "data"
    ADMIN = "admin"


class WireMessage(Protocol):
    """A message of the protocol."""

    @classmethod
    def FromString(cls, data: bytes, /) -> Self: ...  # noqa: N802
    def SerializeToString(self) -> bytes: ...  # noqa: N802


@attrs.frozen
class Rpc:
    """One call: one request, then one reply or a stream of them."""

    path: str
    request: type[WireMessage]
    reply: type[WireMessage]
    is_stream: bool
    ports: frozenset[Port]

    @property
    def service(self) -> str:
        return self.path.split("/")[1]

    @property
    def name(self) -> str:
        return self.path.split("/")[2]


_MODULES: Final = (danube_pb2, danube_schema_pb2, danube_admin_pb2)
_PORTS: Final = {
    "danube": frozenset({Port.DATA}),
    "danube_schema": frozenset({Port.DATA, Port.ADMIN}),
    "danube_admin": frozenset({Port.ADMIN}),
}
"""The ports of each package's services."""


def _file_of(module: ModuleType) -> FileDescriptor:
    return cast("FileDescriptor", module.DESCRIPTOR)


def _class_of(module: ModuleType, message: Descriptor) -> type[WireMessage]:
    return cast("type[WireMessage]", getattr(module, message.name))


def _services() -> Iterator[tuple[str, frozenset[Port]]]:
    for module in _MODULES:
        for service in _file_of(module).services_by_name.values():
            yield service.full_name, _PORTS[service.full_name.split(".")[0]]


def _rpcs() -> Iterator[Rpc]:
    for module in _MODULES:
        for service in _file_of(module).services_by_name.values():
            for method in service.methods:
                assert not method.client_streaming, method.name
                yield Rpc(
                    path=f"/{service.full_name}/{method.name}",
                    request=_class_of(module, method.input_type),
                    reply=_class_of(module, method.output_type),
                    is_stream=method.server_streaming,
                    ports=SERVICES[service.full_name],
                )


SERVICES: Final[Mapping[str, frozenset[Port]]] = MappingProxyType(dict(_services()))
"""Every service by its full name, with its ports."""
RPCS: Final[Mapping[str, Rpc]] = MappingProxyType({rpc.path: rpc for rpc in _rpcs()})
"""Every call by its path."""


def rpcs_of(port: Port) -> tuple[Rpc, ...]:
    """Return the calls that are served on a port."""
    return tuple(rpc for rpc in RPCS.values() if port in rpc.ports)
