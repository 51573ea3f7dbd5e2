"""The harness of the benchmarks computes what its table says."""

from __future__ import annotations

import json

import pytest

from bench import harness


def row(**changes):
    """Return a row of a bar that holds."""
    facts = {
        "measure": "m",
        "value": 2.0,
        "unit": "ms",
        "baseline": 1.0,
        "ratio": 2.0,
        "bar": "<= 2 x",
        "holds": True,
    }
    return harness.Row(**{**facts, **changes})


@pytest.mark.parametrize(
    ("share", "expected"), [(0.0, 1), (0.5, 50), (0.99, 99), (0.991, 100), (1.0, 100)]
)
def test_percentile_is_the_nearest_rank(share, expected):
    """Of 1..100 in any order, the percentile n is n, and never a value that did not occur."""
    assert harness.percentile(list(range(100, 0, -1)), share) == expected


def test_ratio_is_taken_within_each_repetition():
    """A phase in which the machine is slow moves both sides and not the ratio."""
    values, baselines = [2.0, 20.0, 200.0], [1.0, 10.0, 1.0]
    assert harness.paired_ratio(values, baselines) == 2.0
    found = harness.compare("m", values, baselines, "ms", ratio_max=2.0)
    assert (found.value, found.baseline, found.ratio, found.holds) == (20.0, 1.0, 2.0, True)


@pytest.mark.parametrize(
    ("value", "limits", "bar", "holds"),
    [
        (2.0, {"ratio_max": 2.0}, "<= 2 x", True),
        (2.01, {"ratio_max": 2.0}, "<= 2 x", False),
        (0.35, {"ratio_min": 0.35}, ">= 0.35 x", True),
        (0.34, {"ratio_min": 0.35}, ">= 0.35 x", False),
        (1.0, {"ratio_min": 1.0, "ratio_max": 1.0}, ">= 1 x and <= 1 x", True),
        (0.9, {"ratio_min": 1.0, "ratio_max": 1.0}, ">= 1 x and <= 1 x", False),
        (1.1, {"ratio_min": 1.0, "ratio_max": 1.0}, ">= 1 x and <= 1 x", False),
        (9.0, {}, "", None),
    ],
)
def test_bar_of_a_ratio(value, limits, bar, holds):
    """A bar on a ratio holds up to and including its limit; without a limit nothing is claimed."""
    found = harness.compare("m", [value], [1.0], "ms", **limits)
    assert (found.bar, found.holds) == (bar, holds)


@pytest.mark.parametrize(
    ("value", "limits", "bar", "holds"),
    [
        (100_000, {"value_min": 100_000}, ">= 100,000 acks/s", True),
        (99_999, {"value_min": 100_000}, ">= 100,000 acks/s", False),
        (11, {"value_max": 10}, "<= 10 acks/s", False),
        (11, {}, "", None),
    ],
)
def test_bar_of_a_number(value, limits, bar, holds):
    """A bar on a number is judged by the median, and there is no baseline."""
    found = harness.absolute("m", [value, 0, 10**9], "acks/s", **limits)
    assert (found.value, found.bar, found.holds) == (value, bar, holds)
    assert (found.baseline, found.ratio) == (None, None)


def test_sides_run_in_turn_and_every_other_round_in_reverse():
    """Every round runs all sides, the order changes, and the warm-up is not in the results."""
    calls = []

    def side(name):
        def run():
            calls.append(name)
            return len(calls)

        return run

    results = harness.in_turn({"a": side("a"), "b": side("b")}, 3, warm_up=1)
    assert "".join(calls) == "baabbaab"
    assert results == {"a": [3, 6, 7], "b": [4, 5, 8]}


def test_document_has_the_promised_shape(tmp_path):
    """The JSON names machine, commit and rows, and the rows come back as they were."""
    rows = [row(), row(measure="n", baseline=None, ratio=None, bar="", holds=None)]
    path = tmp_path / "results" / "log.json"
    data = harness.document(rows, machine={"cores": 2}, commit="abc", quick=True)
    harness.write_json(str(path), data)
    read = json.loads(path.read_text())
    assert read["machine"] == {"cores": 2}
    assert read["commit"] == "abc"
    assert read["quick"] is True
    required = {"measure", "value", "unit", "baseline", "bar", "holds"}
    assert all(required <= set(each) for each in read["rows"])
    assert harness.rows_from(read) == rows


def test_table_shows_every_row_and_marks_a_missed_bar():
    """A bar that does not hold stands out, one that was not set is a dash."""
    lines = harness.table([row(), row(holds=False), row(holds=None, bar="", ratio=None)])
    head, *body = lines.splitlines()
    assert head.split() == ["measure", "value", "unit", "baseline", "ratio", "bar", "holds"]
    assert [line.split()[-1] for line in body] == ["yes", "NO", "-"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [("/data/x", "ext4"), ("/database", "xfs"), ("/tmp/y", "tmpfs"), ("/tmp", "tmpfs")],
)
def test_file_system_is_that_of_the_longest_mount_point(path, expected):
    """The mount point that holds a path counts, and a name that only starts alike does not."""
    mounts = "d1 / xfs rw 0 0\nd2 /data ext4 rw 0 0\nnone /tmp tmpfs rw 0 0\n"
    assert harness.file_system_of(path, mounts) == expected
