"""The schema worker: a hostile definition or payload costs its caller an error, others nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2

from frazil.errors import InvalidRequest, Unavailable
from frazil.registry import sandbox as sandbox_module
from frazil.registry import worker
from frazil.registry.sandbox import TOO_MUCH_TO_COMPARE, TOO_MUCH_WORK, Sandbox

WAIT_S = 60
BOUND_S = 30
"""Far above the limits of CPU time: the machine may be busy."""


def run(scene):
    """Run a scene with a sandbox."""

    async def play():
        sandbox = Sandbox()
        try:
            return await asyncio.wait_for(scene(sandbox), WAIT_S)
        finally:
            await sandbox.close()

    return asyncio.run(play())


def staged(scene):
    """Return the test that runs a scene with a sandbox."""

    def test():
        run(scene)

    test.__doc__ = scene.__doc__
    return test


async def assert_answers(sandbox):
    """The next requests of others succeed."""
    assert (await sandbox.fingerprint("avro", b'"int"')).startswith("sha256:")
    assert await check(sandbox, "json_schema", b'{"type":"object"}', b"{}") == [None]


async def check(sandbox, kind, definition, *payloads):
    return await sandbox.refusals(kind, definition, payloads)


def nested(start, end, levels):
    return start * levels + end * levels


LINKS = [f"message M{n} {{ M{n + 1} next = 1; }}" for n in range(3_000)]
DEFINITIONS = {
    "deep JSON": ("json_schema", nested(b'{"items":', b"}", 100_000)),
    "a deep list": ("avro", b"[" * 500_000),
    "deep Avro": ("avro", nested(b'{"type":"array","items":', b"}", 300) + b'"int"'),
    "a huge number": ("json_schema", b'{"minimum":' + b"9" * 500_000 + b"}"),
    "a huge exponent": ("avro", b'{"type":"fixed","name":"F","size":1e999999999}'),
    "a pattern that grows": ("json_schema", b'{"pattern":"(((a{1000}){1000}){1000}){1000}"}'),
    "many patterns": (
        "json_schema",
        json.dumps({"allOf": [{"pattern": f"(x{{1000}}|y){{20}}{n}"} for n in range(9_000)]}),
    ),
    "deep messages": ("protobuf", nested(b"message M{", b"}", 50_000)),
    "a huge number of a field": ("protobuf", b"message M { required int32 a = " + b"9" * 500_000),
    "a million empty messages": (
        "protobuf",
        descriptor_pb2.FileDescriptorSet(
            file=[
                descriptor_pb2.FileDescriptorProto(
                    name="f\x01", message_type=[descriptor_pb2.DescriptorProto()] * 400_000
                )
            ]
        ).SerializeToString(),
    ),
    "a chain of messages": ("protobuf", " ".join([*LINKS, "message M3000 { }"])),
}


@pytest.mark.parametrize("case", DEFINITIONS)
def test_a_hostile_definition_is_an_answer_in_bounded_time(case):
    """It is read or refused, and the next request succeeds."""
    kind, definition = DEFINITIONS[case]

    async def scene(sandbox):
        data = definition.encode() if isinstance(definition, str) else definition
        begin = time.monotonic()
        try:
            await sandbox.fingerprint(kind, data)
        except InvalidRequest as error:
            assert len(str(error)) < 1_000
        assert time.monotonic() - begin < BOUND_S
        await assert_answers(sandbox)

    run(scene)


LIST = {
    "type": "record",
    "name": "L",
    "fields": [{"name": "n", "type": ["null", "L"], "default": None}],
}
BRANCH = {"type": "array", "items": {"$ref": "#/$defs/a"}}
ALTERNATIVES = {"$defs": {"a": {"anyOf": [BRANCH, BRANCH]}}, "$ref": "#/$defs/a"}
"""Each level of a payload that does not fit in the end doubles the work."""
ENDLESS_ARRAY = b"\xfe\xff\xff\xff\xff\xff\xff\xff\x0f\x00"
PAYLOADS = {
    "an exponential pattern": ({"pattern": "^(a|a)*(?=b)$"}, b'"' + b"a" * 100_000 + b'c"'),
    "a long list of lists": (
        {"anyOf": [{"enum": [[number]]} for number in range(30_000)]},
        b"[" + b",".join([b"1"] * 400_000) + b"]",
    ),
    "deep JSON": ({"$ref": "#/$defs/a", "$defs": {"a": {"items": {"$ref": "#/$defs/a"}}}},
                  b"[" * 1_000_000),
    "choices in choices": (ALTERNATIVES, nested(b"[", b"]", 60).replace(b"[]", b"[1]")),
    "a huge number": ({"multipleOf": 3}, b"9" * 1_000_000),
    "items without bytes": ("avro", {"type": "array", "items": "null"}, ENDLESS_ARRAY),
    "a long nested record": ("avro", LIST, b"\2" * 5_000_000 + b"\0"),
    "a size of an exabyte": ("avro", "bytes", b"\xfe\xff\xff\xff\xff\xff\xff\xff\x0f"),
    "deep messages": (
        "protobuf",
        b'syntax = "proto3"; message M { M m = 1; }',
        b"\x0a\x80\x80\x04" * 50_000,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", PAYLOADS)
def test_a_hostile_payload_does_not_fit_and_others_do(case):
    """The payloads before and after it in one request have their own answers, in bounded time."""
    *kind, definition, payload = PAYLOADS[case]
    kind = kind[0] if kind else "json_schema"
    data = definition if isinstance(definition, bytes) else json.dumps(definition).encode()

    async def scene(sandbox):
        fitting = {"avro": b"\0", "protobuf": b""}.get(kind)
        begin = time.monotonic()
        if fitting is None:
            (found,) = await check(sandbox, kind, data, payload)
        else:
            before, found, after = await check(sandbox, kind, data, fitting, payload, fitting)
            assert before is after is None
        assert found is not None
        assert time.monotonic() - begin < BOUND_S
        await assert_answers(sandbox)

    run(scene)


@staged
async def test_a_schema_that_refers_to_itself_harms_nobody(sandbox):
    """Whatever the library says of it, the next request succeeds."""
    for schema in ({"$ref": "#"}, {"anyOf": [{"$ref": "#"}, {"not": {"$ref": "#"}}]}):
        assert len(await check(sandbox, "json_schema", json.dumps(schema).encode(), b"1")) == 1
    await assert_answers(sandbox)


@staged
async def test_a_large_message_passes_both_ways(sandbox):
    """Megabytes of payload are written while nothing is read, and are answered."""
    payload = b'"' + b"x" * (8 << 20) + b'"'
    assert await check(sandbox, "json_schema", b'{"type":"string"}', payload) == [None]
    text = b'{"description":"' + b"x" * 1_000_000 + b'"}'
    assert await check(sandbox, "json_schema", text, b"1", b"2") == [None, None]


def overrun_codes(caplog):
    return [
        each.facts["code"] for each in caplog.records if each.message == "schema_worker_overran"
    ]


def test_cpu_time_is_limited_by_the_kernel(caplog):
    """A payload that takes no memory, but time without end, ends the worker by its timer."""

    async def scene(sandbox):
        schema = b'{"items":{"not":{"pattern":"^(a|a)*(?=b)$"}}}'
        payload = json.dumps(["a" * 12 + "c"] * 200_000).encode()
        assert await check(sandbox, "json_schema", schema, payload) == [TOO_MUCH_WORK]
        await assert_answers(sandbox)

    run(scene)
    assert overrun_codes(caplog) == [-signal.SIGPROF]


def test_memory_is_limited_by_the_kernel(caplog):
    """A text that takes four times its bytes when it is read ends the worker, long before its time."""

    async def scene(sandbox):
        text = '"\U0001f600'.encode() + b"x" * (112 << 20) + b'"'
        with pytest.raises(InvalidRequest, match="too much work or memory"):
            await sandbox.fingerprint("json_schema", text)
        await assert_answers(sandbox)

    run(scene)
    assert overrun_codes(caplog) == [1]


@staged
async def test_too_much_to_compare_is_a_reason(sandbox):
    """The worker that ends in the middle of a comparison does not make it compatible."""
    await sandbox.fingerprint("avro", b'"int"')
    sandbox._process.send_signal(signal.SIGSTOP)
    asking = asyncio.create_task(
        sandbox.incompatibilities("avro", latest=b'"int"', new=b'"long"', mode="full")
    )
    await asyncio.sleep(0)
    sandbox._process.send_signal(signal.SIGPROF)
    sandbox._process.send_signal(signal.SIGCONT)
    assert await asking == (TOO_MUCH_TO_COMPARE,)
    reasons = await sandbox.incompatibilities("avro", latest=b'"int"', new=b'"long"', mode="full")
    assert reasons == ("forward: at $: the reader's int does not read long",)


def test_a_worker_that_does_not_answer_is_killed_at_the_deadline(monkeypatch):
    """The caller has an error, and the next request a new process."""

    async def scene(sandbox):
        await sandbox.fingerprint("avro", b'"int"')
        first = sandbox._process
        first.send_signal(signal.SIGSTOP)
        with monkeypatch.context() as patch:
            patch.setattr(sandbox_module, "DEADLINE_S", 0.2)
            with pytest.raises(InvalidRequest, match="too much work or memory"):
                await sandbox.fingerprint("avro", b'"int"')
        assert first.returncode == -signal.SIGKILL
        await assert_answers(sandbox)
        assert sandbox._process.pid != first.pid

    run(scene)


@staged
async def test_a_worker_that_somebody_killed_is_no_fault_of_the_request(sandbox):
    """The caller is asked to try again, and then succeeds."""
    await sandbox.fingerprint("avro", b'"int"')
    os.kill(sandbox._process.pid, signal.SIGKILL)
    with pytest.raises(Unavailable, match="was killed, try again"):
        await sandbox.fingerprint("avro", b'"int"')
    await assert_answers(sandbox)


@staged
async def test_a_caller_that_goes_away_leaves_no_answer_to_the_next(sandbox):
    """Its answer is read and dropped."""
    for _ in range(20):
        asking = asyncio.create_task(sandbox.fingerprint("avro", b'"int"'))
        await asyncio.sleep(0.001)
        asking.cancel()
    assert await check(sandbox, "json_schema", b"false", b"1") == ["at $: nothing is allowed here"]
    first = await sandbox.fingerprint("avro", b'"int"')
    assert first != await sandbox.fingerprint("avro", b'"long"')


def test_requests_that_much_work_leave_others_a_turn(monkeypatch):
    """A request is cut after some CPU time; one of another topic comes before its rest."""

    async def scene(sandbox):
        slow = json.dumps([{"a": number} for number in range(60_000)]).encode()
        many = asyncio.create_task(
            check(sandbox, "json_schema", b'{"uniqueItems":true}', *[slow] * 20)
        )
        await asyncio.sleep(0.3)
        await assert_answers(sandbox)
        assert not many.done()
        assert await many == [None] * 20

    run(scene)


@staged
async def test_no_process_starts_without_a_request_and_none_is_left(sandbox):
    """The first request starts it; the close ends it, and refuses what comes later."""
    assert sandbox._process is None
    await sandbox.fingerprint("avro", b'"int"')
    process = sandbox._process
    asking = asyncio.create_task(sandbox.fingerprint("avro", b'"int"'))
    await asyncio.sleep(0)
    await sandbox.close()
    assert process.returncode is not None
    for work in (asking, sandbox.fingerprint("avro", b'"int"')):
        with pytest.raises(Unavailable, match="the schema registry is closed"):
            await work


def test_the_worker_ends_with_its_broker():
    """A broker that is killed closes the pipe, which the worker reads until its end."""
    script = """
