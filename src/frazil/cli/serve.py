"""`frazil serve`: the broker, for clients of the Danube protocol."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shlex
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from frazil.cli.failures import quiet_stdout
from frazil.cli.output import note, to_json, write_out
from frazil.cli.session import Session, log_to_stderr, session_of
from frazil.errors import InvalidRequest
from frazil.lake import lake_missing
from frazil.telemetry import warn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from frazil.config import Settings
    from frazil.engine import Engine
    from frazil.lake import Lake
    from frazil.serve.broker import Broker

__all__ = ["greeting", "lake_news", "serve"]

PACKAGES: Final = ("google", "hpack", "jwt", "starlette", "uvicorn")
"""The packages of the extra `serve`, by import name."""
LOOK_S: Final = 1.0
TABLES_SHOWN_MAX: Final = 20
_CLIENT: Final = """\
import asyncio
from danube import DanubeClientBuilder, DispatchStrategy, SubType

async def main():
    client = await DanubeClientBuilder().service_url("{url}").build()
    reliable = DispatchStrategy.RELIABLE
    producer = client.new_producer().with_topic("/default/hello").with_name("shell")
    producer = producer.with_dispatch_strategy(reliable).build()
    await producer.create()
    consumer = client.new_consumer().with_topic("/default/hello").with_consumer_name("shell")
    consumer = consumer.with_subscription("shell").with_subscription_type(SubType.EXCLUSIVE).build()
    await consumer.subscribe()
    queue = await consumer.receive()
    await producer.send(b"hello from a client")
    message = await asyncio.wait_for(queue.get(), 30)
    await consumer.ack(message)
    print(message.msg_id.topic_offset, message.payload)
    await consumer.close()
    await producer.close()

asyncio.run(main())
"""


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
    log_to_stderr(settings)
    watching: list[asyncio.Task[None]] = []

    def on_ready(broker: Broker) -> None:
        try:
            _print_ready(session, broker)
        except OSError as error:
            # Clients are served and records acked already: a lost greeting must not end that.
            quiet_stdout()
            warn("greeting_not_written", error=error.strerror)
        if not session.as_json:
            # The loop keeps no reference to a waiting task.
            watching.append(asyncio.get_running_loop().create_task(_print_lake_news(broker.engine)))

    run_broker(settings, on_ready)


def _settings(session: Session, flags: dict[str, object]) -> Settings:
    """Load the settings; without `lake.default`, topics become tables where Spark can run."""
    settings = session.settings(**flags)
    is_open = settings.origins["lake.default"] == "default" and settings.memory.enabled
    if is_open and not lake_missing():
        return session.settings(**flags, **{"lake.default": True})
    return settings


def _print_ready(session: Session, broker: Broker) -> None:
    for warning in broker.warnings:
        note(f"warning: {warning}")
    root, pid = broker.engine.paths.root, os.getpid()
    found = broker.addresses.facts()
    if session.as_json:
        write_out(to_json({"event": "ready", "pid": pid, "data_dir": root, **found}) + "\n")
    else:
        write_out(greeting(broker.settings, root=root, pid=pid, addresses=found))


def greeting(settings: Settings, *, root: str, pid: int, addresses: Mapping[str, str]) -> str:
    """Return the broker's start message; its commands can be pasted into a shell."""
    lines = [
        f"serving {root}, pid {pid}; stop it with Ctrl-C",
        f"  clients   {addresses['url']}",
        f"  admin     {addresses['admin_url']}",
        f"  health    {addresses['http_url']}/readyz",
        f"  metrics   {addresses['http_url']}/metrics",
        f"  lake      {_lake(settings)}",
        "",
        "watch it, in another shell:",
        f"  {_command()} top --data {shlex.quote(root)}",
        f"  curl {'--insecure ' if settings.serve.tls else ''}{addresses['http_url']}/readyz",
        "",
    ]
    needs = ["TLS"] * settings.serve.tls + ["a token or key"] * settings.auth.enabled
    if needs:
        lines.append(f"clients need {' and '.join(needs)}; docs/security.md says how")
    else:
        lines += ["publish and receive:", *_client(addresses["url"])]
    return "\n".join(lines) + "\n"


def _client(url: str) -> list[str]:
    python = shlex.quote(sys.executable)
    install = f"{python} -m pip install --quiet danube-client"
    return [
        *([install] if importlib.util.find_spec("danube") is None else []),
        f"{python} - <<'END'",
        _CLIENT.format(url=url) + "END",
    ]


def _command() -> str:
    """Return how `frazil` is called: it may not be on the PATH."""
    script = os.path.join(os.path.dirname(sys.executable), "frazil")
    if os.path.exists(script):
        return shlex.quote(script)
    return f"{shlex.quote(sys.executable)} -m frazil.cli"


def _lake(settings: Settings) -> str:
    if not settings.lake.default:
        return "off for new topics (lake.default)"
    seconds = settings.lake.writer.flush_interval
    return f"new topics become Iceberg tables, a commit every {seconds:g} s; Spark starts with one"


def lake_news(engine: Engine, said: set[str]) -> list[str]:
    """Return news of tables: Spark's start, and each table's first rows."""
    lake = engine.lake
    topics = [each for each in list(lake.topics.values()) if not each.keyed]
    lines = {_state(lake): _state(lake)} if topics else {}
    for topic in topics:
        rows = topic.counts["rows"]
        count = "row" if rows == 1 else f"{rows:,} rows"
        if rows and len(said) < TABLES_SHOWN_MAX:
            lines[topic.name] = f"{topic.name} has its first {count} in {topic.table}"
    fresh = [f"lake: {line}" for key, line in lines.items() if key not in said]
    said.update(lines)
    return fresh


def _state(lake: Lake) -> str:
    if lake.worker.state == "ready":
        return f"running, Iceberg catalog at {lake.catalog.uri()}"
    return f"starting ({lake.worker.why})" if lake.worker.why else "starting"


async def _print_lake_news(engine: Engine) -> None:
    """Print news of tables until it is cancelled."""
    said: set[str] = set()
    while True:
        for line in lake_news(engine, said):
            write_out(line + "\n")
        await asyncio.sleep(LOOK_S)
