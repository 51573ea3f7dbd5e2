"""The process of a broker: its event loop, and what signals do to it.

SIGTERM and SIGINT stop it in good order, a second one at once; that is safe, too. SIGHUP has it read
keys, roles, secrets and certificate again.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from frazil.errors import InvalidRequest
from frazil.serve.broker import Broker
from frazil.serve.grpc.server import fastest_loop

if TYPE_CHECKING:
    from frazil.config import Settings

__all__ = ["run_broker"]


def run_broker(settings: Settings, on_ready: Callable[[Broker], None]) -> None:
    """Serve until a signal ends it. `on_ready` is called when clients can connect.

    Raises:
        Conflict: if another process has the directory, with its pid.
        InvalidRequest: if a file that settings name cannot be used.
        Unavailable: if an address cannot be listened on, or the last sync failed.
    """
    if sys.flags.optimize:
        raise InvalidRequest("the broker does not run without its assertions, leave out python -O")
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        runner.run(_serve(settings, on_ready))


async def _serve(settings: Settings, on_ready: Callable[[Broker], None]) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def end(number: int) -> None:
        # The next one of its kind does what the system does with it: the process is gone.
        loop.remove_signal_handler(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end, number)
    broker = Broker(settings)
    await broker.start()
    loop.add_signal_handler(signal.SIGHUP, broker.reload)
    on_ready(broker)
    await stop.wait()
    await broker.stop()
