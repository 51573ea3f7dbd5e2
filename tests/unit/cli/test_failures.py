"""Global options may stand anywhere; errors are one line."""

from __future__ import annotations

import pytest

from frazil.cli.failures import hoisted, report
from frazil.errors import NotFound

LINES = [
    ("read t --data d", "--data d read t"),
    ("--data d read t", "--data d read t"),
    ("read --data=d t -o json", "--data=d -o json read t"),
    ("doctor --debug --set a=b --set c=d", "--debug --set a=b --set c=d doctor"),
    ("read -- --data d", "read -- --data d"),
    ("config show --set a=b --data d", "--set a=b --data d config show"),
    ("--set a=b config show", "--set a=b config show"),
    ("read t --data", "read t --data"),
    ("publish config --output json", "--output json publish config"),
    ("sql -c select --data d", "--data d sql -c select"),
    ("--data d sql -c --data -o json", "--data d -o json sql -c --data"),
    ("-c f sql -c q", "-c f sql -c q"),
    ("sql --config f -c", "--config f sql -c"),
    ("topic list -c f", "-c f topic list"),
]


@pytest.mark.parametrize(("given", "wanted"), LINES)
def test_global_options_go_first(given, wanted):
    """They are moved before the command with their values; the rest keeps its order."""
    assert hoisted(given.split()) == wanted.split()


def test_an_error_is_one_line_with_its_facts(capsys):
    """An error of ours is printed with its details; a stranger with its class and a hint."""
    report(NotFound("no such topic", topic="a\nb"), debug=False)
    report(ValueError("x\ny"), debug=False)
    first, second = capsys.readouterr().err.splitlines()
    assert first == "error: no such topic (topic=a\\nb)"
    assert second.startswith("error: ValueError: x y (")
