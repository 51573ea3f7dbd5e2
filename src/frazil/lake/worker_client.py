"""Supervise one lake worker: start it, send requests, detect a crash or hang, restart it.

The worker is stateless: after its loss the engine looks at the table and repeats the unfinished
work. One thread calls every method; a second one only reads the worker's messages into a queue.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import signal
import socket
import struct
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from frazil.errors import CODES, Closed, FrazilError, Unavailable
from frazil.lake.wire import Answer, Request, receive, send
from frazil.telemetry import event, warn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from frazil.clock import Clock
    from frazil.fs import FileSystem
    from frazil.log import DataDirectory

__all__ = [
    "NICENESS",
    "WORKER_COMMAND",
    "LakeWorker",
    "Launched",
    "WorkerProcess",
    "error_of",
    "launcher",
    "process_exists",
    "step_back",
]

RESTART_PAUSES_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""The pause before the next start, by the number of failed starts."""
STEADY_S: Final = 60.0
"""A worker that ran so long resets the pauses: the next starts after the first pause."""
START_TIMEOUT_S: Final = 600.0
"""A worker that is not ready after this time is replaced; the first start fetches jars."""
SILENT_S: Final = 60.0
"""A worker that is silent for so long is replaced. The fence makes a late worker harmless, so
patience costs nothing, and a starved machine answers late."""
PING_S: Final = 2.5
STOP_TIMEOUT_S: Final = 60.0
"""The time limit for a running commit when the engine is closed."""
REFUSALS_MIN: Final = 2
"""After so many consecutive refused starts, calls no longer wait for the next one."""
IDLE_STOP_S: Final = 10.0
SEND_TIMEOUT_S: Final = 5

State = Literal["off", "starting", "ready", "waiting"]

_BY_CODE: Final = {each.code: each for each in CODES}


def error_of(answer: Answer) -> FrazilError:
    """Convert a worker's failure to an error of the same class, with its sentence and facts."""
    facts: dict[str, Any] = {key: value for key, value in answer.body.items() if key != "message"}
    return _BY_CODE.get(answer.error, Unavailable)(answer.message or "the worker failed", **facts)


class WorkerProcess(subprocess.Popen[bytes]):
    """A child in a separate process group: signals of the terminal do not reach it."""

    def kill(self) -> None:
        """End the process and its children: Java must not outlive the worker."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(1.0)


class Launched(NamedTuple):
    """A worker that was just started, and the engine's end of the socket pair."""

    process: WorkerProcess
    connection: socket.socket


class _Talk:
    """One run of the worker process."""

    def __init__(self, epoch: int, launched: Launched, now: float) -> None:
        self.epoch = epoch
        self.process, self.connection = launched
        self.begun = now
        self.heard: float | None = None
        """The time of the last answer; None before the first one."""
        self.pinged = now
        self.ready = False
        self.waiting: dict[int, Callable[[Answer], None]] = {}
        self.facts: Mapping[str, Any] = {}
        self.step = ""
        self.ending = False
        """It is ending: it reads no more requests, and has a separate time limit."""


