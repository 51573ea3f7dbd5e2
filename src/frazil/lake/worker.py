"""The lake worker: the process that runs Spark for one engine.

The worker is stateless. The engine plans, persists and releases; the worker commits the plan it
gets. After a crash the next worker looks at the table and repeats the unfinished work. The main
thread reads the socket and answers at once; jobs run in separate threads. The worker and its JVM
end when the socket closes.

    python -m frazil.lake.worker --socket DESCRIPTOR --epoch N
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import threading
from typing import TYPE_CHECKING, Final

import msgspec

from frazil.clock import SystemClock
from frazil.errors import Closed, CorruptionError, FrazilError, InvalidRequest, Unavailable
from frazil.fs import RealFileSystem
from frazil.lake.wire import Answer, Request, receive, send
from frazil.lake.worker_client import step_back
from frazil.lake.worker_jobs import Failpoints, Jobs, WorkerConfig
from frazil.lake.worker_spark import Spark, keep_log
from frazil.struct_types import learnt
from frazil.telemetry import LOGGER, event, warn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frazil.fs import FileSystem

__all__ = ["Worker", "main"]

STOP_SECONDS: Final = 60.0
"""The time limit for a running commit when the worker has to end."""
WATCH_SECONDS: Final = 0.5
EXIT_LOST: Final = 3
"""The exit code when Spark's JVM died."""
EXIT_ENGINE_GONE: Final = 4


class Worker:
    """One worker with one connection.

    Args:
        connection: the engine's socket.
        epoch: the number that the engine gave this worker.
    """

    def __init__(
        self,
        connection: socket.socket,
        *,
        epoch: int,
        file_system: FileSystem,
    ) -> None:
        self._connection = connection
        self._epoch = epoch
        self._file_system = file_system
        self._halt = Failpoints(os.environ, self._file_system)
        self._sending = threading.Lock()
        self._stopping = threading.Event()
        self._spark: Spark | None = None
        self.starting = False
        """Whether Spark is being started."""
        self._ending = False
        self._jobs = Jobs(self.answer, self._halt, SystemClock())

    # -- the socket --

    def answer(self, answer: Answer) -> None:
        """Send a message to the engine; any thread may call.

        Raises:
            Closed: if the engine has closed the socket.
        """
        with self._sending:
            send(self._connection, answer)

    def run(self) -> int:
        """Serve until the engine ends or stops the worker; return the exit code."""
        threading.Thread(target=self._watch, name="frazil-lake-watch", daemon=True).start()
        try:
            while not self._stopping.is_set():
                request = receive(self._connection)
                if isinstance(request, Request):
                    self._serve(request)
        except Closed:
            if not self._stopping.is_set():
                event("lake_engine_gone", epoch=self._epoch)
                return EXIT_ENGINE_GONE
        except CorruptionError as error:
            warn("lake_message_unreadable", error=error)
            return EXIT_ENGINE_GONE
        self._drain()
        return 0

    def stop(self) -> None:
        """End soon: no new job is taken, the running ones get their time."""
        self._stopping.set()
        # The reading thread wakes up; outstanding answers can still be sent.
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RD)

    def end(self) -> None:
        """End Spark in any state."""
        self._ending = True
        if self._spark is not None:
            self._spark.end()

    def _drain(self) -> None:
        event("lake_worker_stopping", jobs=len(self._jobs.running()))
        if not self._jobs.drain(STOP_SECONDS):
            # Nothing is lost: the next worker looks at the table before it commits.
            warn("lake_commit_abandoned", jobs=len(self._jobs.running()))

    # -- requests --

    def _serve(self, request: Request) -> None:
        if request.op == "ping":
            facts = {"jobs": self._jobs.running(), "ready": self._jobs.ready}
            self.answer(Answer(request.id, "done", facts))
        elif request.op == "hello":
            # In a thread, so that pings are answered during the start.
            threading.Thread(
                target=self._start, args=(request,), name="frazil-lake-start", daemon=True
            ).start()
        else:
            self._jobs.take(request)

    def _start(self, request: Request) -> None:
        """Start Spark and report it."""
        try:
            try:
                spark = self._launched(request)
            except FrazilError as error:
                warn("lake_worker_failed", error=error)
                self.answer(Answer(request.id, "failed", error=error.code, message=str(error)))
                return
            except Exception:
                LOGGER.exception("lake_worker_broke", extra={"facts": {"epoch": self._epoch}})
                broken = Unavailable("Spark does not start, logs/lake.log has the trace")
                self.answer(Answer(request.id, "failed", error=broken.code, message=str(broken)))
                raise
            self._jobs.open(spark)
            facts = {"pid": os.getpid(), "java_pid": spark.pid, "versions": spark.versions()}
            self.answer(Answer(request.id, "done", facts))
            event("lake_worker_ready", epoch=self._epoch, pid=os.getpid(), java=spark.pid)
        except Closed:
            # The thread that reads notices too, and ends the process.
            event("lake_engine_gone", epoch=self._epoch)

    def _launched(self, request: Request) -> Spark:
        try:
            config = msgspec.convert(request.body, learnt(WorkerConfig))
        except msgspec.MsgspecError as error:
            raise InvalidRequest("hello cannot be read", reason=error) from error
        keep_log(config.data_dir, self._file_system)
        self.starting = True
        try:
            self._spark = Spark.start(
                config,
                epoch=self._epoch,
                file_system=self._file_system,
                report=lambda step: self.answer(Answer(request.id, "progress", {"step": step})),
            )
        finally:
            # Only now: in between the JVM would have no handle, and could not be ended.
            self.starting = False
        return self._spark

    def _watch(self) -> None:
        """End the process when its JVM has died: nothing can be done without it."""
        pause = threading.Event()
        while not self._ending:
            pause.wait(WATCH_SECONDS)
            # The JVM of an ending worker stops too; its scratch files have yet to be removed.
            if self._spark is not None and not self._spark.alive() and not self._ending:
                warn("lake_spark_died", epoch=self._epoch)
                os._exit(EXIT_LOST)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a worker until its engine ends."""
    parser = argparse.ArgumentParser(prog="frazil.lake.worker", description=__doc__)
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--epoch", type=int, required=True)
    given = parser.parse_args(arguments)
    step_back()
    file_system = RealFileSystem()
    # The JVM must not inherit it: the engine takes the end of the socket for the worker's end.
    os.set_inheritable(given.socket, False)
    worker = Worker(socket.socket(fileno=given.socket), epoch=given.epoch, file_system=file_system)
    signal.signal(signal.SIGTERM, lambda _number, _frame: worker.stop())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    code = worker.run()
    if worker.starting:
        # The JVM is starting and has no handle yet, so the whole process group is killed.
        os.killpg(os.getpgid(0), signal.SIGKILL)
    worker.end()
    # Threads may be blocked in calls to an ended JVM.
    os._exit(code)


if __name__ == "__main__":
    main()
