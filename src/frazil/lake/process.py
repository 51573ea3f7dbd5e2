"""The lake worker as a process: its socket and what it prints lie in the data directory."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Final

from frazil.errors import Closed, InvalidRequest, Unavailable
from frazil.lake.worker_client import Launched

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from frazil.fs import FileSystem
    from frazil.log import DataDirectory

__all__ = ["WORKER_COMMAND", "launcher", "process_exists"]

SOCKET: Final = "lake.sock"
LOG: Final = "lake-output.log"
LOG_BYTES_MAX: Final = 16 << 20
"""A larger log is put aside when the next worker starts; one old one is kept."""
PATH_BYTES_MAX: Final = 100
"""Operating systems cut the path of a socket at 104 or 108 bytes."""
ACCEPT_S: Final = 0.2
WORKER_COMMAND: Final = ("-m", "frazil.lake.worker")


class _Process:
    """A child in a group of its own: a signal for the terminal does not reach it."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child

    @property
    def pid(self) -> int:
        return self._child.pid

    def poll(self) -> int | None:
        return self._child.poll()

    def terminate(self) -> None:
        self._child.terminate()

    def kill(self) -> None:
        # The group: Java is a child of the worker, and must not outlive it.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(1.0)


def launcher(
    paths: DataDirectory, file_system: FileSystem, *, command: Sequence[str] = WORKER_COMMAND
) -> Callable[[int], Launched]:
    """Return what starts a worker of this data directory."""

    def launch(epoch: int) -> Launched:
        for directory in (paths.run, paths.logs):
            file_system.make_directory(directory)
        listener = _listen(paths, file_system)
        try:
            process = _spawn(paths, file_system, [*command, "--epoch", str(epoch)])
        except OSError as error:
            listener.close()
            raise Unavailable("the lake worker cannot be started", error=error) from error
        return Launched(process, lambda timeout_s: _accept(listener, process, timeout_s))

    return launch


def _listen(paths: DataDirectory, file_system: FileSystem) -> socket.socket:
    path = f"{paths.run}/{SOCKET}"
    if file_system.stat(path) is not None:
        file_system.unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _bind(listener, path)
        os.chmod(path, 0o600)
        listener.listen(1)
    except OSError as error:
        listener.close()
        raise Unavailable("the lake's socket cannot be made", path=path, error=error) from error
    return listener


def _bind(listener: socket.socket, path: str) -> None:
    if len(os.fsencode(path)) <= PATH_BYTES_MAX:
        listener.bind(path)
        return
    if not sys.platform.startswith("linux"):
        raise InvalidRequest(
            "the path of the data directory is too long for the lake's socket, use a shorter one",
            path=path,
        )
    # A short way to the same directory: through a descriptor of it.
    directory, _, name = path.rpartition("/")
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        listener.bind(f"/proc/self/fd/{descriptor}/{name}")
    finally:
        os.close(descriptor)


def _spawn(paths: DataDirectory, file_system: FileSystem, command: Sequence[str]) -> _Process:
    log = f"{paths.logs}/{LOG}"
    found = file_system.stat(log)
    if found is not None and found.size > LOG_BYTES_MAX:
        file_system.rename(log, f"{log}.1")
    # It runs in the directory of its socket, whose name is then short enough for any system.
    module_path = os.pathsep.join(os.path.abspath(each) for each in sys.path if each)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        child = subprocess.Popen(  # noqa: S603 - our own module
            [sys.executable, *command, "--socket", SOCKET],
            cwd=paths.run,
            env={**os.environ, "PYTHONPATH": module_path},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    finally:
        os.close(output)
    return _Process(child)


def _accept(listener: socket.socket, process: _Process, timeout_s: float) -> socket.socket:
    """Wait until the worker has called; nobody else gets through the directory's rights."""
    listener.settimeout(ACCEPT_S)
    try:
        for _attempt in range(max(int(timeout_s / ACCEPT_S), 1)):
            try:
                connection, _address = listener.accept()
            except TimeoutError:
                if process.poll() is not None:
                    raise Closed(
                        "the lake worker ended before it called, see the lake's log",
                        code=process.poll(),
                    ) from None
                continue
            connection.settimeout(None)
            return connection
        raise Unavailable("the lake worker did not call in time", timeout_s=timeout_s)
    finally:
        listener.close()


def process_exists(pid: int) -> bool:
    """Return whether a process of this number runs, whoever's it is."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
