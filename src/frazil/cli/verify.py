"""`frazil verify`: check that a topic's table has each record once."""

from __future__ import annotations

from typing import Annotated, Final

import typer
from rich.status import Status

from frazil.cli.output import console, print_json
from frazil.cli.session import session_of

__all__ = ["verify"]

STEPS: Final = {
    "starting": "Spark is starting",
    "verify_offsets": "counting every offset",
    "verify_rows": "comparing rows with the disk tier",
}


def verify(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="The topic: name or /namespace/name.")],
) -> None:
    """Check that a topic's table has each record once, and print what was found.

    The exit code is 0 for a good table, 2 if others deleted rows of it, 8 if rows are lost, doubled
    or altered.
    """
    session = session_of(context)
    screen = console(stderr=True)
    status = Status("lake: starting", console=screen)

    def progress(step: str) -> None:
        status.update(f"{topic}: {STEPS.get(step, step)}")

    with session.engine() as engine:
        if screen.is_terminal:
            status.start()
        try:
            found = engine.lake.verify(topic, progress=progress)
        finally:
            status.stop()
    if session.as_json:
        print_json(found.facts())
    else:
        typer.echo("\n".join(found.lines))
    raise typer.Exit(found.exit_code)
