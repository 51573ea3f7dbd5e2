"""`frazil serve`: the broker, for clients of the Danube protocol."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from frazil.cli.failures import quiet_stdout
from frazil.cli.output import note, to_json, write_out
from frazil.cli.serve_lake import tell_lake
from frazil.cli.serve_text import greeting
from frazil.cli.session import Session, session_of
from frazil.config import Settings, load_settings, parse_assignments
from frazil.errors import InvalidRequest
from frazil.lake import lake_missing
from frazil.telemetry import configure, warn

if TYPE_CHECKING:
    from frazil.serve.broker import Broker

__all__ = ["serve"]

PACKAGES: Final = ("google", "hpack", "jwt", "starlette", "uvicorn")
"""What the extra `serve` brings, by the names under which it is imported."""


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

    With --output json one line of JSON says where, as soon as clients are served.
    """
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise InvalidRequest(
            'the broker needs more packages, pip install "frazil[serve]"',
            missing=", ".join(missing),
        )
    from frazil.serve.process import run_broker

    session = session_of(context)
    given = {
        "serve.host": host,
        "serve.admin_host": host,
        "serve.port": port,
        "serve.admin_port": admin_port,
        "serve.http_port": http_port,
        "serve.insecure": insecure or None,
    }
    settings = _settings(session, {key: value for key, value in given.items() if value is not None})
    telemetry = settings.telemetry
    configure(sys.stderr, log_level=telemetry.log_level, log_format=telemetry.log_format)
    watching: list[asyncio.Task[None]] = []

    def on_ready(broker: Broker) -> None:
        try:
            _tell(session, broker)
        except OSError as error:
            # Clients are served already, and records acked: nobody's text is worth their end.
            quiet_stdout()
            warn("greeting_not_written", error=error.strerror)
        if not session.as_json:
            # The loop itself keeps no reference to a task that waits.
            watching.append(asyncio.get_running_loop().create_task(tell_lake(broker.engine)))

    run_broker(settings, on_ready)


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
    root, pid = broker.engine.paths.root, os.getpid()
    found = broker.addresses.facts()
    if session.as_json:
        write_out(to_json({"event": "ready", "pid": pid, "data_dir": root, **found}) + "\n")
    else:
        write_out(greeting(broker.settings, root=root, pid=pid, addresses=found))
