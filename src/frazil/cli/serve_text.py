"""What `frazil serve` says when it is ready: where it is, and lines that can be pasted."""

from __future__ import annotations

import importlib.util
import os.path
import shlex
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from frazil.config import Settings

__all__ = ["greeting"]

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


def greeting(settings: Settings, *, root: str, pid: int, addresses: Mapping[str, str]) -> str:
    """Return the text; what it tells to paste works as it is, beside the broker."""
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
    needs = _needs(settings)
    if needs:
        lines.append(f"clients need {' and '.join(needs)}; docs/security.md says how")
    else:
        lines += ["publish and receive:", *_client(addresses["url"])]
    return "\n".join(lines) + "\n"


def _client(url: str) -> list[str]:
    python = shlex.quote(_near(sys.executable))
    install = f"{python} -m pip install --quiet danube-client"
    return [
        *([install] if importlib.util.find_spec("danube") is None else []),
        f"{python} - <<'END'",
        _CLIENT.format(url=url) + "END",
    ]


def _command() -> str:
    """Return how `frazil` is called: it may not be on the PATH."""
    beside = os.path.join(os.path.dirname(sys.executable), "frazil")
    if os.path.exists(beside):
        return shlex.quote(_near(beside))
    return f"{shlex.quote(_near(sys.executable))} -m frazil.cli"


def _near(path: str) -> str:
    """Return a path as it is written from here, if that is shorter."""
    relative = os.path.relpath(path)
    return relative if not relative.startswith("..") else path


def _lake(settings: Settings) -> str:
    if not settings.lake.default:
        return "off for new topics (lake.default)"
    seconds = settings.lake.writer.flush_interval
    return f"new topics become Iceberg tables, a commit every {seconds:g} s; Spark starts with one"


def _needs(settings: Settings) -> list[str]:
    found = []
    if settings.serve.tls:
        found.append("TLS")
    if settings.auth.enabled:
        found.append("a token or key")
    return found
