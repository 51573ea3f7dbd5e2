"""The page about subscriptions: its examples run, and its numbers are the code's."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from frazil import Topic
from frazil.subscribe import Limits

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "subscriptions.md").read_text("utf-8")


def test_the_examples_run(tmp_path, monkeypatch, capsys):
    """Each Python block runs after the one before it, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    for block in re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL):
        exec(compile(block, "subscriptions.md", "exec"), names)
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == ["0 1 b'first'", "1 1 b'second'", "2 1 b'third'", "3"]
    assert [line.split()[:3] for line in lines[4:]] == [
        ["audit", "shared", "0"],
        ["billing", "shared", "0"],
    ]


def test_every_option_is_on_the_page():
    """The table names the options of `subscribe`, with their defaults."""
    options = [name for name in inspect.signature(Topic.subscribe).parameters if name != "self"]
    table = PAGE.partition("| option | meaning |")[2].partition("\n\n")[0]
    named = re.findall(r"`(\w+)`", " ".join(row.split("|")[1] for row in table.splitlines() if row))
    assert sorted(named) == sorted(set(options) - {"name"})
    defaults = inspect.signature(Topic.subscribe).parameters
    assert f"{defaults['prefetch'].default} records, 4 MiB" in table
    assert defaults["prefetch_bytes"].default == 4 << 20
    assert f"{Limits().max_unacked_messages} if never set" in table