import asyncio, os, signal
from frazil.registry.sandbox import Sandbox

async def play():
    sandbox = Sandbox()
    await sandbox.fingerprint("avro", b'"int"')
    print(sandbox._process.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(play())
"""
    found = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=WAIT_S
    )
    assert found.returncode == -signal.SIGKILL
    process, deadline = Path(f"/proc/{int(found.stdout)}/stat"), time.monotonic() + WAIT_S
    while process.exists() and process.read_bytes().rpartition(b")")[2].split()[0] != b"Z":
        assert time.monotonic() < deadline


def test_the_worker_gets_no_credentials(monkeypatch):
    """Of the environment it has the search paths and the language alone."""
    monkeypatch.setenv("FRAZIL_SERVE__AUTH__SECRET", "s3cr3t")

    async def scene(sandbox):
        await sandbox.fingerprint("avro", b'"int"')
        return Path(f"/proc/{sandbox._process.pid}/environ").read_bytes()  # noqa: ASYNC240

    assert b"s3cr3t" not in run(scene)


@pytest.mark.parametrize("junk", [b"\0\0\0\1\xc1", b"\xff\xff\xff\xff", b"\0\0"])
def test_answers_that_are_none_end_the_worker(junk):
    """The worker is not trusted: junk, endless answers and half ones are an error."""

    async def play():
        stream = asyncio.StreamReader()
        stream.feed_data(worker.encode(worker.Answer(fingerprint="f")) + junk)
        stream.feed_eof()
        assert (await worker.receive(stream)).fingerprint == "f"
        with pytest.raises(EOFError):
            await worker.receive(stream)

    asyncio.run(play())
