"""The table of test times covers everything that `make test` runs."""

from __future__ import annotations

from pathlib import Path

from scripts import test_times

ROOT = Path(__file__).parent.parent.parent


def test_every_suite_has_a_share():
    """Each folder with tests has a row, the static checks have one, and all are four minutes."""
    folders = {path.parent.relative_to(ROOT / "tests") for path in ROOT.glob("tests/**/test_*.py")}
    suites = {folder.parts[0] for folder in folders}
    assert set(test_times.SHARES_S) == {"static", *suites}
    assert sum(test_times.SHARES_S.values()) == 240


def test_the_static_checks_are_those_of_make_test():
    """The row of static checks runs the target that `make test` depends on."""
    makefile = (ROOT / "Makefile").read_text()
    assert test_times.command("static", 2) == ["make", "static"]
    [line] = [line for line in makefile.splitlines() if line.startswith("test:")]
    assert "static" in line.partition("##")[0].split()
