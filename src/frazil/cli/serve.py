"""`frazil serve`: the broker, for clients of the Danube protocol."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from frazil.cli.output import note, to_json, write_out
from frazil.cli.session import Session, session_of
from frazil.config import Settings, load_settings
from frazil.config_sources import parse_assignments
from frazil.engine.lake_calls import lake_missing
from frazil.telemetry import configure

if TYPE_CHECKING:
    from frazil.serve.broker import Broker

__all__ = ["serve"]


def serve(
    context: typer.Context,
    host: Annotated[
        str | None, typer.Option("--host", help="Listen on this address; 127.0.0.1 without it.")
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", help="Clients connect here; 0 is any free port.")
    ] = None,
    admin_port: Annotated[
        int | None, typer.Option("--admin-port", help="Administration; 0 is any free port.")
    ] = None,
    http_port: Annotated[
        int | None, typer.Option("--http-port", help="Health and metrics; 0 is any free port.")
    ] = None,
    insecure: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--insecure", help="Other machines may connect without TLS and tokens.")
    ] = False,
) -> None:
    """Serve the data directory to clients until Ctrl-C or SIGTERM.

    With --output json one line of JSON says where, when clients can connect.
    """
    from frazil.serve.process import run_broker

    session = session_of(context)
    given = {
        "serve.host": host,
        "serve.admin_host": host,
        "serve.http_host": host,
        "serve.port": port,
        "serve.admin_port": admin_port,
        "serve.http_port": http_port,
        "serve.insecure": insecure or None,
    }
    settings = _settings(session, {key: value for key, value in given.items() if value is not None})
    telemetry = settings.telemetry
    configure(sys.stderr, log_level=telemetry.log_level, log_format=telemetry.log_format)
    run_broker(settings, lambda broker: _tell(session, broker))


def _settings(session: Session, flags: dict[str, object]) -> Settings:
    """Load the settings; unless somebody says otherwise, topics become tables where they can."""
    overrides = {**parse_assignments(session.assignments), **flags}
    if session.data is not None:
        overrides["data_dir"] = session.data
    settings = load_settings(file=session.config, overrides=overrides)
    is_open = settings.origins["lake.default"] == "default" and settings.memory.enabled
    if is_open and not lake_missing():
        overrides["lake.default"] = True
        settings = load_settings(file=session.config, overrides=overrides)
    return settings


def _tell(session: Session, broker: Broker) -> None:
    for warning in broker.warnings:
        note(f"warning: {warning}")
    facts = {"event": "ready", "pid": os.getpid(), "data_dir": broker.engine.paths.root}
    if session.as_json:
        write_out(to_json({**facts, **broker.addresses.facts()}) + "\n")
        return
    write_out(_text(broker))


def _text(broker: Broker) -> str:
    found = broker.addresses.facts()
    return (
        f"serving {broker.engine.paths.root}, pid {os.getpid()}; stop it with Ctrl-C\n"
        f"  clients  {found['url']}\n"
        f"  admin    {found['admin_url']}\n"
        f"  health   {found['http_url']}/readyz, metrics {found['http_url']}/metrics\n"
    )
