"""`frazil catalog`: serve the tables of a data directory to any Iceberg client, without an engine."""

from __future__ import annotations

import http.client
import os.path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import msgspec
import typer

from frazil.cli.output import print_json
from frazil.cli.session import session_of
from frazil.errors import Conflict, InvalidRequest, NotFound
from frazil.fs import RealFileSystem
from frazil.lake.catalog.address import ADDRESS_FILE, CatalogAddress, read_address
from frazil.lake.catalog.process import CatalogOptions
from frazil.log import DataDirectory

if TYPE_CHECKING:
    from frazil.cli.session import Session

__all__ = ["app"]

HEALTH_SECONDS = 2.0

app = typer.Typer(help="The embedded Iceberg REST catalog.", no_args_is_help=True)


@app.callback()
def catalog() -> None:
    """Keep `serve` a separate command."""


@app.command()
def serve(
    context: typer.Context,
    directory: Annotated[
        str | None, typer.Argument(metavar="DIR", help="The data directory; --data without it.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Where to listen, or the next free one; 0 takes any.")
    ] = None,
    warehouse: Annotated[
        str | None,
        typer.Option(help="Directory of the tables; the setting lake.warehouse without it."),
    ] = None,
) -> None:
    """Serve the catalog of a data directory until Ctrl-C.

    A running engine serves it already; this is for when none runs. The address and the token are
    in run/catalog.json of the directory.
    """
    session = session_of(context)
    paths = session.paths() if directory is None else DataDirectory(os.path.abspath(directory))
    if not os.path.isdir(paths.root):
        raise NotFound("there is no data directory", path=paths.root)
    running = read_address(paths.run, file_system=RealFileSystem())
    if running is not None and _answers(running):
        raise Conflict("the catalog is served already", uri=running.uri, pid=running.pid)
    settings = session.settings().lake
    try:
        from frazil.lake.catalog import server
    except ModuleNotFoundError as error:
        raise InvalidRequest(
            'the catalog needs more packages, pip install "frazil[lake]"', missing=error.name
        ) from error
    options = CatalogOptions(
        db=paths.catalog,
        warehouse=warehouse or settings.warehouse or paths.warehouse,
        port=settings.catalog.port if port is None else port,
        run_directory=paths.run,
    )
    server.serve(options, listening=lambda address: _show(session, options, address))


def _answers(address: CatalogAddress) -> bool:
    """Return whether a catalog listens at an address; a killed one leaves its file."""
    found = urlsplit(address.uri)
    connection = http.client.HTTPConnection(
        found.hostname or "", found.port, timeout=HEALTH_SECONDS
    )
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _show(session: Session, options: CatalogOptions, address: CatalogAddress) -> None:
    if session.as_json:
        print_json(msgspec.to_builtins(address))
        return
    lines = [
        f"catalog frazil at {address.uri}",
        f"warehouse {address.warehouse}",
        f"token in {os.path.join(options.run_directory, ADDRESS_FILE)}",
        "",
        "DuckDB:",
        "  CREATE SECRET frazil (TYPE iceberg, TOKEN '...');",
        f"  ATTACH '' AS lake (TYPE iceberg, ENDPOINT '{address.uri}', SECRET frazil);",
        "PyIceberg:",
        f'  RestCatalog("frazil", uri="{address.uri}", token=...)',
        "Spark:",
        f"  spark.sql.catalog.frazil.type=rest  spark.sql.catalog.frazil.uri={address.uri}",
        "",
        "Ctrl-C ends it.",
    ]
    typer.echo("\n".join(lines))
