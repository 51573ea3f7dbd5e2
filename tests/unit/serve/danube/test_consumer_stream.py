"""How much a consumer's stream asks its subscription for."""

from __future__ import annotations

from frazil.schema import Message
from frazil.serve.danube.consumer_stream import (
    GRANT_BYTES,
    GRANT_BYTES_LARGE,
    GRANT_RECORDS,
    ConsumerStream,
)
from frazil.serve.danube.messages import DeliveryEncoder
from frazil.subscribe import Record, SubscriptionType


class Asked:
    """A subscription that remembers what it was asked for."""

    name = "sub"
    kind = SubscriptionType.EXCLUSIVE

    def __init__(self):
        self.grants = []

    def attach(self, consumer, filters=()):
        pass

    def ready(self, consumer, *, messages, size_bytes):
        self.grants.append((messages, size_bytes))


class Taking:
    """A call whose client takes what is written, or does not."""

    def __init__(self):
        self.has_room = True
        self.written = []

    def write(self, data):
        self.written.append(data)
        return self.has_room


def test_a_client_that_has_shown_that_it_reads_may_have_twice_as_much_queued():
    """Who never read anything has the smaller part only, and nothing more until there is room."""
    call, asked = Taking(), Asked()
    encoder = DeliveryEncoder(topic_name="/default/t", broker_addr="http://127.0.0.1:6650")
    stream = ConsumerStream(
        *(call, asked, encoder),
        consumer_id=1,
        name="one",
        opened_s=0.0,
        on_end=lambda stream, is_gone: None,
    )
    record = Record(7, Message(b"payload"), 0, 7)
    stream.start(())
    stream.deliver([record], None)
    call.has_room = False
    stream.deliver([record], None)
    call.on_ready()
    call.has_room = True
    stream.deliver([record], None)
    small, large = (GRANT_RECORDS, GRANT_BYTES), (GRANT_RECORDS, GRANT_BYTES_LARGE)
    assert asked.grants == [small, small, (0, 0), large, large]
    assert len(call.written) == 3
