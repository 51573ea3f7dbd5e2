"""The event loop of an engine's subscriptions: in a separate thread, or the broker's.

The first subscription starts the thread. A broker that serves the engine sets its `Deliveries`
here, so that its clients and its program share one set of subscriptions.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from frazil.errors import Closed, FrazilError, InvalidRequest
from frazil.subscribe.deliveries import Deliveries
from frazil.subscribe.settings import SubscriptionSettings
from frazil.telemetry import warn

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from frazil.topic import Instance

__all__ = ["Subscribing"]

T = TypeVar("T")
_TASKS: Final[set[asyncio.Task[Any]]] = set()
"""References to running calls, as the loop keeps none."""


class Subscribing:
    """The way from any thread to the loop of an engine's subscriptions. Safe for threads."""

    def __init__(self, engine: Instance) -> None:
        self._engine = engine
        self._settings: SubscriptionSettings | None = None
        self._deliveries: Deliveries | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._loop_thread = 0
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()
        # Held to submit work to the loop, and to stop it: work after the stop would get no answer.
        # One thread may acquire it twice: a garbage collection may end a dropped stream.
        self._giving = threading.RLock()
        self._is_stopped = False

    # -- which loop ------------------------------------------------------------------------------

    def share(
        self,
        deliveries: Deliveries,
        settings: SubscriptionSettings,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Use the running subscriptions of a broker. Call it in the loop's thread.

        `settings` are loaded. The caller closes both before the engine. They replace another
        broker's.

        Raises:
            InvalidRequest: if the program has already subscribed, in a separate thread.
        """
        with self._starting:
            if self._thread is not None:
                raise InvalidRequest("the engine's subscriptions are already running")
            self._settings = settings
            self._deliveries = deliveries
            self._loop = loop
            self._loop_thread = threading.get_ident()

    def start(self) -> Deliveries:
        """Return the running subscriptions; the first call starts them and waits for the journal.

        Raises:
            Closed: if the engine is closed.
        """
        if self._deliveries is None:
            with self._starting:
                if self._deliveries is None:
                    self._start()
        assert self._deliveries is not None
        return self._deliveries

    @property
    def settings(self) -> SubscriptionSettings:
        """Return the settings of subscriptions; the first call waits for the journal.

        Raises:
            Closed: if the engine is closed.
        """
        if self._settings is None:
            with self._starting:
                return self._loaded()
        return self._settings

    @property
    def is_running(self) -> bool:
        """Whether subscriptions are running."""
        return self._deliveries is not None and not self._is_stopped

    def _loaded(self) -> SubscriptionSettings:
        if self._settings is None:
            self._check()
            settings = SubscriptionSettings(self._engine)
            settings.load()
            self._settings = settings
        return self._settings

    def _start(self) -> None:
        self._check()
        settings = self._loaded()
        loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=_run, args=(loop,), name="frazil-subscriptions", daemon=True
        )
        self._thread.start()
        self._loop = loop
        self._loop_thread = self._thread.ident or 0
        engine = self._engine
        self._deliveries = Deliveries(engine, settings, loop=loop, broker="embedded")

    # -- to the loop -----------------------------------------------------------------------------

    def give(self, work: Callable[..., Any], *arguments: Any) -> None:
        """Have the loop call something, soon and in the order of these calls.

        Raises:
            Closed: if the engine is closed; it is not called then.
        """
        with self._giving:
            self._check()
            assert self._loop is not None
            try:
                self._loop.call_soon_threadsafe(work, *arguments)
            except RuntimeError as error:
                raise Closed("the engine is closed") from error

    def submit(self, make: Callable[[Deliveries], Coroutine[Any, Any, T]]) -> Future[T]:
        """Run a coroutine in the loop; the future has its result.

        Raises:
            Closed: if the engine is closed.
        """
        done: Future[T] = Future()
        # The future cannot be cancelled: the coroutine runs to its end.
        done.set_running_or_notify_cancel()
        self.give(_spawn, make, self.start(), done)
        return done

    def call(self, make: Callable[[Deliveries], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine in the loop and wait for its result.

        Raises:
            Closed: if the engine is closed.
            InvalidRequest: if it is called in the loop's thread, which would wait for itself.
            FrazilError: the coroutine's error.
        """
        self.start()
        if threading.get_ident() == self._loop_thread:
            raise InvalidRequest("this call waits, so it cannot be made in the broker's event loop")
        return self.submit(make).result()

    def _check(self) -> None:
        if self._is_stopped or self._engine.closed:
            raise Closed("the engine is closed")

    # -- all subscriptions -----------------------------------------------------------------------

    def forget_topic(self, names: list[str], uid: str) -> None:
        """End the subscriptions of a deleted topic, and delete their settings."""
        deliveries, settings = self._deliveries, self._settings
        if deliveries is not None:
            with contextlib.suppress(Closed):
                for name in names:
                    self.give(deliveries.forget_topic, name)
        if settings is not None:
            try:
                settings.forget_topic(uid)
            except FrazilError as error:
                # The next opening finds that they are of no topic.
                warn("subscription_settings_left", topic_uid=uid, error=error)

    def stop(self) -> None:
        """Make running acks durable, end all streams, and end the thread; repeatable.

        The broker closes its own subscriptions.
        """
        with self._starting:
            with self._giving:
                if self._is_stopped:
                    return
                self._is_stopped = True
            thread, loop, deliveries = self._thread, self._loop, self._deliveries
            if thread is None or loop is None or deliveries is None:
                return
            # Runs after all calls submitted before.
            closed = asyncio.run_coroutine_threadsafe(_wind_up(deliveries), loop)
            try:
                closed.result()
            finally:
                loop.call_soon_threadsafe(loop.stop)
                thread.join()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """Run the loop until it is stopped: the top of the thread."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def _spawn(
    make: Callable[[Deliveries], Coroutine[Any, Any, Any]],
    deliveries: Deliveries,
    done: Future[Any],
) -> None:
    task = asyncio.get_running_loop().create_task(make(deliveries))
    _TASKS.add(task)
    task.add_done_callback(_TASKS.discard)
    task.add_done_callback(partial(_tell, done))


def _tell(done: Future[Any], ended: asyncio.Task[Any]) -> None:
    error = Closed("the engine is closed") if ended.cancelled() else ended.exception()
    if error is None:
        done.set_result(ended.result())
    else:
        done.set_exception(error)


async def _wind_up(deliveries: Deliveries) -> None:
    """End all subscriptions and answer the running calls."""
    await deliveries.close()
    calls = asyncio.all_tasks() - {asyncio.current_task()}
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    # A subscription that was being opened may have been added since the first close.
    await deliveries.close()
