"""The brokers of the cluster: this one, which leads itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import attrs

from frazil.serve.danube.admin_calls import admin_call
from frazil.serve.danube.proto.danube_admin_pb2 import (
    BrokerInfo,
    Empty,
    GetLeaderBrokerResponse,
    ListBrokersResponse,
    ListNamespacesResponse,
)

if TYPE_CHECKING:
    from frazil.serve.danube.admin_namespaces import Namespaces
    from frazil.serve.grpc.router import Route

__all__ = ["BrokerAdmin", "BrokerFacts"]

_ROLE: Final = "Cluster_Leader"
_STATUS: Final = "active"


@attrs.frozen(kw_only=True)
class BrokerFacts:
    """Who this broker is, and where: URLs with their schemes."""

    broker_id: str
    url: str
    admin_url: str
    metrics_url: str


class BrokerAdmin:
    """Answers the calls of `danube_admin.BrokerAdmin`."""

    def __init__(self, facts: BrokerFacts, namespaces: Namespaces) -> None:
        self._facts = facts
        self._namespaces = namespaces

    def routes(self) -> dict[str, Route]:
        """Return the calls by path."""
        return {
            "/danube_admin.BrokerAdmin/ListBrokers": admin_call(Empty, self._brokers),
            "/danube_admin.BrokerAdmin/GetLeaderBroker": admin_call(Empty, self._leader),
            "/danube_admin.BrokerAdmin/ListNamespaces": admin_call(Empty, self._all_namespaces),
        }

    async def _brokers(self, _request: Empty) -> ListBrokersResponse:
        facts = self._facts
        broker = BrokerInfo(
            broker_id=facts.broker_id,
            broker_addr=facts.url,
            broker_role=_ROLE,
            admin_addr=facts.admin_url,
            metrics_addr=facts.metrics_url,
            broker_status=_STATUS,
        )
        return ListBrokersResponse(brokers=[broker])

    async def _leader(self, _request: Empty) -> GetLeaderBrokerResponse:
        return GetLeaderBrokerResponse(leader=self._facts.broker_id)

    async def _all_namespaces(self, _request: Empty) -> ListNamespacesResponse:
        return ListNamespacesResponse(namespaces=await self._namespaces.names())
