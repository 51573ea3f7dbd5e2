"""What is read of protobuf's descriptors, as types: the library itself has none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Descriptor", "FileDescriptor", "MethodDescriptor", "ServiceDescriptor"]


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
