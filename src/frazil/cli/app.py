"""`frazil`: the root command with its global options, and all commands under it."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from frazil import __version__
from frazil.cli import (
    catalog,
    config,
    doctor,
    get,
    lake,
    log,
    objects,
    publish,
    read,
    rejects,
    restore,
    serve,
    sql,
    subscription,
    tier,
    top,
    topic,
    verify,
)
from frazil.cli.failures import EXIT_BROKEN_PIPE, RootGroup, quiet_stdout, report
from frazil.cli.session import Output, Session

__all__ = ["app", "main"]

app = typer.Typer(
    cls=RootGroup,
    help="Frazil: a durable streaming log with Iceberg tables at its end.",
    epilog="The options above may appear anywhere on the line.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
app.add_typer(topic.app, name="topic")
app.command("publish")(publish.publish)
app.command("read")(read.read)
app.command("get", context_settings={"ignore_unknown_options": True})(get.get)
app.command("sql")(sql.sql)
app.command("top")(top.top)
app.add_typer(subscription.app, name="subscription")
app.add_typer(tier.app, name="tier")
app.add_typer(objects.app, name="objects")
app.command("backup")(objects.backup)
app.command("restore")(restore.restore)
app.add_typer(lake.lake_app, name="lake")
app.command("verify")(verify.verify)
app.add_typer(rejects.app, name="rejects")
app.add_typer(catalog.app, name="catalog")
app.add_typer(log.app, name="log")
app.command("doctor")(doctor.doctor)
app.add_typer(config.app, name="config")
app.command("serve")(serve.serve)


def _version(wanted: bool) -> None:  # noqa: FBT001 - typer calls it with the flag's value
    if wanted:
        typer.echo(f"frazil {__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    data: Annotated[
        str | None, typer.Option("--data", "-d", help="The data directory; ./data without it.")
    ] = None,
    config_file: Annotated[
        str | None, typer.Option("--config", "-c", help="YAML file; FRAZIL_CONFIG without it.")
    ] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="A setting as key=value; may be repeated.")
    ] = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to print.")] = "table",
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks of errors.")] = False,  # noqa: FBT002 - a flag
    version: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Take the options that all commands share."""
    del debug, version
    given = tuple(assignments or ())
    context.obj = Session(data=data, config=config_file, assignments=given, output=output)


def main() -> None:
    """Run the command line: the console script `frazil`."""
    try:
        app()
    except Exception as error:  # noqa: BLE001 - the top of the process
        report(error, debug="--debug" in sys.argv)
        sys.exit(1)
    finally:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            quiet_stdout()
            sys.exit(EXIT_BROKEN_PIPE)
