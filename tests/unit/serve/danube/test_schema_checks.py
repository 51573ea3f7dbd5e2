"""Verdicts on records: at once or off the loop, in order, never more waiting than allowed."""

from __future__ import annotations

import asyncio
import json

import pytest

import frazil
from frazil.errors import Overloaded, Unavailable
from frazil.schema import Message
from frazil.serve.danube import schema_checks
from frazil.serve.danube.schema_checks import SchemaChecks
from frazil.serve.danube.schema_store import SchemaStore
from frazil.serve.danube.statuses import Refused

SETTINGS = {"log.ballast_bytes": 0, "log.free_bytes_min": 0, "log.free_ratio_min": 0}
TOPIC = "/n/t"
WAIT_S = 60


def run(path, scene, *, policy="enforce", check_payload=True, schema=None):
    """Run a scene with the checks of a topic for numbers, or for JSON of a schema."""

    async def play(engine):
        store = SchemaStore(engine.states)
        kind, text = ("number", b"") if schema is None else ("json", json.dumps(schema).encode())
        await store.change(lambda r: r.register("s", kind, text, now=1))
        await store.change(
            lambda r: r.configure_topic(TOPIC, "s", policy, check_payload=check_payload)
        )
        try:
            return await asyncio.wait_for(scene(SchemaChecks(store)), WAIT_S)
        finally:
            await store.close()

    with frazil.open(path, **SETTINGS) as engine:
        return asyncio.run(play(engine))


def record(payload, schema_id=1):
    return Message(payload, schema_id=schema_id)


async def until(check):
    """Wait for a condition."""
    while not check():  # noqa: ASYNC110 - any condition
        await asyncio.sleep(0.001)


def test_ids_are_looked_at_at_once(tmp_path):
    """Without the check of payloads the verdict is there when the call returns."""

    async def scene(checks):
        told = []
        checks.check(TOPIC, record(b"anything"), told.append)
        checks.check(TOPIC, record(b"7", schema_id=None), told.append)
        assert told[0] is None
        assert isinstance(told[1], Refused)
        assert "the message has no schema id, subject 's' has 1" in told[1].text
        assert checks.stats() == {
            "checked_total": 2,
            "warned_total": 0,
            "refused_total": 1,
            "waiting_records": 0,
            "waiting_bytes": 0,
        }

    run(tmp_path, scene, check_payload=False)


def test_verdicts_come_in_the_order_of_the_records(tmp_path):
    """Many records, more than one turn takes, are passed on in their order, each once."""

    async def scene(checks):
        told = []
        for number in range(300):
            payload = b"%d" % number if number % 3 else b"no number"
            checks.check(TOPIC, record(payload), lambda e, n=number: told.append((n, e)))
        assert told == []
        await until(lambda: len(told) == 300)
        assert [number for number, _ in told] == list(range(300))
        assert all((error is None) == bool(number % 3) for number, error in told)
        assert checks.stats()["waiting_records"] == checks.stats()["waiting_bytes"] == 0
        assert checks.refused_total == 100

    run(tmp_path, scene)


def test_an_answer_does_not_overtake_when_the_policy_changes(tmp_path):
    """A record that needs no check of its payload any more still waits for those before it."""

    async def scene(checks):
        told = []
        for number in range(100):
            checks.check(TOPIC, record(b"%d" % number), lambda _, n=number: told.append(n))
        # As a change of the policy does when it becomes visible.
        checks.store.checks[TOPIC] = False
        checks.check(TOPIC, record(b"100"), lambda _: told.append(100))
        assert told == []
        await until(lambda: len(told) == 101)
        assert told == list(range(101))

    run(tmp_path, scene)


@pytest.mark.parametrize(
    ("limit", "value"), [("TOPIC_RECORDS_MAX", 3), ("TOPIC_BYTES_MAX", 30), ("BYTES_MAX", 30)]
)
def test_what_may_wait_is_bounded(tmp_path, monkeypatch, limit, value):
    """One record too many is refused at once, and those before it are answered."""
    monkeypatch.setattr(schema_checks, limit, value)

    async def scene(checks):
        told = []
        for _ in range(3):
            checks.check(TOPIC, record(b"1234567890"), told.append)
        with pytest.raises(Overloaded, match="slow down"):
            checks.check(TOPIC, record(b"1"), told.append)
        await until(lambda: len(told) == 3)
        assert told == [None, None, None]
        checks.check(TOPIC, record(b"1"), told.append)
        await until(lambda: len(told) == 4)

    run(tmp_path, scene)


