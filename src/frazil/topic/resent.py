"""What an idempotent producer has sent to a topic before, as the topic's window of it tells.

A change that needs the state of its key must not be resolved twice: the first time has changed that
state. So a repeat is recognised before anything is resolved, and only asks the journal for the
answer that the first one got.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from frazil.errors import Conflict
from frazil.log import judge

if TYPE_CHECKING:
    from frazil.log import Sender, Sent, TopicState


class SentMeanwhile(Exception):
    """What was about to be resolved has been written meanwhile, by another try of the same call."""


def sent_before(state: TopicState, sender: Sender | None, *, records: int) -> list[int]:
    """Return how many records each of the batches has that a call repeats, from its first one on.

    They may be fewer than the call has: then its rest was not written.
    """
    counts: list[int] = []
    if sender is None or sender.producer is None:
        return counts
    known = {each.sequence: each.records for each in _window(state, sender)}
    sequence = sender.sequence
    while sequence < sender.sequence + records and sequence in known:
        counts.append(known[sequence])
        sequence += counts[-1]
    return counts


def refusal_of(state: TopicState, sender: Sender, *, records: int) -> Conflict | None:
    """Return why the journal would not take a batch from a producer that has nothing on its way."""
    assert sender.producer is not None
    producer = state.producers.get(sender.producer)
    if producer is None:
        return None
    if sender.epoch < producer.epoch:
        return Conflict(
            "producer is fenced by a newer epoch",
            producer=sender.producer,
            epoch=sender.epoch,
            epoch_current=producer.epoch,
        )
    verdict = judge(
        _window(state, sender),
        sequence=sender.sequence,
        count=records,
        producer=sender.producer,
    )
    return verdict if isinstance(verdict, Conflict) else None


def _window(state: TopicState, sender: Sender) -> list[Sent]:
    """Return the last batches of a producer under its epoch, oldest first."""
    assert sender.producer is not None
    producer = state.producers.get(sender.producer)
    if producer is None or producer.epoch != sender.epoch:
        return []
    return list(producer.window)
