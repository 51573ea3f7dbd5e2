"""The size of the code: statements by package, files, classes, settings, tests.

A statement is any statement except imports and docstrings; generated code does not count. The whole
has at most 38,000. A package above its goal only shrinks; one that grows needs a reason in the
commit that raises its limit.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from frazil.config import describe

ROOT = Path(__file__).resolve().parents[2]
LIMITS = {
    "(top)": 1_000,
    "cli": 2_150,
    "config": 745,
    "engine": 2_700,
    "lake": 6_200,
    "log": 3_440,
    "metadata": 1_199,
    "objects": 2_653,
    "query": 2_200,
    "registry": 1_206,
    "schema": 2_000,
    "serve": 4_700,
    "subscribe": 3_200,
    "tiers": 4_200,
    "topic": 2_450,
}
"""Statements by package; the goal of each is in GOALS."""
GOALS = {
    "(top)": 1_000,
    "cli": 2_150,
    "config": 700,
    "engine": 2_700,
    "lake": 6_200,
    "log": 2_700,
    "metadata": 1_150,
    "objects": 2_500,
    "query": 2_200,
    "registry": 1_200,
    "schema": 2_000,
    "serve": 4_700,
    "subscribe": 3_200,
    "tiers": 4_200,
    "topic": 1_400,
}
STATEMENTS_MAX = 38_000
FILES_MAX = 320
CLASSES_MAX = 665
SETTINGS_MAX = 90
SATELLITES_MAX = 25
TESTS_MAX = 50_000


def sources(folder: str) -> list[Path]:
    return [path for path in (ROOT / folder).rglob("*.py") if "_pb2" not in path.name]


def statements(paths: list[Path]) -> Counter[str]:
    """Count statements by package, and classes as `class`."""
    found: Counter[str] = Counter()
    for path in paths:
        parts = path.relative_to(ROOT).parts
        package = parts[2] if len(parts) > 3 else "(top)"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            found["class"] += isinstance(node, ast.ClassDef)
            is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if isinstance(node, ast.stmt) and not isinstance(node, ast.Import | ast.ImportFrom):
                found[package] += not is_docstring
    return found


SIZES = statements(sources("src/frazil"))


@pytest.mark.parametrize("package", sorted({*SIZES} - {"class"}))
def test_packages_keep_to_their_limit(package):
    """No package has more statements than its limit."""
    assert SIZES[package] <= LIMITS[package]


def test_the_whole_keeps_to_its_limits():
    """Statements, files, classes, settings and tests do not grow."""
    assert SIZES.total() - SIZES["class"] <= STATEMENTS_MAX
    assert len(sources("src/frazil")) <= FILES_MAX
    assert SIZES["class"] <= CLASSES_MAX
    assert len(describe()) <= SETTINGS_MAX
    tests = statements(sources("tests"))
    assert tests.total() - tests["class"] <= TESTS_MAX


def test_a_limit_is_never_above_a_goal_that_was_reached():
    """A package that reached its goal keeps it; small modules with one importer stay few."""
    assert {*LIMITS} == {*GOALS}
    for package, limit in LIMITS.items():
        assert limit == GOALS[package] or SIZES[package] > GOALS[package], package
    assert len(satellites()) <= SATELLITES_MAX, satellites()


def satellites() -> list[str]:
    """Return the modules below 150 lines that one other module alone imports."""
    importers: dict[str, set[str]] = {}
    texts = {path: path.read_text(encoding="utf-8") for path in sources("src/frazil")}
    names = {path: ".".join(path.relative_to(ROOT / "src").with_suffix("").parts) for path in texts}
    for path, text in texts.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module:
                for name in (node.module, *(f"{node.module}.{each.name}" for each in node.names)):
                    importers.setdefault(name, set()).add(names[path])
    return [
        name
        for path, name in names.items()
        if path.name != "__init__.py"
        and texts[path].count("\n") < 150
        and len(importers.get(name, set()) - {f"{name.rpartition('.')[0]}.__init__"}) == 1
    ]
