"""The public names of the package, all of them and no others."""

from __future__ import annotations

import inspect

import frazil

NAMES = [
    "Ack",
    "AsyncEngine",
    "Batch",
    "Engine",
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
    """Public classes, functions and their methods have docstrings."""
    silent = []
    for name in NAMES:
        thing = getattr(frazil, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            if not inspect.getdoc(thing):
                silent.append(name)
            for inner, member in vars(thing).items():
                if not inner.startswith("_") and inspect.isfunction(member) and not member.__doc__:
                    silent.append(f"{name}.{inner}")
    assert silent == []


def test_publishing_states_what_is_durable_and_what_is_raised():
    """The docstrings of the publishing calls name their promise and their errors."""
    text = inspect.getdoc(frazil.Topic.append)
    for word in ("InvalidRequest", "Conflict", "Overloaded", "Unavailable", "Closed", "On return"):
        assert word in text
    for call in (frazil.Engine.create_topic, frazil.Engine.alter_topic, frazil.Topic.hold):
        assert "durable" in inspect.getdoc(call)
    assert "fsynced" in inspect.getdoc(frazil.Topic)
