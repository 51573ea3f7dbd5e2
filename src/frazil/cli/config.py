"""`frazil config`: show, check and describe the settings."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from frazil.cli.config_import import import_config
from frazil.config import Settings, describe, json_schema, load_settings, parse_assignments

__all__ = ["app"]

app = typer.Typer(help="Show, check, describe and import the settings.", no_args_is_help=True)
app.command("import")(import_config)

Output = Literal["table", "json"]


@app.command()
def show(
    file: Annotated[
        str | None, typer.Option("--config", "-c", help="YAML file; FRAZIL_CONFIG without it.")
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="A setting as key=value; may be repeated.")
    ] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print.")] = "table",
) -> None:
    """Show every setting as it is in effect, and where it was set."""
    settings = load_settings(file=file, overrides=parse_assignments(assignments or []))
    if output == "json":
        typer.echo(json.dumps(_effective(settings), indent=2, default=str))
        return
    Console().print(_table(settings))


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


def _effective(settings: Settings) -> dict[str, dict[str, object]]:
    origins = settings.origins
    return {
        path: {"value": value, "origin": origins[path]} for path, value in settings.values().items()
    }


def _table(settings: Settings) -> Table:
    table = Table("setting", "value", "set at", "meaning")
    values, origins = settings.values(), settings.origins
    for info in describe():
        shown = info.shown(values[info.path])
        table.add_row(info.path, shown, origins[info.path], info.description)
    return table