class LakeWorker:
    """The supervisor. Call `step` often; everything happens in it and in the callbacks it makes.

    Args:
        launch: starts a process for an epoch.
        hello: returns the body of `hello` for an epoch.
        next_epoch: returns a number that is higher than all before, durably.
        wake: called from another thread when there is something for `step`.
    """

    def __init__(
        self,
        launch: Callable[[int], Launched],
        *,
        hello: Callable[[int], Mapping[str, Any]],
        next_epoch: Callable[[], int],
        clock: Clock,
        wake: Callable[[], None],
    ) -> None:
        self.launch = launch
        self._hello = hello
        self._next_epoch = next_epoch
        self._clock = clock
        self._wake = wake
        self._box: queue.SimpleQueue[tuple[_Talk, Answer | Exception]] = queue.SimpleQueue()
        self._talk: _Talk | None = None
        self._ids = itertools.count(1)
        self._failures = 0
        self._retry_at = 0.0
        self.wanted = False
        self.starts = 0
        self.why = ""
        """The reason why no worker runs: the last one's end or a pause; empty while one works."""
        self.refused = ""
        """The reason why no worker can start, as the last ones reported it, e.g. a missing Java."""
        self._refusals = 0

    # -- state -------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """Return whether a worker can be given work."""
        if self._talk is not None:
            return "ready" if self._talk.ready else "starting"
        return "waiting" if self.wanted else "off"

    @property
    def epoch(self) -> int:
        """Return the number of the present worker, 0 if there is none."""
        return 0 if self._talk is None else self._talk.epoch

    def describe(self) -> dict[str, Any]:
        """Return facts for people, ready for JSON."""
        talk = self._talk
        return {
            "state": self.state,
            "pid": None if talk is None else talk.process.pid,
            "epoch": self.epoch,
            "starts": self.starts,
            "restarts": max(self.starts - 1, 0),
            "why": self.why,
            "step": self.step_name or None,
            **({} if talk is None else dict(talk.facts)),
        }

    @property
    def step_name(self) -> str:
        """Return the step of a starting worker, as it reported it; empty if none starts."""
        return "" if self._talk is None or self._talk.ready else self._talk.step

    # -- work --------------------------------------------------------------------------------------

    def request(self, op: str, body: Mapping[str, Any], answered: Callable[[Answer], None]) -> None:
        """Send a request; `answered` gets all answers, a `failed` one if the worker is lost.

        Raises:
            Closed: if there is no worker that is ready.
        """
        talk = self._talk
        if talk is None or not talk.ready:
            raise Closed("there is no lake worker at the moment", why=self.why)
        self._send(talk, op, body, answered)

    def _send(
        self,
        talk: _Talk,
        op: str,
        body: Mapping[str, Any],
        answered: Callable[[Answer], None] | None = None,
    ) -> None:
        request = Request(next(self._ids), op, dict(body))
        if answered is not None:
            talk.waiting[request.id] = answered
        try:
            send(talk.connection, request)
        except Closed as error:
            self._lost(talk, str(error))

    def step(self) -> None:
        """Process the received answers, and start, ping or replace the worker when due."""
        while True:
            try:
                talk, found = self._box.get_nowait()
            except queue.Empty:
                break
            if talk is self._talk:
                self._take(talk, found)
        now = self._clock.monotonic()
        if self._talk is not None:
            self._watch(self._talk, now)
        elif self.wanted and now >= self._retry_at:
            self._start(now)

    def _take(self, talk: _Talk, found: Answer | Exception) -> None:
        if isinstance(found, Exception):
            self._lost(talk, str(found))
            return
        talk.heard = self._clock.monotonic()
        answered = talk.waiting.get(found.id)
        if found.state != "progress":
            talk.waiting.pop(found.id, None)
        if answered is not None:
            answered(found)

    def _greeted(self, talk: _Talk, answer: Answer) -> None:
        if answer.state == "progress":
            talk.step = str(answer.body.get("step", ""))
            return
        if answer.state == "failed":
            if talk is self._talk:
                why = answer.message or "the worker could not start"
                self._refusals += 1
                self.refused = why if self._refusals >= REFUSALS_MIN else ""
                self._lost(talk, why)
            return
        talk.ready = True
        self.refused = ""
        self._refusals = 0
        talk.facts = {k: v for k, v in answer.body.items() if k not in {"state", "epoch", "why"}}
        self.why = ""
        event("lake_worker_ready", pid=talk.process.pid, epoch=talk.epoch)

    def replace(self, why: str) -> None:
        """Replace the worker."""
        if self._talk is not None:
            self._lost(self._talk, why)
            self._retry_at = 0.0

    def try_again(self) -> None:
        """Start soon although starts were refused: the cause may have been removed."""
        if self.refused:
            self.refused = ""
            self._refusals = self._failures = 0
            self._retry_at = 0.0

    # -- watching ----------------------------------------------------------------------------------

    def _start(self, now: float) -> None:
        try:
            epoch = self._next_epoch()
            body = self._hello(epoch)
            launched = self.launch(epoch)
        except (FrazilError, OSError) as error:
            self._pause(now, f"the worker cannot be started: {error}")
            return
        self.starts += 1
        talk = self._talk = _Talk(epoch, launched, now)
        event("lake_worker_started", pid=talk.process.pid, epoch=epoch)
        timeout = struct.pack("ll", SEND_TIMEOUT_S, 0)
        talk.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
        threading.Thread(
            target=self._listen, args=(talk,), name="frazil-lake-in", daemon=True
        ).start()
        self._send(talk, "hello", body, lambda answer: self._greeted(talk, answer))

    def _listen(self, talk: _Talk) -> None:
        """Queue every answer of the worker for `step`; it runs in a separate thread."""
        try:
            while True:
                found = receive(talk.connection)
                if isinstance(found, Answer):
                    self._put(talk, found)
        except (FrazilError, OSError) as error:
            self._put(talk, error)

    def _put(self, talk: _Talk, found: Answer | Exception) -> None:
        self._box.put((talk, found))
        self._wake()

    def _watch(self, talk: _Talk, now: float) -> None:
        code = talk.process.poll()
        if code is not None:
            self._lost(talk, f"the worker ended with code {code}")
            return
        if talk.ending:
            return
        if not talk.ready and now - talk.begun > START_TIMEOUT_S:
            self._lost(talk, f"the worker was not ready in {START_TIMEOUT_S:g} s")
            return
        if talk.heard is None:
            # Python is being started, which takes long on a starved machine.
            return
        if now - talk.heard > SILENT_S:
            self._lost(talk, f"the worker said nothing for {SILENT_S:g} s")
        elif now - talk.pinged > PING_S:
            talk.pinged = now
            self._send(talk, "ping", {})

    def _lost(self, talk: _Talk, why: str) -> None:
        """Abandon a worker: end it, and answer all requests with an unknown outcome."""
        if talk is not self._talk:
            return
        self._talk = None
        now = self._clock.monotonic()
        if talk.ready and now - talk.begun > STEADY_S:
            self._failures = 0
        if self.wanted:
            # The same again and again is no news.
            say = warn if why != self.why else event
            say("lake_worker_lost", pid=talk.process.pid, epoch=talk.epoch, why=why)
        self._end(talk)
        self._pause(now, why)
        self._fail_all(talk, why)

    def _end(self, talk: _Talk) -> None:
        if talk.process.poll() is None:
            talk.process.kill()
        # Wakes the thread that listens.
        with contextlib.suppress(OSError):
            talk.connection.shutdown(socket.SHUT_RDWR)
        talk.connection.close()

    def _fail_all(self, talk: _Talk, why: str) -> None:
        waiting, talk.waiting = talk.waiting, {}
        for number, answered in waiting.items():
            answered(Answer(number, "failed", {}, "commit_unknown", why))

    def _pause(self, now: float, why: str) -> None:
        self.why = why
        self._retry_at = now + RESTART_PAUSES_S[min(self._failures, len(RESTART_PAUSES_S) - 1)]
        self._failures += 1

    # -- the end -----------------------------------------------------------------------------------

    def stop(self, pause: Callable[[float], object]) -> None:
        """End the worker; a running commit gets time to finish, and its answer is applied.

        `pause` waits so many seconds, or less when there is something new.
        """
        self.wanted = False
        talk = self._talk
        if talk is None:
            return
        wait_s = STOP_TIMEOUT_S if talk.waiting else IDLE_STOP_S
        # A worker that is not ready has no work to finish.
        deadline = self._clock.monotonic() + (wait_s if talk.ready else 0.0)
        if talk.ready:
            talk.ending = True
            talk.process.terminate()
        while self._talk is talk and self._clock.monotonic() < deadline:
            self.step()
            pause(0.05)
        if self._talk is talk:
            self._talk = None
            self._end(talk)
            self._fail_all(talk, "the lake was stopped")
        self.why = ""


