"""The checker of the broker's clients accepts what is right and finds what is planted."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import frazil
from tests.crash.broker_checker import History, check
from tests.crash.broker_ledger import Follower, Ledger, name_of, record_of
from tests.crash.broker_process import environment

TYPES = ("exclusive", "failover", "shared", "key_shared")
RECORDS = 12


class Story:
    """A ledger in the making: a clock, events, and the topic that they are about."""

    def __init__(self):
        self.events, self.records, self.letters = [], [], []
        self.cursors = {kind: set() for kind in TYPES}

    def note(self, kind, *facts):
        """Write an event down."""
        self.events.append([len(self.events) + 1, kind, *facts])

    def publish(self, number, *, tries=1):
        """Publish a record; each try leaves a copy."""
        for each in range(tries):
            self.note("sending", "p", number)
            self.records.append((len(self.records), ("p", number), f"key {number % 2}"))
            if each + 1 < tries:
                self.note("unsure", "p", number, "UNAVAILABLE")
        self.note("published", "p", number)

    def get(self, subscription, stream, offset):
        """Receive the record of an offset."""
        _, record, key = self.records[offset]
        self.note("got", subscription, stream, offset, list(record), key)

    def ack(self, subscription, offset):
        """Ack it, with the answer."""
        self.note("acking", subscription, offset)
        self.note("acked", subscription, offset)
        self.cursors[subscription].add(offset)

    def broken(self):
        """Return the names of the promises that the checker finds broken."""
        return set(check(History(self.events), self.records, self.cursors, self.letters))


def kept_story():
    """Return a story in which all promises are kept, though much went wrong.

    Offset 3 is a second copy of a publish without an answer; the broker dies after the delivery of
    offset 5, whose ack fails; offset 7 is nacked and comes again behind 8.
    """
    story = Story()
    for kind in TYPES:
        story.note("subscribed", kind, kind, f"consumer of {kind}")
        story.note("opening", kind, f"{kind} 1")
    for number in range(RECORDS - 1):
        story.publish(number, tries=2 if number == 2 else 1)
        offset = len(story.records) - 1
        for kind in TYPES:
            for each in range(offset if number != 2 else offset - 1, offset + 1):
                step(story, kind, each)
    return story


def step(story, kind, offset):
    """Deliver and ack an offset as `kept_story` says."""
    if offset <= 5:
        story.get(kind, f"{kind} 1", offset)
    if offset < 5:
        story.ack(kind, offset)
    elif offset == 5:
        story.note("acking", kind, offset)
        story.note("unacked", kind, offset, "UNAVAILABLE")
        story.note("opening", kind, f"{kind} 2")
        story.get(kind, f"{kind} 2", offset)
        story.ack(kind, offset)
    else:
        story.get(kind, f"{kind} 2", offset)
        if offset == 7 and kind != "key_shared":
            story.note("nacking", kind, offset)
            return
        story.ack(kind, offset)
        if offset == 8 and kind != "key_shared":
            story.get(kind, f"{kind} 2", 7)
            story.ack(kind, 7)


def without(story, *facts):
    """Take the events with these facts out."""
    before = len(story.events)
    story.events = [event for event in story.events if tuple(event[1:]) != facts]
    assert len(story.events) < before


def test_a_story_with_a_crash_a_nack_and_a_repeated_publish_is_right():
    """What may happen around a restart is not taken for a fault."""
    assert kept_story().broken() == set()


def lose_a_record(story):
    """The last record is not in the topic."""
    story.publish(90)
    story.records.pop()


def double_a_record(story):
    """A record that was tried once is there twice."""
    story.publish(90)
    story.records.append((len(story.records), ("p", 90), "key 0"))
    for kind in TYPES:
        for offset in (12, 13):
            story.get(kind, f"{kind} 2", offset)
            story.ack(kind, offset)


def invent_a_record(story):
    """The topic has a record that nobody sent."""
    story.records.append((len(story.records), ("ghost", 0), "key 0"))


def swap_two_records(story):
    """A producer's records are in the topic in another order than it sent them."""
    story.records[9], story.records[10] = (
        (9, *story.records[10][1:]),
        (10, *story.records[9][1:]),
    )
    for event in story.events:
        if event[1] == "got":
            event[5:] = [list(story.records[event[4]][1]), story.records[event[4]][2]]


def skip_an_offset(story):
    """The topic has a hole."""
    del story.records[4]


def change_an_offset(story):
    """One consumer gets another record under an offset than the topic has."""
    event = next(each for each in story.events if each[1] == "got" and each[4] == 6)
    event[5] = ["p", 1]


def change_a_key(story):
    """One consumer gets a record with another key."""
    event = next(each for each in story.events if each[1] == "got" and each[4] == 6)
    event[6] = "another key"


def deliver_acked_ones_after_a_restart(story):
    """A new stream begins with a record whose ack was answered before."""
    story.note("opening", "shared", "shared 3")
    story.get("shared", "shared 3", 4)


def deliver_acked_ones_on_the_same_stream(story):
    """A stream has an acked record again, behind one that was published after the ack."""
    story.publish(90)
    for kind in TYPES:
        story.get(kind, f"{kind} 2", 12)
        story.ack(kind, 12)
    story.get("exclusive", "exclusive 2", 11)


