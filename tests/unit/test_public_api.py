"""The public names of the package, all of them and no others."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

import frazil
from frazil.engine import AsyncPartitionedTopic, AsyncTopic, PartitionedTopic

NAMES = [
    "Ack",
    "AsyncEngine",
    "Batch",
    "Delivery",
    "Engine",
    "FailurePolicy",
    "FrazilError",
    "Message",
    "Settings",
    "Topic",
    "__version__",
    "errors",
    "open",
    "open_async",
]


def test_the_public_names_are_exactly_these():
    """A new public name is a decision: it is added here, and there are at most 15."""
    assert frazil.__all__ == NAMES
    assert len(NAMES) <= 15
    assert all(hasattr(frazil, name) for name in NAMES)


def test_every_public_call_says_what_it_does():
    """Public classes, functions and their methods have docstrings, inherited ones too."""
    things = [getattr(frazil, name) for name in NAMES] + [PartitionedTopic, AsyncTopic]
    silent = [
        f"{thing.__name__}.{name}"
        for thing in things
        if inspect.isclass(thing) or inspect.isfunction(thing)
        for name, member in [("", thing), *inspect.getmembers(thing, inspect.isfunction)]
        if not name.startswith("_") and member.__module__.startswith("frazil")
        if not inspect.getdoc(member)
    ]
    assert silent == []


def test_asyncio_and_parts_have_the_calls_of_a_topic():
    """Publishing, changing and looking up rows have the same names everywhere."""
    calls = {"append", "append_many", "append_arrow", "append_changes"}
    calls |= {"insert", "upsert", "update", "delete", "get", "get_many"}
    calls |= {"subscribe", "subscriptions", "unsubscribe", "reset_subscription"}
    calls |= {"subscription_policy", "set_subscription"}
    for thing in (frazil.Topic, PartitionedTopic, AsyncTopic, AsyncPartitionedTopic):
        missing = {name for name in calls if not hasattr(thing, name)}
        assert missing == set(), thing
    for thing in (frazil.Engine, frazil.AsyncEngine):
        assert all(hasattr(thing, name) for name in ("query", "explain", "tiers"))


def test_asyncio_takes_the_arguments_of_the_other_calls():
    """A call under asyncio has the parameters of the call that it stands for."""
    pairs = [(AsyncTopic, frazil.Topic), (frazil.AsyncEngine, frazil.Engine)]
    names = {"append", "append_many", "append_arrow", "append_changes", "get", "get_many"}
    names |= {"insert", "upsert", "update", "delete", "query", "explain"}
    names |= {"subscribe", "subscriptions", "unsubscribe", "reset_subscription"}
    for under_asyncio, plain in pairs:
        for name in names & set(dir(under_asyncio)):
            if under_asyncio is frazil.AsyncEngine and name == "append":
                continue
            own = inspect.signature(getattr(under_asyncio, name)).parameters.values()
            others = inspect.signature(getattr(plain, name)).parameters.values()
            assert [(p.name, p.kind, p.default) for p in own] == [
                (p.name, p.kind, p.default) for p in others
            ], name


def test_publishing_states_what_is_durable_and_what_is_raised():
    """The docstrings of the publishing calls name their promise and their errors."""
    text = inspect.getdoc(frazil.Topic.append)
    for word in ("InvalidRequest", "Conflict", "Overloaded", "Unavailable", "Closed", "On return"):
        assert word in text
    for call in (frazil.Engine.create_topic, frazil.Engine.alter_topic, frazil.Topic.hold):
        assert "durable" in inspect.getdoc(call)
    assert "fsynced" in inspect.getdoc(frazil.Topic)


def test_importing_the_package_loads_no_engine():
    """The lake's catalog is a child that imports it: it must not pay for what it does not use."""
    program = (
        "import sys, frazil.lake.catalog.server\n"
        "heavy = {'pyarrow', 'duckdb', 'numpy', 'frazil.engine', 'frazil.query'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        "assert frazil.open is sys.modules['frazil.engine'].open_engine\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert (found.returncode, found.stdout) == (0, "[]\n"), found.stderr


def test_what_is_no_public_name_is_no_attribute():
    """A misspelt name fails as it does in any module, and all names are listed."""
    with pytest.raises(AttributeError, match="opne"):
        _ = frazil.opne
    assert set(NAMES) <= set(dir(frazil))