def test_records_are_refused_when_the_registry_is_closed(tmp_path):
    """Whoever waits for a verdict hears that there will be none."""

    async def scene(checks):
        await checks.store.close()
        told = []
        for _ in range(50):
            checks.check(TOPIC, record(b"1"), told.append)
        await until(lambda: len(told) == 50)
        assert {type(error) for error in told} == {Unavailable}
        assert checks.stats()["waiting_bytes"] == 0

    run(tmp_path, scene)


def test_warnings_are_told_now_and_then(tmp_path, monkeypatch, caplog):
    """A topic's warnings are counted all and logged once, later with the number of them."""

    async def scene(checks):
        passed = []
        for _ in range(5):
            checks.check(TOPIC, record(b"", schema_id=None), passed.append)
        assert passed == [None] * 5
        monkeypatch.setattr(schema_checks, "TELL_S", 0.0)
        checks.check(TOPIC, record(b"", schema_id=None), passed.append)
        return checks.warned_total

    assert run(tmp_path, scene, policy="warn", check_payload=False) == 6
    told = [each.facts for each in caplog.records if each.message == "schema_mismatch_taken"]
    assert told == [{"topic": TOPIC, "records": 1}, {"topic": TOPIC, "records": 5}]


def test_no_payload_is_in_the_log(tmp_path, caplog):
    """What a record holds is nobody's business but its sender's."""

    async def scene(checks):
        told = []
        checks.check(TOPIC, record(b"secret text"), told.append)
        await until(lambda: told)
        assert told == [None]

    run(tmp_path, scene, policy="warn")
    told = [each for each in caplog.records if each.message == "schema_mismatch_taken"]
    assert len(told) == 1
    assert "secret" not in str(told[0].facts)


HEAVY = {"anyOf": [{"enum": [[number]]} for number in range(30_000)]}
LONG = b"[" + b",".join([b"1"] * 400_000) + b"]"


def test_a_record_that_is_too_much_work_is_refused(tmp_path):
    """One large message and a schema of thousands of choices end in a refusal with the reason."""

    async def scene(checks):
        told = []
        checks.check(TOPIC, record(LONG), told.append)
        await until(lambda: told)
        assert isinstance(told[0], Refused)
        assert "schema needs too much work for this payload" in told[0].text

    run(tmp_path, scene, schema=HEAVY)


def test_a_record_that_is_too_much_work_is_taken_with_a_warning(tmp_path):
    """Where records that do not fit are taken, one that nobody can check is, too."""

    async def scene(checks):
        told = []
        checks.check(TOPIC, record(LONG), told.append)
        await until(lambda: told)
        assert told == [None]
        assert checks.warned_total == 1

    run(tmp_path, scene, schema=HEAVY, policy="warn")


def test_others_have_their_turn_between_records_that_are_much_work(tmp_path):
    """A question that comes while a topic's records are checked waits for few of them."""

    async def scene(checks):
        told = []
        # Each is more than 100,000 units of work: alone in its turn.
        for _ in range(20):
            checks.check(TOPIC, record(b"[-1]"), told.append)
        await until(lambda: told)
        seen = await checks.store.read(lambda _registry: len(told))
        assert seen < 10
        await until(lambda: len(told) == 20)
        assert checks.refused_total == 20

    run(tmp_path, scene, schema=HEAVY)


def test_records_that_wait_hear_of_the_close(tmp_path):
    """When the store is closed in the middle, each record has one answer, and none is lost."""

    async def scene(checks):
        told = []
        for number in range(100):
            checks.check(TOPIC, record(b"[-1]"), lambda e, n=number: told.append((n, e)))
        await until(lambda: told)
        await checks.store.close()
        await until(lambda: len(told) == 100)
        assert [number for number, _ in told] == list(range(100))
        assert {type(error) for _, error in told} == {Refused, Unavailable}
        assert type(told[-1][1]) is Unavailable

    run(tmp_path, scene, schema=HEAVY)


def test_no_number_of_the_server_is_told(tmp_path, monkeypatch):
    """Who is to slow down does not learn how much of others waits."""
    monkeypatch.setattr(schema_checks, "TOPIC_RECORDS_MAX", 1)

    async def scene(checks):
        checks.check(TOPIC, record(b"1"), lambda _: None)
        with pytest.raises(Overloaded) as caught:
            checks.check(TOPIC, record(b"1"), lambda _: None)
        assert caught.value.details == {"retry_after_ms": 100}

    run(tmp_path, scene)
