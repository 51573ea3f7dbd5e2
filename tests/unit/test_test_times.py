"""The table of test times covers everything that `make test` runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import test_times

ROOT = Path(__file__).parent.parent.parent


def test_every_test_file_is_in_one_part():
    """The parts' files are all test files, each once; every part has some."""
    files = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("tests/**/test_*.py")]
    parts = {part: test_times.files_of(part) for part in test_times.PARTS}
    assert sorted(file for part in parts.values() for file in part) == sorted(files)
    assert all(parts.values())
    assert set(test_times.SHARES_S) == {"static", *parts}


def test_the_shares_are_those_that_were_promised():
    """The log has four minutes with the static checks, tiers and broker four, the lake six."""
    shares = test_times.SHARES_S
    assert shares["static"] + shares["log"] == 240
    assert (shares["tiers"], shares["lake"], shares["broker"]) == (240, 360, 240)
    assert test_times.JVM_STARTS_MAX == {"lake": 12}


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("unit/lake/test_plan.py", "lake"),
        ("contract/test_catalog_http.py", "lake"),
        ("unit/query/test_catalog.py", "tiers"),
        ("property/test_tiers_model.py", "tiers"),
        ("unit/log/test_reader.py", "log"),
        ("unit/serve/h2/test_frames.py", "broker"),
        ("unit/log/test_cursor_frames.py", "broker"),
        ("contract/test_metadata_store.py", "log"),
    ],
)
def test_a_file_belongs_to_the_part_whose_code_it_tests(path, part):
    """The name of a file or of its folder tells its part."""
    assert test_times.part_of(path) == part


@pytest.mark.parametrize(
    ("row", "verdict"),
    [
        (test_times.Ran(360.0, 0, 12), "ok"),
        (test_times.Ran(360.1, 0, 12), "ABOVE ITS SHARE"),
        (test_times.Ran(1.0, 0, 13), "ABOVE ITS SHARE"),
        (test_times.Ran(1.0, 1, 1), "FAILED (1)"),
        (test_times.Ran(1.0, test_times.NO_TESTS, 0), "NO TESTS"),
    ],
)
def test_what_is_above_its_share_is_flagged(row, verdict):
    """Time and JVM starts are both limited, and a failure is no success."""
    assert test_times.verdict("lake", row) == verdict


def test_the_static_checks_are_those_of_make_test():
    """The row of static checks runs the target that `make test` depends on."""
    makefile = (ROOT / "Makefile").read_text()
    assert test_times.command("static", 2) == ["make", "static"]
    [line] = [line for line in makefile.splitlines() if line.startswith("test:")]
    assert "static" in line.partition("##")[0].split()