LOG: Final = "lake-output.log"
LOG_BYTES_MAX: Final = 16 << 20
"""A larger log is renamed when the next worker starts; one old log is kept."""
WORKER_COMMAND: Final = ("-m", "frazil.lake.worker")


def launcher(paths: DataDirectory, file_system: FileSystem) -> Callable[[int], Launched]:
    """Return the function that starts a worker of this data directory."""

    def launch(epoch: int) -> Launched:
        for directory in (paths.run, paths.logs):
            file_system.make_directory(directory)
        ours, theirs = socket.socketpair()
        try:
            arguments = [*WORKER_COMMAND, "--epoch", str(epoch), "--socket", str(theirs.fileno())]
            process = _spawn(paths, file_system, arguments, theirs.fileno())
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        return Launched(process, ours)

    return launch


def _spawn(
    paths: DataDirectory, file_system: FileSystem, command: Sequence[str], descriptor: int
) -> WorkerProcess:
    log = f"{paths.logs}/{LOG}"
    found = file_system.stat(log)
    if found is not None and found.size > LOG_BYTES_MAX:
        file_system.rename(log, f"{log}.1")
    module_path = os.pathsep.join(os.path.abspath(each) for each in sys.path if each)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return WorkerProcess(
            [sys.executable, *command],
            cwd=paths.run,
            env={**os.environ, "PYTHONPATH": module_path},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(descriptor,),
            process_group=0,
        )
    finally:
        os.close(output)


def process_exists(pid: int) -> bool:
    """Return whether a process of this number runs, of any user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


NICENESS: Final = 10


def step_back() -> None:
    """Lower the priority of this process and its children; they can still use all idle cores.

    They stay in the engine's session: Linux may share cores between sessions first, and only then
    by priority between the processes of one.
    """
    os.nice(NICENESS)
