"""Danube's Rust client, unchanged, against `frazil serve`: one scenario of its program a test."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.authority import Authority
from tests.clients.serving import (
    MESSAGE_BYTES_MAX,
    Serving,
    cache_directory,
    protected,
    tokens,
)

PROGRAM = Path(__file__).resolve().parent / "rust"
BUILD_S, SCENARIO_S = 1500, 600
PLAIN = [
    *("reliable", "non-reliable", "refusals", "nack", "resume", "sizes", "in-flight"),
    *("partitions", "partition-keys"),
    *("shared", "shared-evenly", "failover", "key-shared", "key-filters"),
    *("registry", "schema-kinds", "typed"),
]
ENDS = [("calm", signal.SIGTERM), ("sudden", signal.SIGKILL)]


# -- the program ---------------------------------------------------------------------------------


def compiler_of_messages(directory):
    """Return a `protoc`, which the client's build runs: the one there is, or that of grpcio-tools."""
    found = os.environ.get("PROTOC") or shutil.which("protoc")
    if found is None:
        found = directory / "protoc"
        found.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m grpc_tools.protoc "$@"\n')
        found.chmod(0o755)
    return str(found)


@pytest.fixture(scope="module")
def scenarios():
    """Build the program; return its path."""
    cargo = shutil.which("cargo")
    if cargo is None:
        pytest.skip("there is no cargo: the Rust client cannot be built")
    directory = cache_directory() / "rust"
    directory.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [cargo, "build", "--manifest-path", str(PROGRAM / "Cargo.toml")],
        env={
            **os.environ,
            "CARGO_TARGET_DIR": str(directory),
            "PROTOC": compiler_of_messages(directory),
        },
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    return directory / "debug" / "scenarios"


def words(program, name, broker, **facts):
    """Return the command line of a scenario."""
    pairs = [f"{key}={value}" for key, value in facts.items()]
    return [str(program), name, broker.url, *pairs]


def check_scenario(program, name, broker, **facts):
    """Run a scenario, which must find everything as it should be."""
    done = subprocess.run(
        words(program, name, broker, **facts),
        capture_output=True,
        text=True,
        timeout=SCENARIO_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{broker.last_words()}"


def check_outages(program, name, broker, number, *, rounds, **facts):
    """Run a scenario during which the broker ends and begins again, each time there is traffic."""
    process = subprocess.Popen(
        words(program, name, broker, rounds=rounds, **facts),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            for _ in range(rounds):
                if process.stdout.readline() != "flowing\n":
                    break
                broker.end_and_begin(number)
                process.stdin.write("back\n")
                process.stdin.flush()
            output, wrong = process.communicate(timeout=SCENARIO_S)
        finally:
            process.kill()
    print(output)
    assert process.returncode == 0, f"{wrong}\n{broker.last_words()}"


# -- without protection --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    """Run the broker of the scenarios that leave it as it is; each has topics of its own."""
    with Serving(tmp_path_factory.mktemp("rust")) as found:
        yield found


@pytest.mark.parametrize("name", PLAIN)
def test_the_rust_client_finds_what_it_expects(scenarios, broker, name):
    """Producers, consumers of all types, keys, parts, acks, nacks and schemas are as promised."""
    check_scenario(scenarios, name, broker, bytes_max=MESSAGE_BYTES_MAX)


@pytest.mark.parametrize(("end", "number"), ENDS)
def test_rust_clients_go_on_when_the_broker_is_back(scenarios, tmp_path, end, number):
    """Under load, no answered message is lost, order is kept, and no ack is forgotten."""
    with Serving(tmp_path) as broker:
        check_outages(scenarios, "outage", broker, number, rounds=3, end=end)


@pytest.mark.parametrize(("end", "number"), ENDS)
def test_idle_rust_clients_find_the_broker_again(scenarios, tmp_path, end, number):
    """Who had nothing to do during an outage publishes and receives after it, without an error."""
    with Serving(tmp_path) as broker:
        check_outages(scenarios, "idle-outage", broker, number, rounds=2, end=end)


# -- with TLS and tokens -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    """Return who signs the certificates of brokers and clients."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.mark.parametrize("name", ["tokens", "supplied-tokens"])
def test_rust_clients_need_their_tokens(scenarios, tmp_path, authority, name):
    """The right one opens what it is granted for; no other, and no other authority, does."""
    other = Authority(tmp_path / "other")
    with protected(tmp_path / "broker", authority) as broker:
        facts = {**tokens(), "ca": authority.certificate}
        check_scenario(scenarios, name, broker, **facts, other_ca=other.certificate)


def test_rust_clients_show_certificates(scenarios, tmp_path, authority):
    """A broker that wants them takes one of its authority, with a token, and nothing less."""
    settings = {"serve__tls_client_ca_file": authority.certificate}
    with protected(tmp_path / "broker", authority, **settings) as broker:
        certificate, key = authority.issue("client")
        facts = {**tokens(), "ca": authority.certificate, "certificate": certificate, "key": key}
        check_scenario(scenarios, "client-certificates", broker, **facts)


@pytest.mark.parametrize(("end", "number"), ENDS)
def test_rust_clients_go_on_over_tls(scenarios, tmp_path, authority, end, number):
    """A restart under load costs nothing with tokens and TLS, either."""
    with protected(tmp_path / "broker", authority) as broker:
        facts = {**tokens(), "ca": authority.certificate}
        check_outages(scenarios, "token-outage", broker, number, rounds=2, end=end, **facts)
