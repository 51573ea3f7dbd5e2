"""The page of guarantees names tests that exist, and a test, a command or "not yet" on each line."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guarantees.md"
_REFERENCE = re.compile(r"`([\w/]+(?:\.py|/))(?:::(\w+))?`")
_COMMAND = re.compile(r"`make ([a-z-]+)[^`]*`")
_HEAD = ("| promise | shown by |", "| not promised | today |", "|---|---|")


def rows(text: str) -> list[str]:
    """Return the lines of all tables but their heads."""
    return [line for line in text.splitlines() if line.startswith("|") and line not in _HEAD]


def is_shown(row: str, targets: set[str]) -> bool:
    """Tell whether a line says what shows its promise, or that nothing does yet."""
    if "not yet" in row.lower():
        return True
    shown = row.rstrip("| ").rpartition(" | ")[2]
    commands = set(_COMMAND.findall(shown))
    return bool(_REFERENCE.search(shown)) or (bool(commands) and commands <= targets)


def test_every_test_named_on_the_page_exists() -> None:
    """Each `file::test` of docs/guarantees.md is a test function of that file."""
    page = PAGE.read_text("utf-8")
    missing: list[str] = []
    found = 0
    for file, name in _REFERENCE.findall(page):
        path = ROOT / file if file.startswith("tests/") else ROOT / "tests" / file
        if not path.exists():
            missing.append(file)
        elif name and f"def {name}(" not in path.read_text("utf-8"):
            missing.append(f"{file}::{name}")
        found += 1
    assert found > 50
    assert not missing


def test_every_promise_says_what_shows_it() -> None:
    """A line without a test, a command of the Makefile or the words "not yet" promises nothing."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    found = rows(PAGE.read_text("utf-8"))
    assert len(found) > 200
    assert not [row for row in found if not is_shown(row, targets)]


def test_a_promise_that_nothing_shows_is_found() -> None:
    """Neither words nor a page nor a command that does not exist stand for a test."""
    targets = {"bench"}
    for shown in ("`unit/test_x.py::test_y`", "`make bench NAME=log`", "Not yet: no", "`unit/`"):
        assert is_shown(f"| a promise | {shown} |", targets), shown
    for shown in (
        "—",
        "[broker.md](broker.md)",
        "it takes 1.1 s",
        "`make tea`",
        "",
        "`db.stats()`",
    ):
        assert not is_shown(f"| a promise | {shown} |", targets), shown
    assert not is_shown("| a promise of `unit/test_x.py` | by hand |", targets)
