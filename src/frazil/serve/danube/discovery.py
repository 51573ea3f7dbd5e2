"""Discovery calls: topic lookup, health checks, and the objects of a topic's history."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from frazil.serve.danube.messages import parse_request
from frazil.serve.danube.names import checked_topic
from frazil.serve.danube.proto.danube_pb2 import (
    HealthCheckRequest,
    HealthCheckResponse,
    ListSegmentDescriptorsRequest,
    ListSegmentDescriptorsResponse,
    SegmentDescriptorProto,
    TopicLookupRequest,
    TopicLookupResponse,
    TopicPartitionsResponse,
)
from frazil.serve.danube.statuses import Refused, status

if TYPE_CHECKING:
    from collections.abc import Callable

    from frazil.objects import Descriptor, TopicObjects
    from frazil.serve.danube.consumers import Consumers
    from frazil.serve.danube.producers import Producers
    from frazil.serve.danube.topics import Topics
    from frazil.serve.grpc.calls import Call

__all__ = ["SEGMENTS_MAX", "Discovery"]

SEGMENTS_MAX: Final = 10_000
"""Objects in one answer; a request after the last of them gets the next."""


class Discovery:
    """The calls that the broker answers from memory."""

    def __init__(
        self,
        topics: Topics,
        producers: Producers,
        *,
        url: str,
        consumers: Consumers,
        objects: Callable[[int], TopicObjects],
    ) -> None:
        self._topics = topics
        self._producers = producers
        self._consumers = consumers
        self._objects = objects
        self._url = url
        self.is_closing = False
        """Whether health checks answer CLOSE, so that clients reconnect to another broker."""

    def look_up(self, call: Call, message: bytes) -> None:
        """Answer TopicLookup: every topic that exists is here."""
        request = parse_request(TopicLookupRequest, message)
        if not self._topics.parts(checked_topic(request.topic)):
            raise Refused(status("topic_not_found", topic=request.topic))
        call.ok(
            TopicLookupResponse(
                request_id=request.request_id,
                response_type=TopicLookupResponse.Connect,
                connect_url=self._url,
                broker_url=self._url,
            ).SerializeToString()
        )

    def partitions(self, call: Call, message: bytes) -> None:
        """Answer TopicPartitions: the topic itself, its parts, or nothing."""
        request = parse_request(TopicLookupRequest, message)
        names = self._topics.parts(checked_topic(request.topic))
        call.ok(
            TopicPartitionsResponse(
                request_id=request.request_id, partitions=names
            ).SerializeToString()
        )

    def health(self, call: Call, message: bytes) -> None:
        """Answer HealthCheck: CLOSE where the client has to set itself up again."""
        request = parse_request(HealthCheckRequest, message)
        if request.client == HealthCheckRequest.Producer:
            is_known = self._producers.is_known(request.id)
        elif request.client == HealthCheckRequest.Consumer:
            is_known = self._consumers.is_known(request.id)
        else:
            raise Refused(status("client_type_unknown", client=request.client))
        is_well = is_known and not self.is_closing
        found = HealthCheckResponse.OK if is_well else HealthCheckResponse.CLOSE
        call.ok(HealthCheckResponse(status=found).SerializeToString())

    def segments(self, call: Call, message: bytes) -> None:
        """Answer ListSegmentDescriptors: the registered objects that reach beyond `after_offset`.

        Offsets are those of records, the last one included: a client sends the last offset that it
        has read. One that has read nothing sends 0, so 0 leaves nothing out.
        """
        request = parse_request(ListSegmentDescriptorsRequest, message)
        topic = self._topics.find(checked_topic(request.topic))
        response = ListSegmentDescriptorsResponse()
        if topic is not None:
            found = self._objects(topic.runtime.state.id)
            after = request.after_offset
            listed = found.after(after + 1 if after else 0)
            response.segments.extend(_segment(each) for each in islice(listed, SEGMENTS_MAX))
        call.ok(response.SerializeToString())


def _segment(descriptor: Descriptor) -> SegmentDescriptorProto:
    return SegmentDescriptorProto(
        segment_id=descriptor.key.rpartition("/")[2],
        start_offset=descriptor.first,
        end_offset=descriptor.end - 1,
        size=descriptor.size,
        etag=descriptor.etag,
        created_at=descriptor.created_us // 1_000_000,
    )
