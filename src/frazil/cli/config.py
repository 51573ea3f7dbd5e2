"""`frazil config`: show, check and describe the settings."""

from __future__ import annotations

import contextlib
import json
import os.path
from typing import Annotated

import typer

from frazil.cli.output import note, write_out
from frazil.cli.session import session_of
from frazil.config import (
    describe,
    import_danube,
    json_schema,
    load_settings,
    read_bytes,
    read_documents,
    text_of,
)
from frazil.errors import Conflict, InvalidRequest
from frazil.fs import RealFileSystem, write_fully

__all__ = ["app"]

app = typer.Typer(help="Show, check, describe and import the settings.", no_args_is_help=True)


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


@app.command("import")
def import_config(
    file: Annotated[str, typer.Argument(help="Danube's YAML file, e.g. danube_broker.yml.")],
    out: Annotated[
        str | None, typer.Option("--out", help="The new settings file; stdout without it.")
    ] = None,
    number: Annotated[
        int | None, typer.Option("--document", min=1, help="Which document of the file, from 1.")
    ] = None,
) -> None:
    """Write the settings that equal a Danube file's storage, and report each key.

    The report goes to stderr. References to the environment stay references.
    """
    documents = read_documents(text_of(read_bytes(file), file=file))
    wanted = number or 1
    if wanted > len(documents):
        raise InvalidRequest("there is no such document", document=wanted, documents=len(documents))
    found = import_danube(documents[wanted - 1], source=os.path.basename(file))
    if out is None:
        write_out(found.text)
    else:
        _write(out, found.text)
    for mapped in found.mapped:
        note(f"mapped   {mapped.key} -> {mapped.setting}: {mapped.shown}")
    for left in found.dropped:
        note(f"dropped  {left.key}: {left.reason}")
    if number is None and len(documents) > 1:
        note(f"the file has {len(documents)} documents, this is the first: see --document")


def _write(path: str, text: str) -> None:
    """Create a file that only its owner can read: it may have secrets."""
    files = RealFileSystem()
    try:
        file = files.open(os.path.abspath(path), "create")
    except FileExistsError as error:
        raise Conflict("file exists already, choose another with --out", file=path) from error
    except (OSError, ValueError) as error:
        raise InvalidRequest("file cannot be written", file=path, reason=error) from error
    with contextlib.closing(file):
        write_fully(file, 0, [text.encode()])
        file.sync()
