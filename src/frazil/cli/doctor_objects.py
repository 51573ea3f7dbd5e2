"""`frazil doctor --objects`: try the object store before data depends on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from frazil.cli.output import print_json, print_table
from frazil.clock import SystemClock
from frazil.engine import Step, examine_store
from frazil.errors import codes_of

if TYPE_CHECKING:
    from frazil.config import Settings

__all__ = ["doctor_objects"]


def doctor_objects(settings: Settings, *, as_json: bool) -> None:
    """Print what works with the store of the settings, and which setting is to blame if not.

    The exit code is that of the error: 2 for a wrong setting, 5 for a store that is not there.
    """
    objects = settings.objects
    steps = list(examine_store(objects, clock=SystemClock()))
    error = steps[-1].error
    place = f"{objects.store} {objects.root}".strip()
    if as_json:
        print_json(
            {"store": objects.store, "root": objects.root, "ok": error is None} | _told(steps)
        )
    else:
        print_table(
            ("step", "result", "what to do"),
            [
                (step.name, "ok" if step.error is None else str(step.error), step.advice)
                for step in steps
            ],
        )
        typer.echo(f"{place}: {'ok' if error is None else 'cannot be used'}")
    if error is not None:
        raise typer.Exit(codes_of(error).exit)


def _told(steps: list[Step]) -> dict[str, object]:
    return {
        "steps": [
            {
                "name": step.name,
                "ok": step.error is None,
                "error": None if step.error is None else str(step.error),
                "setting": step.setting or None,
                "advice": step.advice or None,
            }
            for step in steps
        ]
    }