def deliver_to_one_what_another_acked(story):
    """A consumer that joins gets what another one's ack was answered for."""
    story.note("opening", "key_shared", "another 1")
    story.get("key_shared", "another 1", 11)


def forget_a_delivery(story):
    """One subscription never gets a record."""
    offset = 9
    without(story, "got", "failover", "failover 2", offset, ["p", 8], "key 0")
    without(story, "acking", "failover", offset)
    without(story, "acked", "failover", offset)


def forget_an_ack(story):
    """A record is delivered and never acked, however long one waits."""
    without(story, "acking", "shared", 9)
    without(story, "acked", "shared", 9)
    story.cursors["shared"].discard(9)


def forget_a_cursor(story):
    """An ack that was answered is not durable."""
    story.cursors["shared"].discard(9)


def deliver_backwards(story):
    """An Exclusive consumer gets a record behind a later one, though it was not nacked."""
    story.publish(90)
    story.publish(91)
    for kind in TYPES:
        for offset in (13, 12) if kind == "exclusive" else (12, 13):
            story.get(kind, f"{kind} 2", offset)
            story.ack(kind, offset)


def overtake_a_key(story):
    """A record of a key comes before an ack of the last was sent."""
    story.publish(90)
    story.publish(92)
    for kind in TYPES:
        for offset in (12, 13):
            story.get(kind, f"{kind} 2", offset)
        for offset in (12, 13):
            story.ack(kind, offset)


def settle_what_nobody_acked(story):
    """A record is delivered and settled, though nobody acked it and it is no dead letter."""
    without(story, "acking", "shared", 9)
    without(story, "acked", "shared", 9)


def refuse(story):
    """One record is refused in place of its ack, and settled."""
    settle_what_nobody_acked(story)
    story.note("nacking", "shared", 9)


def dead_letter_what_nobody_refused(story):
    """A dead letter of a record that was acked."""
    story.letters.append(("shared", 10, story.records[10][1]))


def dead_letter_another_record(story):
    """The dead letter of a refused record has the bytes of another."""
    refuse(story)
    story.letters.append(("shared", 9, story.records[8][1]))


PLANTS = {
    lose_a_record: {"published record lost"},
    double_a_record: {"record doubled"},
    invent_a_record: {"record doubled", "never delivered"},
    swap_two_records: {"producer out of order"},
    skip_an_offset: {"published record lost", "offset skipped", "offset changed"},
    change_an_offset: {"offset changed"},
    change_a_key: {"offset changed"},
    deliver_acked_ones_after_a_restart: {"delivered after its ack"},
    deliver_acked_ones_on_the_same_stream: {"delivered after its ack"},
    deliver_to_one_what_another_acked: {"delivered after its ack"},
    forget_a_delivery: {"never delivered", "settled for no reason"},
    forget_an_ack: {"never settled"},
    forget_a_cursor: {"ack forgotten", "never settled"},
    deliver_backwards: {"out of order"},
    overtake_a_key: {"key out of order"},
    settle_what_nobody_acked: {"settled for no reason"},
    refuse: {"settled for no reason"},
    dead_letter_what_nobody_refused: {"dead letter for no reason"},
    dead_letter_another_record: {"another record in a dead letter"},
}


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_the_checker_finds_what_is_planted(plant):
    """Each broken promise is found, by its name, and no other is."""
    story = kept_story()
    plant(story)
    assert story.broken() == PLANTS[plant]


def test_a_dead_letter_is_a_reason():
    """What was refused and is a dead letter may be settled."""
    story = kept_story()
    refuse(story)
    story.letters.append(("shared", 9, story.records[9][1]))
    assert story.broken() == set()


def test_a_payload_with_one_wrong_byte_is_no_record():
    """The bytes of a record follow from its name, all of them."""
    payload = bytearray(record_of("p", 7, 200))
    assert name_of(payload) == ("p", 7)
    payload[150] ^= 1
    with pytest.raises(ValueError, match="are others"):
        name_of(payload)


@pytest.mark.integration
@pytest.mark.parametrize("lost", [0, 1])
def test_the_checkers_process_reads_ledgers_and_topic(tmp_path, lost):
    """A published record that a real topic lacks is reported by the process."""
    with frazil.open(tmp_path / "data", **{"log.ballast_bytes": 0}) as engine:
        topic = engine.create_topic("/default/t")
        for number in range(3):
            attributes = {"producer": "p", "number": str(number)}
            topic.append(record_of("p", number, 50), key="k", attributes=attributes)
    ledger = Ledger(tmp_path, "p")
    for number in range(3 + lost):
        ledger.note("sending", "p", number)
        ledger.note("published", "p", number)
    ledger.close()
    assert len(Follower(tmp_path).events()) == 2 * (3 + lost)
    run = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.crash.broker_checker",
            tmp_path,
            tmp_path / "data",
            "/default/t",
            "/default/none",
        ],
        capture_output=True,
        env=environment(),
        check=True,
    )
    answer = json.loads(run.stdout)
    assert answer["records"] == 3
    assert set(answer["broken"]) == ({"published record lost"} if lost else set())
