"""What every measure needs: a place on the real disk, both sides in turn, medians, rows, a table.

Nothing here asserts on a time: a row says what was measured and whether its bar holds.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs

MEMORY_FILE_SYSTEMS = ("tmpfs", "ramfs", "devtmpfs")


@attrs.frozen
class Row:
    """One line of the table. `baseline`, `ratio` and `holds` are None where there is none."""

    measure: str
    value: float
    unit: str
    baseline: float | None
    ratio: float | None
    bar: str
    holds: bool | None
    samples: dict[str, list[float]] = attrs.field(factory=dict)


@attrs.frozen
class Bench:
    """Where a measure keeps its data, and how long it may take."""

    directory: str
    quick: bool = False

    def pick(self, full, quick):
        """Return the size for this run: large for figures, small to see that it works."""
        return quick if self.quick else full

    def path(self, name: str) -> str:
        """Return a path in the scratch directory."""
        return os.path.join(self.directory, name)

    def fresh(self, name: str) -> str:
        """Return the path of a directory of that name that does not exist (any more)."""
        path = self.path(name)
        shutil.rmtree(path, ignore_errors=True)
        return path


# -- figures -------------------------------------------------------------------------------------


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below or at which `share` of the values lie (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def paired_ratio(values: Sequence[float], baselines: Sequence[float]) -> float:
    """Return the median of the repetitions' ratios.

    Both sides of one repetition ran right after each other, so a change of the machine's load
    during the run moves both.
    """
    return statistics.median(v / b for v, b in zip(values, baselines, strict=True))


def compare(
    measure: str,
    values: Sequence[float],
    baselines: Sequence[float],
    unit: str,
    *,
    ratio_max: float | None = None,
    ratio_min: float | None = None,
) -> Row:
    """Return the row of a measure whose bar is a multiple of its baseline."""
    ratio = paired_ratio(values, baselines)
    bar, holds = _judge(ratio, low=ratio_min, high=ratio_max, suffix=" x")
    return Row(
        measure=measure,
        value=statistics.median(values),
        unit=unit,
        baseline=statistics.median(baselines),
        ratio=ratio,
        bar=bar,
        holds=holds,
        samples={"value": list(values), "baseline": list(baselines)},
    )


def absolute(
    measure: str,
    values: Sequence[float],
    unit: str,
    *,
    value_max: float | None = None,
    value_min: float | None = None,
) -> Row:
    """Return the row of a measure whose bar is a number; without a bar it is only reported."""
    value = statistics.median(values)
    bar, holds = _judge(value, low=value_min, high=value_max, suffix=f" {unit}")
    return Row(
        measure=measure,
        value=value,
        unit=unit,
        baseline=None,
        ratio=None,
        bar=bar,
        holds=holds,
        samples={"value": list(values)},
    )


def _judge(
    value: float, *, low: float | None, high: float | None, suffix: str
) -> tuple[str, bool | None]:
    parts: list[str] = []
    holds: bool | None = None
    if low is not None:
        parts.append(f">= {low:,.10g}{suffix}")
        holds = value >= low
    if high is not None:
        parts.append(f"<= {high:,.10g}{suffix}")
        holds = value <= high and holds is not False
    return " and ".join(parts), holds


def in_turn(
    sides: Mapping[str, Callable[[], object]], repetitions: int, *, warm_up: int = 1
) -> dict[str, list]:
    """Run all sides in each repetition, every other time in reverse, and collect their results.

    The first `warm_up` rounds are run like the others and thrown away.
    """
    results: dict[str, list] = {name: [] for name in sides}
    for number in range(-warm_up, repetitions):
        order = list(sides) if number % 2 == 0 else list(reversed(sides))
        for name in order:
            result = sides[name]()
            if number >= 0:
                results[name].append(result)
    return results


# -- the machine ---------------------------------------------------------------------------------


def file_system_of(path: str, mounts: str) -> str:
    """Return the type of the file system that holds `path`, by the text of /proc/mounts."""
    best, kind = "", "unknown"
    for line in mounts.splitlines():
        _device, point, found, *_rest = line.split()
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, found
    return kind


def real_file_system(path: str) -> str:
    """Return the file system's type of `path`; refuse one that lives in memory."""
    try:
        with open("/proc/mounts", encoding="utf-8") as file:
            mounts = file.read()
    except OSError:
        return "unknown"
    kind = file_system_of(os.path.realpath(path), mounts)
    if kind in MEMORY_FILE_SYSTEMS:
        raise SystemExit(f"{path} is in memory ({kind}): choose --directory on a disk")
    return kind


@contextlib.contextmanager
def scratch(root: str) -> Iterator[str]:
    """Give a directory under `root` on a real disk, and remove it afterwards."""
    made = not os.path.isdir(root)
    os.makedirs(root, exist_ok=True)
    try:
        real_file_system(root)
        path = tempfile.mkdtemp(prefix="run-", dir=os.path.abspath(root))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
    finally:
        if made:
            with contextlib.suppress(OSError):
                os.rmdir(root)


def resident_bytes() -> int:
    """Return how much memory this process has in RAM now."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def process_read_bytes() -> int:
    """Return how many bytes this process has read by system calls so far."""
    with open("/proc/self/io", encoding="ascii") as file:
        return int(file.readline().split()[1])


def directory_bytes(path: str) -> int:
    """Return the sum of the sizes of a directory's files; what vanishes meanwhile counts as 0."""
    total = 0
    for name in os.listdir(path):
        with contextlib.suppress(OSError):
            total += os.stat(os.path.join(path, name)).st_size
    return total


def machine(directory: str) -> dict[str, object]:
    """Describe where the figures were taken."""
    model = ""
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        model = next((x.split(":", 1)[1].strip() for x in file if x.startswith("model name")), "")
    return {
        "cpu": model or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "file_system": real_file_system(directory),
        "load_average": list(os.getloadavg()),
    }


def commit() -> str:
    """Return the commit of the working tree, with `+` behind it if tracked files differ from it."""
    here = os.path.dirname(os.path.abspath(__file__))
    try:
        name = subprocess.run(
            ["git", "-C", here, "rev-parse", "--short=12", "HEAD"],
            capture_output=True,
            check=True,
            text=True,
        ).stdout.strip()
        dirty = subprocess.run(["git", "-C", here, "diff", "--quiet", "HEAD"], check=False)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return name + ("+" if dirty.returncode else "")


# -- output --------------------------------------------------------------------------------------


def document(rows: Sequence[Row], *, machine: Mapping[str, object], commit: str, **more) -> dict:
    """Return what is written as JSON."""
    return {
        "machine": dict(machine),
        "commit": commit,
        **more,
        "rows": [attrs.asdict(row) for row in rows],
    }


def rows_from(data: Mapping) -> list[Row]:
    """Read the rows of a document back."""
    return [Row(**row) for row in data["rows"]]


def write_json(path: str, data: Mapping) -> None:
    """Write a document."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        json.dump(data, file, indent=1)
        file.write("\n")


def figure(value: float | None) -> str:
    """Write a number with as many digits as say something."""
    if value is None:
        return "-"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a table for people."""
    words = {True: "yes", False: "NO", None: "-"}
    lines = [("measure", "value", "unit", "baseline", "ratio", "bar", "holds")]
    for row in rows:
        numbers = (figure(row.value), row.unit, figure(row.baseline), figure(row.ratio))
        lines.append((row.measure, *numbers, row.bar or "-", words[row.holds]))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    right = (False, True, False, True, True, False, False)
    return "\n".join(
        "  ".join(
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(line, widths, right, strict=True)
        ).rstrip()
        for line in lines
    )
