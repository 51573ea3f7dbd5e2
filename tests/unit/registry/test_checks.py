"""Checks of records: at once or in the sandbox, in order, with a bound on what waits."""

from __future__ import annotations

import asyncio
import json

import pytest

import frazil
from frazil.errors import Overloaded, Unavailable
from frazil.registry import NewSchema, SchemaChecks, SchemaStore, entries
from frazil.registry import checks as checks_module
from frazil.schema import Message

SETTINGS = {"log.ballast_bytes": 0, "log.free_bytes_min": 0, "log.free_ratio_min": 0}
TOPIC = "/n/t"
WAIT_S = 60


class Refused(Exception):
    """A record's refusal, as a front end makes it."""


def run(path, scene, *, policy="enforce", check_payload=True, schema=None):
    """Run a scene with the checks of a topic for whole numbers in JSON, or another schema."""

    async def play(engine):
        store = SchemaStore(engine.states)
        text = json.dumps({"type": "integer"} if schema is None else schema).encode()
        await store.register(NewSchema(subject="s", type="json", definition=text, now=1))
        await store.change(
            lambda r: r.configure_topic(TOPIC, "s", policy, check_payload=check_payload)
        )
        try:
            checks = SchemaChecks(store, Refused)
            return await asyncio.wait_for(scene(checks, store), WAIT_S)
        finally:
            await store.close()

    with frazil.open(path, **SETTINGS) as engine:
        return asyncio.run(play(engine))


def staged(**options):
    """Return what makes a test of a scene with the checks of a topic."""

    def decorate(scene):
        def test(tmp_path):
            run(tmp_path, scene, **options)

        test.__doc__ = scene.__doc__
        return test

    return decorate


def record(payload, schema_id=1):
    return Message(payload, schema_id=schema_id)


async def until(check):
    """Wait for a condition."""
    while not check():  # noqa: ASYNC110 - any condition
        await asyncio.sleep(0.001)


@staged(check_payload=False)
async def test_ids_are_looked_at_at_once(checks, store):
    """Without the check of payloads the verdict is there when the call returns."""
    answers = []
    checks.check(TOPIC, record(b"anything"), answers.append)
    checks.check(TOPIC, record(b"7", schema_id=None), answers.append)
    assert answers[0] is None
    assert isinstance(answers[1], Refused)
    assert "the message has no schema id, subject 's' has 1" in str(answers[1])
    assert checks.stats() == {
        "checked_total": 2,
        "warned_total": 0,
        "refused_total": 1,
        "waiting_records": 0,
        "waiting_bytes": 0,
    }


@staged()
async def test_verdicts_come_in_the_order_of_the_records(checks, store):
    """Many records, more than one turn takes, are passed on in their order, each once."""
    answers = []
    for number in range(300):
        payload = b"%d" % number if number % 3 else b"no"
        checks.check(TOPIC, record(payload), lambda e, n=number: answers.append((n, e)))
    assert answers == []
    await until(lambda: len(answers) == 300)
    assert [number for number, _ in answers] == list(range(300))
    assert all((error is None) == bool(number % 3) for number, error in answers)
    assert checks.stats()["waiting_records"] == checks.stats()["waiting_bytes"] == 0
    assert checks.refused_total == 100


@staged()
async def test_an_answer_does_not_overtake_when_the_policy_changes(checks, store):
    """A record that needs no check of its payload any more still waits for those before it."""
    answers = []
    for number in range(100):
        checks.check(TOPIC, record(b"%d" % number), lambda _, n=number: answers.append(n))
    store.registry.apply(
        "topic:" + TOPIC, entries.encode(entries.TopicEntry("s", "enforce", False))
    )
    checks.check(TOPIC, record(b"100"), lambda _: answers.append(100))
    assert answers == []
    await until(lambda: len(answers) == 101)
    assert answers == list(range(101))


@pytest.mark.parametrize(
    ("limit", "value"), [("TOPIC_RECORDS_MAX", 3), ("TOPIC_BYTES_MAX", 30), ("BYTES_MAX", 30)]
)
def test_what_may_wait_is_bounded(tmp_path, monkeypatch, limit, value):
    """One record too many is refused at once, and those before it are answered."""
    monkeypatch.setattr(checks_module, limit, value)

    async def scene(checks, store):
        answers = []
        for _ in range(3):
            checks.check(TOPIC, record(b"1234567890"), answers.append)
        with pytest.raises(Overloaded, match="slow down") as caught:
            checks.check(TOPIC, record(b"1"), answers.append)
        assert caught.value.details == {"retry_after_ms": 100}, "no number of the server"
        await until(lambda: len(answers) == 3)
        assert answers == [None, None, None]
        checks.check(TOPIC, record(b"1"), answers.append)
        await until(lambda: len(answers) == 4)

    run(tmp_path, scene)


