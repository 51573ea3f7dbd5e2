"""Which handler answers which call of the admin port, the schema registry's apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from frazil.serve.danube.admin_brokers import BrokerAdmin, BrokerFacts
from frazil.serve.danube.admin_namespaces import NamespaceAdmin, Namespaces
from frazil.serve.danube.admin_subscriptions import SubscriptionAdmin
from frazil.serve.danube.admin_topics import TopicAdmin

if TYPE_CHECKING:
    from frazil.serve.danube.admin_needs import AdminNeeds
    from frazil.serve.grpc.router import Route

__all__ = ["BrokerFacts", "admin_routes"]


def admin_routes(needs: AdminNeeds, facts: BrokerFacts) -> dict[str, Route]:
    """Return the routes of TopicAdmin, NamespaceAdmin and BrokerAdmin.

    Everything that is not among them is answered UNIMPLEMENTED. Call it in the loop that serves.
    """
    namespaces = Namespaces(needs.engine)
    return {
        **TopicAdmin(needs, namespaces, broker_id=facts.broker_id).routes(),
        **SubscriptionAdmin(needs).routes(),
        **NamespaceAdmin(namespaces, needs.engine.settings, needs.acts).routes(),
        **BrokerAdmin(facts, namespaces).routes(),
    }
