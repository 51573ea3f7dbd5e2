"""`frazil lake setup` and `frazil lake doctor`: make this machine ready, and say what is missing."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TransferSpeedColumn,
)

from frazil.cli.output import console, note, print_json, print_table, size_text
from frazil.cli.session import session_of
from frazil.errors import CODES, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from frazil.lake import Check, Jar

__all__ = ["lake_app"]

lake_app = typer.Typer(help="Iceberg tables: set-up, state, commits.", no_args_is_help=True)

START_SECONDS: Final = 10
BYTES_PER_SECOND: Final = 5_000_000
"""A slow line; what is said before is an upper estimate."""


@lake_app.callback()
def lake() -> None:
    """Iceberg tables: set-up, state, commits."""


@lake_app.command()
def setup(
    context: typer.Context,
    jars: Annotated[
        str | None,
        typer.Option("--jars", help="Take the jars from this directory, without a network."),
    ] = None,
) -> None:
    """Fetch and check what Spark needs, so that the first table does not wait for it.

    Says first how much that is. Mirrors and proxies are set in lake.spark.conf. A second call has
    nothing to do.
    """
    from frazil.lake import jars_directory, prepare, take_jars

    session = session_of(context)
    settings = session.settings()
    directory = jars_directory(settings, os.environ)
    java = None
    with _bar() as bar:
        if jars is not None:
            paths = take_jars(
                settings,
                jars,
                announce=lambda missing: bar.announce(missing, directory, f"copying from {jars}"),
                progress=bar.progress,
            )
        else:
            java, paths = prepare(
                settings,
                announce=lambda missing: bar.announce(missing, directory, _expected(missing)),
                progress=bar.progress,
            )
    for each in java.notes if java is not None else ():
        note(f"note: {each}")
    shown = None if java is None else {"version": java.version, "home": java.home}
    runs = "" if java is None else f"Java {java.version} from {java.source}; "
    session.show(
        {"java": shown, "jars": paths, "taken": bar.taken},
        f"{runs}{_count(paths)} in {directory}, checked; frazil lake doctor looks at the rest",
    )


def _expected(jars: Sequence[Jar]) -> str:
    seconds = START_SECONDS + sum(jar.bytes for jar in jars) // BYTES_PER_SECOND
    return f"fetching, about {seconds} s or less"


def _count(jars: Sequence[object]) -> str:
    return "1 jar" if len(jars) == 1 else f"{len(jars)} jars"


class _Bar:
    """Says what will be done, then shows on a terminal how far it is."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown
        self._task: TaskID | None = None
        self.taken = 0

    def announce(self, jars: Sequence[Jar], directory: str, what: str) -> None:
        """Print size and target, and begin to count."""
        total = sum(jar.bytes for jar in jars)
        note(f"{what}: {_count(jars)}, {size_text(total)}, into {directory}")
        self._task = self._shown.add_task("jars", total=total)
        self._shown.start()
        self.taken = len(jars)

    def progress(self, done: int, total: int) -> None:
        """Show how far it is."""
        if self._task is not None:
            self._shown.update(self._task, completed=done, total=total)


@contextlib.contextmanager
def _bar() -> Iterator[_Bar]:
    errors = console(stderr=True)
    shown = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        console=errors,
        transient=True,
        disable=not errors.is_terminal,
    )
    try:
        yield _Bar(shown)
    finally:
        shown.stop()


@lake_app.command()
def doctor(context: typer.Context) -> None:
    """Check Java, versions, jars, catalog, warehouse, disk and memory; say what to do.

    The exit code is 5 if something is missing.
    """
    from frazil.lake import examine

    session = session_of(context)
    checks = examine(session.settings())
    bad = [check for check in checks if not check.ok]
    if session.as_json:
        print_json({"ok": not bad, "checks": [check._asdict() for check in checks]})
    else:
        print_table(("", "what", "found", "what to do"), [_row(check) for check in checks])
        typer.echo(f"{len(bad)} of {len(checks)} need attention" if bad else "all is well")
    if bad:
        raise typer.Exit(CODES[Unavailable].exit)


def _row(check: Check) -> tuple[str, str, str, str]:
    return ("ok" if check.ok else "FAIL", check.name, check.found, check.fix)