@staged()
async def test_payloads_of_plain_types_are_checked_at_once(checks, store):
    """No library is needed for a text or a number, so the answer is there when the call returns."""
    await store.change(lambda r: r.set_mode("s", "none"))
    await store.register(NewSchema(subject="s", type="number", definition=b"", now=1))
    answers = []
    checks.check(TOPIC, record(b"7"), answers.append)
    checks.check(TOPIC, record(b"seven!"), answers.append)
    assert answers[0] is None
    assert str(answers[1]).startswith(
        f"schema validation failed for topic '{TOPIC}': the payload does not fit version 2 of"
        " 's': not a number"
    )


@staged()
async def test_each_record_is_checked_by_its_version(checks, store):
    """Records of two versions in one batch have each their own schema."""
    text = b'{"type": "number"}'
    await store.register(NewSchema(subject="s", type="json", definition=text, now=1))
    answers = []
    for number in range(8):
        message = Message(b"1.5", schema_id=1, schema_version=1 + number % 2)
        checks.check(TOPIC, message, answers.append)
    await until(lambda: len(answers) == 8)
    assert [error is None for error in answers] == [False, True] * 4
    assert "does not fit version 1 of 's': at $: the value is not of type" in str(answers[0])


def test_no_payload_is_in_the_log(tmp_path, caplog):
    """A topic's warning is logged once a minute, with the topic alone."""

    async def scene(checks, store):
        answers = []
        for _ in range(3):
            checks.check(TOPIC, record(b'"secret text"'), answers.append)
        await until(lambda: len(answers) == 3)
        assert answers == [None] * 3

    run(tmp_path, scene, policy="warn")
    answers = [each for each in caplog.records if each.message == "schema_mismatch_taken"]
    assert [each.facts for each in answers] == [{"topic": TOPIC}]


ENDLESS = {"type": "array", "items": "null"}
LONG = b"\xfe\xff\xff\xff\xff\xff\xff\xff\x0f\x00"


async def make_endless(store):
    """Change the schema to an Avro array that takes no bytes for as many items as it says."""
    await store.change(lambda r: r.set_mode("s", "none"))
    text = json.dumps(ENDLESS).encode()
    await store.register(NewSchema(subject="s", type="avro", definition=text, now=1))


@pytest.mark.parametrize("policy", ["enforce", "warn"])
def test_a_record_that_overruns_costs_its_sender_alone(tmp_path, policy):
    """It does not fit; those before and after it in the batch do, and the next batch, too."""

    async def scene(checks, store):
        await make_endless(store)
        answers = []
        for payload in (b"\0", LONG, b"\0", b"\0"):
            checks.check(TOPIC, record(payload), answers.append)
        await until(lambda: len(answers) == 4)
        assert [answers[number] for number in (0, 2, 3)] == [None] * 3
        if policy == "enforce":
            assert "schema needs too much work for this payload" in str(answers[1])
        else:
            assert (answers[1], checks.warned_total) == (None, 1)
        checks.check(TOPIC, record(b"\0"), answers.append)
        await until(lambda: len(answers) == 5)
        assert answers[4] is None

    run(tmp_path, scene, policy=policy)


@staged()
async def test_records_that_wait_are_refused_by_the_close(checks, store):
    """Each record has one answer, in their order, and a later one is refused, too."""
    answers = []
    closing = []

    def answered(number, error):
        answers.append((number, error))
        if number == 0:
            closing.append(asyncio.create_task(store.close()))

    for number in range(100):
        checks.check(TOPIC, record(b"1"), lambda e, n=number: answered(n, e))
    await until(lambda: len(answers) == 100)
    await closing[0]
    assert [number for number, _ in answers] == list(range(100))
    assert {type(error) for _, error in answers} == {type(None), Unavailable}
    checks.check(TOPIC, record(b"1"), lambda e: answers.append((100, e)))
    await until(lambda: len(answers) == 101)
    assert type(answers[100][1]) is Unavailable
    assert checks.stats()["waiting_bytes"] == 0
