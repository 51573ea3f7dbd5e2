"""`frazil lake setup` and `frazil lake doctor`: fetch Spark's jars, report missing parts."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Final

import typer

from frazil.cli.output import note, print_json, print_table, progress_bar, size_text
from frazil.cli.session import session_of
from frazil.errors import CODES, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frazil.lake import Check, Jar

__all__ = ["lake_app"]

lake_app = typer.Typer(help="Iceberg tables: set-up, state, commits.", no_args_is_help=True)

START_SECONDS: Final = 10
BYTES_PER_SECOND: Final = 5_000_000
"""A slow line; the announced time is an upper estimate."""


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
    """Fetch and check the jars of Spark, so that the first table does not wait for them.

    The size is printed first. Mirrors and proxies are set in lake.spark.conf. A second call has
    nothing to do.
    """
    from frazil.lake import jars_directory, prepare, take_jars

    session = session_of(context)
    settings = session.settings()
    directory = jars_directory(settings, os.environ)
    java = None
    taken = 0
    with progress_bar() as bar:
        task = bar.add_task("jars", total=None)

        def announce(found: Sequence[Jar], what: str = "") -> None:
            nonlocal taken
            taken, total = len(found), sum(jar.bytes for jar in found)
            what = what or f"fetching, about {START_SECONDS + total // BYTES_PER_SECOND} s or less"
            note(f"{what}: {_count(found)}, {size_text(total)}, into {directory}")

        def progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        if jars is not None:
            paths = take_jars(
                settings,
                jars,
                announce=lambda missing: announce(missing, f"copying from {jars}"),
                progress=progress,
            )
        else:
            java, paths = prepare(settings, announce=announce, progress=progress)
    for each in java.notes if java is not None else ():
        note(f"note: {each}")
    shown = None if java is None else {"version": java.version, "home": java.home}
    runs = "" if java is None else f"Java {java.version} from {java.source}; "
    session.show(
        {"java": shown, "jars": paths, "taken": taken},
        f"{runs}{_count(paths)} in {directory}, checked; frazil lake doctor looks at the rest",
    )


def _count(jars: Sequence[object]) -> str:
    return "1 jar" if len(jars) == 1 else f"{len(jars)} jars"


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
