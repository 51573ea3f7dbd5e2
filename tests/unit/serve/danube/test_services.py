"""The table of calls holds the whole protocol, each call where clients look for it."""

from __future__ import annotations

import pytest

from tests.support.rpcs import RPCS, Port

DATA = """
danube.ProducerService.CreateProducer ProducerRequest ProducerResponse
danube.ProducerService.SendMessage StreamMessage MessageResponse
danube.ConsumerService.Subscribe ConsumerRequest ConsumerResponse
danube.ConsumerService.ReceiveMessages ReceiveRequest stream:StreamMessage
danube.ConsumerService.Ack AckRequest AckResponse
danube.ConsumerService.Nack NackRequest NackResponse
danube.Discovery.TopicLookup TopicLookupRequest TopicLookupResponse
danube.Discovery.TopicPartitions TopicLookupRequest TopicPartitionsResponse
danube.HealthCheck.HealthCheck HealthCheckRequest HealthCheckResponse
danube.StorageService.ListSegmentDescriptors \
ListSegmentDescriptorsRequest ListSegmentDescriptorsResponse
"""
SCHEMA_CALLS = """
RegisterSchema GetSchema GetLatestSchema ListVersions CheckCompatibility DeleteSchemaVersion
SetCompatibilityMode ConfigureTopicSchema UpdateTopicValidationPolicy GetTopicSchemaConfig
ListSubjects
"""
ADMIN = """
danube_admin.TopicAdmin.CreateTopic NewTopicRequest TopicResponse
danube_admin.TopicAdmin.CreatePartitionedTopic PartitionedTopicRequest TopicResponse
danube_admin.TopicAdmin.DeleteTopic TopicRequest TopicResponse
danube_admin.TopicAdmin.UnloadTopic TopicRequest TopicResponse
danube_admin.TopicAdmin.ListSubscriptions TopicRequest SubscriptionListResponse
danube_admin.TopicAdmin.Unsubscribe SubscriptionRequest SubscriptionResponse
danube_admin.TopicAdmin.SetSubscriptionFailurePolicy \
SetSubscriptionFailurePolicyRequest SubscriptionResponse
danube_admin.TopicAdmin.GetSubscriptionFailurePolicy \
GetSubscriptionFailurePolicyRequest GetSubscriptionFailurePolicyResponse
danube_admin.TopicAdmin.DescribeTopic DescribeTopicRequest DescribeTopicResponse
danube_admin.TopicAdmin.ListNamespaceTopics NamespaceRequest TopicInfoListResponse
danube_admin.TopicAdmin.ListBrokerTopics BrokerRequest TopicInfoListResponse
danube_admin.TopicAdmin.SetSubscriptionDispatchConfig \
SetSubscriptionDispatchConfigRequest SubscriptionResponse
danube_admin.TopicAdmin.GetSubscriptionDispatchConfig \
GetSubscriptionDispatchConfigRequest GetSubscriptionDispatchConfigResponse
danube_admin.NamespaceAdmin.GetNamespaceTopics NamespaceRequest GetNamespaceTopicsResponse
danube_admin.NamespaceAdmin.GetNamespacePolicies NamespaceRequest GetNamespacePoliciesResponse
danube_admin.NamespaceAdmin.CreateNamespace NamespaceRequest NamespaceResponse
danube_admin.NamespaceAdmin.DeleteNamespace NamespaceRequest NamespaceResponse
danube_admin.BrokerAdmin.ListBrokers Empty ListBrokersResponse
danube_admin.BrokerAdmin.GetLeaderBroker Empty GetLeaderBrokerResponse
danube_admin.BrokerAdmin.ListNamespaces Empty ListNamespacesResponse
"""


def rows(text):
    """Return the table's rows as path -> (request, reply, is_stream)."""
    found = {}
    for line in text.strip().splitlines():
        name, request, reply = line.split()
        service, _, call = name.rpartition(".")
        stream = reply.startswith("stream:")
        found[f"/{service}/{call}"] = (request, reply.removeprefix("stream:"), stream)
    return found


def schema_rows():
    found = {}
    for call in SCHEMA_CALLS.split():
        reply = "GetSchema" if call == "GetLatestSchema" else call
        path = f"/danube_schema.SchemaRegistry/{call}"
        found[path] = (f"{call}Request", f"{reply}Response", False)
    return found


@pytest.mark.parametrize(("port", "own"), [(Port.DATA, DATA), (Port.ADMIN, ADMIN)])
def test_each_port_has_exactly_the_protocols_calls(port, own):
    """The calls of a port, their messages and directions are those of the protocol's table."""
    served = {
        path: (rpc.request.__name__, rpc.reply.__name__, rpc.is_stream)
        for path, rpc in RPCS.items()
        if port in rpc.ports
    }
    assert served == rows(own) | schema_rows()
