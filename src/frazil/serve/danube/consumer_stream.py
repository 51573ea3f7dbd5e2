"""One stream of messages to a consumer, at the speed at which its client reads.

A record is encoded once for all subscriptions; a batch is one write. The stream requests as many
bytes as its queue may hold, twice as many once its client has read some. It requests the full
amount again after every write that leaves room: a stream with room gets records, however a
subscription counts them. A stream without room requests nothing, so the queue of a slow client is
bounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from frazil.errors import NotFound
from frazil.serve.danube.messages import subscription_field
from frazil.serve.danube.statuses import status_of
from frazil.serve.grpc.codec import Code

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from frazil.errors import FrazilError
    from frazil.serve.danube.messages import DeliveryEncoder
    from frazil.serve.danube.unreliable import UnreliableSubscription
    from frazil.serve.grpc.calls import Call
    from frazil.subscribe import Record, Subscription

    Attachable = Subscription | UnreliableSubscription

__all__ = ["ConsumerStream"]

GRANT_BYTES: Final = 256 << 10
GRANT_BYTES_LARGE: Final = 512 << 10
"""Of a client that has read as much before: each delivery costs something, however small it is."""
GRANT_RECORDS: Final = 1 << 20


class ConsumerStream:
    """The stream of one consumer. All methods belong to the event loop's thread.

    `on_end` is called once, with the stream and whether its consumer has left permanently.
    """

    def __init__(
        self,
        call: Call,
        subscription: Attachable,
        encoder: DeliveryEncoder,
        *,
        consumer_id: int,
        name: str,
        opened_s: float,
        on_end: Callable[[ConsumerStream, bool], None],
    ) -> None:
        self.call = call
        self.subscription = subscription
        self.consumer_id = consumer_id
        self.name = name
        self.opened_s = opened_s
        self._run = encoder.run
        self._field = subscription_field(subscription.name)
        self._on_end = on_end
        self._is_over = False
        self._grant_bytes = GRANT_BYTES

    def start(self, filters: Sequence[str]) -> None:
        """Attach to the subscription; another stream of this consumer is displaced.

        Raises:
            Conflict: the subscription is Exclusive and has another consumer.
            FrazilError: the error that ended the subscription.
        """
        self.subscription.attach(self, filters)
        self.call.on_ready = self._read_on
        self.call.on_cancel = self._lost
        self._grant()

    def deliver(self, records: list[Record], _attempts: list[int] | None) -> None:
        """Write records to the client."""
        if self.call.write(self._run(records, self._field)):
            self._grant()
        else:
            self.subscription.ready(self, messages=0, size_bytes=0)

    def displaced(self) -> None:
        """End with OK: another stream of this consumer replaces this one."""
        self._over(is_gone=False)
        self.call.finish(Code.OK)

    def ended(self, error: FrazilError) -> None:
        """End: the subscription or its topic was removed, or the broker stops."""
        is_gone = isinstance(error, NotFound)
        self._over(is_gone=is_gone)
        if is_gone:
            # A clean end: the client reopens the stream and gets the error that the consumer is
            # unknown.
            self.call.finish(Code.OK)
        else:
            self.call.fail(*status_of(error))

    def stop(self, code: Code, text: str = "") -> None:
        """End the stream with a status; unacked records are delivered again."""
        self._lost()
        self.call.finish(code, text)

    def _lost(self) -> None:
        """Detach from the subscription: the client or the broker ends the call."""
        self.subscription.detach(self)
        self._over(is_gone=False)

    def _read_on(self) -> None:
        """Continue after the client has read most of the queue."""
        self._grant_bytes = GRANT_BYTES_LARGE
        self._grant()

    def _grant(self) -> None:
        self.subscription.ready(self, messages=GRANT_RECORDS, size_bytes=self._grant_bytes)

    def _over(self, *, is_gone: bool) -> None:
        if not self._is_over:
            self._is_over = True
            self._on_end(self, is_gone)
