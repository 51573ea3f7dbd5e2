"""The page of guarantees names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_REFERENCE = re.compile(r"`([\w/]+(?:\.py|/))(?:::(\w+))?`")


def test_every_test_named_on_the_page_exists() -> None:
    """Each `file::test` of docs/guarantees.md is a test function of that file."""
    page = (ROOT / "docs" / "guarantees.md").read_text("utf-8")
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
