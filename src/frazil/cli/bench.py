"""`frazil bench`: measure this machine's disk, and the log on it."""

from __future__ import annotations

import os.path
import tempfile
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from frazil.cli import measuring
from frazil.cli.output import console, note, print_json, print_table
from frazil.cli.session import Session, session_of
from frazil.config import Settings, load_settings, parse_assignments
from frazil.engine import open_engine
from frazil.errors import Unavailable
from frazil.log import file_system_kind

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["app"]

app = typer.Typer(help="Measure this machine's disk, and the log on it.", no_args_is_help=True)

SIZES: Final = (100, 4096, 65536)
STEPS: Final = len(SIZES) + 1 + 5
Numbers = dict[str, dict[str, float]]


@app.callback()
def bench() -> None:
    """Measure this machine's disk, and the log on it."""


@app.command("log")
def bench_log(
    context: typer.Context,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, max=3600, help="How long in all.")
    ] = 60.0,
) -> None:
    """Measure the disk, then the log on it, and compare; what is written is removed again."""
    session = session_of(context)
    place = _existing(os.path.abspath(session.settings().data_dir))
    try:
        with tempfile.TemporaryDirectory(prefix="frazil-bench-", dir=place) as directory:
            numbers = _measure(_settings(session, f"{directory}/data"), directory, seconds / STEPS)
    except OSError as error:
        raise Unavailable("the disk cannot be measured", path=place, error=error) from error
    ratios = _ratios(numbers)
    if session.as_json:
        print_json(
            {"path": place, "file_system": file_system_kind(place), **numbers, "ratios": ratios}
        )
        return
    print_table(
        ("measure", "p50", "p99", "per second", "MB/s", "rows/s"),
        [(name, *_cells(found)) for name, found in numbers.items()],
    )
    print_table(("ratio", ""), [(name, f"{ratio:.2f}") for name, ratio in ratios.items()])
    typer.echo(f"measured in {place} ({file_system_kind(place) or 'unknown file system'})")


def _existing(path: str) -> str:
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def _measure(settings: Settings, directory: str, seconds: float) -> Numbers:
    numbers: Numbers = {}

    def step(name: str, measure: Callable[..., dict[str, float]], *place: Any, **how: Any) -> None:
        if console(stderr=True).is_terminal:
            note(f"measuring {name} for {seconds:.1f} s")
        numbers[name] = measure(*place, seconds=seconds, **how)

    for size in SIZES:
        step(f"disk_sync_{size}", measuring.disk_sync, directory, size=size)
    step("disk_sequential", measuring.disk_sequential, directory)
    with open_engine(settings) as engine:
        step("log_single", measuring.log_single, engine)
        step("log_64_threads", measuring.log_threads, engine)
        step("log_256_tasks", measuring.log_tasks, engine)
        step("log_arrow", measuring.log_arrow, engine)
        step("log_read", measuring.log_read, engine)
    return numbers


def _settings(session: Session, directory: str) -> Settings:
    """Return the settings of the call on a new directory; ballast only if --set asks for it."""
    overrides = {"log.ballast_bytes": 0, **parse_assignments(session.assignments)}
    overrides["data_dir"] = directory
    return load_settings(file=session.config, overrides=overrides)


def _ratios(numbers: Numbers) -> dict[str, float]:
    disk = numbers["disk_sync_100"]
    sequential = numbers["disk_sequential"]["mb_per_s"]
    return {
        "single producer p50 to disk sync p50": numbers["log_single"]["p50_us"] / disk["p50_us"],
        "256 tasks acks to disk syncs": numbers["log_256_tasks"]["per_s"] / disk["per_s"],
        "arrow MB/s to sequential MB/s": numbers["log_arrow"]["mb_per_s"] / sequential,
    }


def _cells(found: dict[str, float]) -> list[str]:
    return [
        f"{found['p50_us']:,.0f} µs" if "p50_us" in found else "",
        f"{found['p99_us']:,.0f} µs" if "p99_us" in found else "",
        f"{found['per_s']:,.0f}" if "per_s" in found else "",
        f"{found['mb_per_s']:,.0f}" if "mb_per_s" in found else "",
        f"{found['rows_per_s']:,.0f}" if "rows_per_s" in found else "",
    ]
