"""A process that compares the clients' ledgers with each other and with the topic they used.

Arguments: the ledgers' directory, the data directory, the topic, that of its dead letters. The
    broker
must have ended. Prints one line of JSON: counts, and under `broken` every promise that was not
kept, with the first cases.
"""

from __future__ import annotations

import json
import sys
from bisect import bisect_left
from collections import Counter, defaultdict

import frazil
from tests.crash.broker_ledger import Follower, name_of

CASES_MAX = 5
IN_ORDER = ("exclusive", "failover")


class History:
    """What the ledgers say, by what it is asked for."""

    def __init__(self, events):
        self.tries = Counter()
        self.first_try = {}
        self.published = {}
        self.types = {}
        self.subscribed = {}
        self.streams = {}
        self.got = defaultdict(list)
        self.acking, self.acked = defaultdict(dict), defaultdict(dict)
        self.nacking = defaultdict(dict)
        self.recreated = Counter()
        self.kinds = Counter()
        for moment, kind, *facts in events:
            self.kinds[kind] += 1
            take = getattr(self, f"_{kind}", None)
            if take is not None:
                take(moment, *facts)

    def _sending(self, moment, producer, number):
        self.tries[producer, number] += 1
        self.first_try.setdefault((producer, number), moment)

    def _published(self, moment, producer, number):
        self.published[producer, number] = moment

    def _subscribed(self, moment, subscription, kind, _consumer):
        self.types[subscription] = kind
        self.subscribed.setdefault(subscription, moment)

    def _opening(self, moment, _subscription, stream):
        self.streams[stream] = moment

    def _got(self, moment, subscription, stream, offset, record, key):
        self.got[subscription].append((moment, stream, offset, tuple(record), key))

    def _acking(self, moment, subscription, offset):
        self.acking[subscription].setdefault(offset, moment)

    def _acked(self, moment, subscription, offset):
        self.acked[subscription].setdefault(offset, moment)

    def _nacking(self, moment, subscription, offset):
        self.nacking[subscription].setdefault(offset, moment)

    def _recreated(self, _moment, who, _why):
        self.recreated[who] += 1


class Broken:
    """The promises that were not kept."""

    def __init__(self):
        self.counts, self.cases = Counter(), defaultdict(list)

    def note(self, promise, **facts):
        """Write down that a promise was broken, and by what."""
        self.counts[promise] += 1
        if len(self.cases[promise]) < CASES_MAX:
            self.cases[promise].append(facts)

    def reported(self):
        """Return how often each was broken, with the first cases."""
        return {
            name: {"times": times, "first": self.cases[name]} for name, times in self.counts.items()
        }


def check(history, records, cursors, letters=()):
    """Return what is broken.

    Args:
        history: what the ledgers say.
        records: the topic: (offset, (producer, number), key) in order.
        cursors: by subscription what is settled for good; a cursor contains offsets.
        letters: (subscription, offset, (producer, number)) of the dead letters.
    """
    broken = Broken()
    dead_lettered = defaultdict(dict)
    for subscription, offset, record in letters:
        dead_lettered[subscription][offset] = record
    check_topic(history, records, broken)
    held = {offset: (record, key) for offset, record, key in records}
    for subscription in history.types:
        check_contents(history, subscription, held, broken)
        check_complete(history, subscription, held, cursors.get(subscription, ()), broken)
        check_settled(history, subscription, broken)
        check_reasons(history, subscription, held, cursors, dead_lettered[subscription], broken)
        for offset in history.acked[subscription]:
            if offset not in cursors.get(subscription, ()):
                broken.note("ack forgotten", subscription=subscription, offset=offset)
        if history.types[subscription] in IN_ORDER:
            check_order(history, subscription, broken)
        elif history.types[subscription] == "key_shared":
            check_key_order(history, subscription, held, broken)
    return broken.reported()


def check_topic(history, records, broken):
    """Every published record is there, and no more often than it was tried; in order, dense."""
    copies = Counter(record for _, record, _ in records)
    for record in history.published:
        if not copies[record]:
            broken.note("published record lost", record=record)
    for record, count in copies.items():
        if count > history.tries[record]:
            broken.note("record doubled", record=record, copies=count, tries=history.tries[record])
    last = {}
    for position, (offset, (producer, number), _) in enumerate(records):
        if offset != position:
            broken.note("offset skipped", offset=offset, position=position)
            break
        if number < last.get(producer, 0):
            broken.note("producer out of order", producer=producer, number=number, offset=offset)
        last[producer] = number


def check_contents(history, subscription, held, broken):
    """An offset has one record, whenever and to whomever it is delivered."""
    for _, stream, offset, record, key in history.got[subscription]:
        if held.get(offset) != (record, key):
            found = held.get(offset)
            broken.note("offset changed", offset=offset, got=(record, key), is_=found, on=stream)


