"""`frazil config`: show, check and describe the settings."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from frazil.cli.config_import import import_config
from frazil.cli.session import session_of
from frazil.config import describe, json_schema, load_settings

__all__ = ["app"]

app = typer.Typer(help="Show, check, describe and import the settings.", no_args_is_help=True)
app.command("import")(import_config)


@app.command()
def show(context: typer.Context) -> None:
    """Show every setting as it is in effect, and where it was set."""
    session = session_of(context)
    settings = session.settings()
    values, origins = settings.values(), settings.origins
    effective = {path: {"value": values[path], "origin": origins[path]} for path in values}
    rows = [
        (info.path, info.shown(values[info.path]), origins[info.path], info.description)
        for info in describe()
    ]
    session.table(effective, ("setting", "value", "set at", "meaning"), rows)


@app.command()
def check(file: Annotated[str, typer.Argument(help="YAML file.")]) -> None:
    """Check a YAML file on its own, without the environment; `${NAME}` need not be set."""
    settings = load_settings(file=file, environment={}, look_up=False)
    count = sum(origin != "default" for origin in settings.origins.values())
    typer.echo(f"ok: {file} sets {count} of {len(describe())} settings")


@app.command()
def schema() -> None:
    """Print the JSON Schema of the YAML file, for editors and checks."""
    typer.echo(json.dumps(json_schema(), indent=2))
