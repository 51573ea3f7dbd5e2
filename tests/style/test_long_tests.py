"""Tests that are too long for `make test` are run by `make crash`, none by nothing."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARK = "pytest.mark.crash" + "_long"


def crash_paths(makefile: str) -> list[str]:
    """Return the paths that `make crash` runs; variables of the Makefile stay as they are."""
    recipe = re.search(r"^crash:.*?(?=^\S)", makefile, re.MULTILINE | re.DOTALL)
    assert recipe is not None
    return re.findall(r"tests/[\w/.]+", recipe[0])


def test_every_long_test_is_run_by_make_crash() -> None:
    """Each file with such a test is one that `make crash` names, or lies in a folder of it."""
    paths = crash_paths((ROOT / "Makefile").read_text("utf-8"))
    found = [
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        if MARK in path.read_text("utf-8")
    ]
    assert found
    forgotten = [
        each
        for each in found
        if not any(each == path or each.startswith(f"{path}/") for path in paths)
    ]
    assert not forgotten
    assert all((ROOT / path).exists() for path in paths)
