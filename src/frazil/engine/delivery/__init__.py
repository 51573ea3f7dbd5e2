"""Subscriptions at work: the topic is read, records go to consumers, acks to the journal.

All of it belongs to one event loop. How the records leave the process is the transport's own
matter; what is delivered to whom is decided by `frazil.subscribe`.
"""

from __future__ import annotations

from frazil.engine.delivery.consumer import Consumer
from frazil.engine.delivery.deliveries import Deliveries
from frazil.engine.delivery.record import Record
from frazil.engine.delivery.subscription import Subscription

__all__ = ["Consumer", "Deliveries", "Record", "Subscription"]