def check_complete(history, subscription, held, cursor, broken):
    """What was sent after the subscription was there is delivered to it, and settled in the end."""
    seen = {offset for _, _, offset, _, _ in history.got[subscription]}
    since = history.subscribed[subscription]
    for offset, (record, _) in held.items():
        if offset not in seen and history.first_try.get(record, since) >= since:
            broken.note("never delivered", subscription=subscription, offset=offset, record=record)
        elif offset in seen and offset not in cursor:
            broken.note("never settled", subscription=subscription, offset=offset)


def check_settled(history, subscription, broken):
    """No record is sent to a consumer after its ack was answered.

    A record and the answer to its ack may cross on their way. It was sent later for sure if its
    stream was asked for after the answer, or if an earlier one on that stream was published since.
    """
    newest = {}
    for moment, stream, offset, record, _ in history.got[subscription]:
        acked = history.acked[subscription].get(offset)
        since = max(history.streams[stream], newest.get(stream, 0))
        if acked is not None and acked < since:
            late_ms = (moment - acked) / 1e6
            broken.note(
                "delivered after its ack",
                subscription=subscription,
                offset=offset,
                stream=stream,
                late_ms=late_ms,
            )
        newest[stream] = max(newest.get(stream, 0), history.first_try.get(record, 0))


def check_reasons(history, subscription, held, cursors, dead_lettered, broken):
    """What is settled was acked, or is a dead letter; and only what was refused is one."""
    cursor, since = cursors.get(subscription, ()), history.subscribed[subscription]
    for offset, (record, _) in held.items():
        is_asked_for = offset in history.acking[subscription] or offset in dead_lettered
        is_new = history.first_try.get(record, 0) >= since
        if is_new and offset in cursor and not is_asked_for:
            broken.note("settled for no reason", subscription=subscription, offset=offset)
    for offset, record in dead_lettered.items():
        if offset not in history.nacking[subscription]:
            broken.note("dead letter for no reason", subscription=subscription, offset=offset)
        if held.get(offset, (None,))[0] != record:
            broken.note("another record in a dead letter", subscription=subscription, offset=offset)


def check_order(history, subscription, broken):
    """On a stream offsets rise, but for records that it had before or that were nacked."""
    highest, had = {}, defaultdict(set)
    for moment, stream, offset, _, _ in history.got[subscription]:
        nacked = history.nacking[subscription].get(offset, moment) < moment
        if offset < highest.get(stream, -1) and offset not in had[stream] and not nacked:
            broken.note(
                "out of order", subscription=subscription, offset=offset, after=highest[stream]
            )
        had[stream].add(offset)
        highest[stream] = max(offset, highest.get(stream, -1))


def check_key_order(history, subscription, held, broken):
    """A record of a key comes when an ack of the one before it has been sent at least."""
    by_key = defaultdict(list)
    for offset, (_, key) in sorted(held.items()):
        by_key[key].append(offset)
    since = history.subscribed[subscription]
    acking = history.acking[subscription]
    for moment, _, offset, _, key in history.got[subscription]:
        offsets = by_key[key]
        place = bisect_left(offsets, offset)
        before = offsets[place - 1] if place else None
        if before is None or history.first_try.get(held[before][0], 0) < since:
            continue
        if acking.get(before, moment) >= moment:
            broken.note("key out of order", key=key, offset=offset, before=before)


def read_topic(data, topic):
    """Return a topic's records, as (offset, (producer, number), key), its cursors, its health."""
    found = []
    with frazil.open(data, **{"log.ballast_bytes": 0}) as engine:
        for batch in engine.topic(topic).read("earliest"):
            rows = batch.to_arrow().to_pylist()
            for offset, row in enumerate(rows, batch.offset):
                record = name_of(row["payload"])
                attributes = dict(row["attributes"])
                assert (attributes["producer"], int(attributes["number"])) == record, (
                    f"attributes of {record}"
                )
                found.append((offset, record, row["key"]))
        return found, engine.cursors.load(topic), engine.stats()["health"]


def read_letters(data, topic):
    """Return the dead letters, as (subscription, offset, (producer, number))."""
    found = []
    with frazil.open(data, **{"log.ballast_bytes": 0}) as engine:
        if topic not in engine.topics():
            return found
        for batch in engine.topic(topic).read("earliest"):
            for row in batch.to_arrow().to_pylist():
                attributes = dict(row["attributes"])
                subscription = attributes["x-original-subscription"]
                offset = int(attributes["x-original-topic-offset"])
                found.append((subscription, offset, name_of(row["payload"])))
    return found


def main():
    """Check and print."""
    ledgers, data, topic, dead = sys.argv[1:]
    history = History(Follower(ledgers).events())
    records, cursors, health = read_topic(data, topic)
    letters = read_letters(data, dead)
    broken = check(history, records, cursors, letters)
    if health != "ok":
        broken["health"] = health
    answer = {
        "broken": broken,
        "records": len(records),
        "tries": sum(history.tries.values()),
        "published": len(history.published),
        "delivered": sum(map(len, history.got.values())),
        "acked": sum(map(len, history.acked.values())),
        "letters": len(letters),
        "dead_letters": len({(subscription, offset) for subscription, offset, _ in letters}),
        "recreated": dict(history.recreated),
        "events": dict(history.kinds),
    }
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
