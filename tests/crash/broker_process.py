"""Brokers to be killed: `frazil serve` on one data directory and fixed ports.

To start Python and import the product takes longer than to open a directory. So most brokers are
forks of a process that has imported everything and opened nothing; they run the same command.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

from tests.servers.running import free_ports

WAIT_S = 60.0
STEP_S = 0.01
OK = 200
SETTINGS = {
    "log.segment_bytes_max": 5 << 18,
    "log.write_bytes_max": 1 << 18,
    "topics.message_bytes_max": 1 << 17,
    "log.ballast_bytes": 0,
    "log.free_bytes_min": 0,
    "log.free_ratio_min": 0.0,
    "lake.default": "false",
}
"""Small segments, so that a run rotates and seals often, on a disk that may be nearly full."""


def environment():
    """Return the environment of a process that imports what this one can."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def wait_until(holds, *, seconds=WAIT_S, what="the condition"):
    """Wait for a condition; AssertionError if it does not come."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, f"{what} did not come in {seconds} s"
        time.sleep(STEP_S)
    return found


class Broker:
    """One broker's directory, ports and process, over as many lives as it gets."""

    def __init__(self, directory, *, settings=None, forks=None, variables=None):
        assert forks is None or variables is None, "a fork has the environment of its parent"
        self.directory = Path(directory)
        self.directory.mkdir(parents=True, exist_ok=True)
        self.port, self.admin_port, self.http_port = free_ports(3)
        self.url = f"http://127.0.0.1:{self.port}"
        self.settings = {**SETTINGS, **(settings or {})}
        self.pid = None
        self._forks = forks
        self._variables = variables or {}
        self._process = None

    @property
    def output(self):
        """Where the broker writes."""
        return self.directory / "broker-output"

    def command(self):
        """Return the arguments of the command."""
        places = {
            "serve.port": self.port,
            "serve.admin_port": self.admin_port,
            "serve.http_port": self.http_port,
        }
        chosen = {**places, **self.settings}
        given = [word for key, value in chosen.items() for word in ("--set", f"{key}={value}")]
        return ["serve", "--data", str(self.directory / "data"), *given]

    def start(self):
        """Begin a life; it is not ready yet."""
        assert self.pid is None
        if self._forks is not None:
            self.pid = self._forks.start(self.output, self.command())
            return
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from frazil.cli import main; main()", *self.command()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**environment(), **self._variables},
            )
        self.pid = self._process.pid

    def is_ready(self):
        """Whether the broker says that it is."""
        connection = http.client.HTTPConnection("127.0.0.1", self.http_port, timeout=WAIT_S)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def wait_ready(self):
        """Wait until clients are served; AssertionError with its last words if it died."""

        def holds():
            if self.is_ready():
                return True
            assert self._code() is None, "the broker died"
            return False

        try:
            wait_until(holds, what="the broker")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.last_words()}") from error

    def _code(self):
        """How the process ended, or None."""
        if self._process is not None:
            return self._process.poll()
        return self._forks.poll(self.pid)

    def kill(self):
        """End this life at once; AssertionError if it had ended by itself before."""
        os.kill(self.pid, signal.SIGKILL)
        code = self.wait()
        assert code == -signal.SIGKILL, f"the broker ended with {code}: {self.last_words()}"

    def stop(self):
        """Ask the broker to end, and return its exit code."""
        os.kill(self.pid, signal.SIGTERM)
        return self.wait()

    def wait(self):
        """Wait for the end; return the exit code."""
        code = wait_until(lambda: (None, self._code())[1:] if self._code() is not None else None)[0]
        self.pid, self._process = None, None
        return code

    def close(self):
        """Leave no process behind."""
        if self.pid is not None:
            if self._code() is None:
                os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def last_words(self):
        """Return the end of what the broker wrote."""
        return self.output.read_text(errors="replace")[-3000:] if self.output.exists() else ""

    def memory_bytes(self):
        """Return what the process has in memory now."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) * 1024


class Peer:
    """A process of ours that answers each line with a line."""

    def __init__(self, module, *arguments):
        self.module = module
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        assert self.process.stdout.readline() == "ready\n", f"{module} did not start"

    def ask(self, line):
        """Send a line and return the answer."""
        self.tell(line)
        answer = self.process.stdout.readline().strip()
        assert answer, f"{self.module} died"
        return answer

    def tell(self, line):
        """Send a line."""
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def kill(self):
        """End the process at once."""
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()

    def close(self):
        """End the process by ending its input."""
        self.process.stdin.close()
        try:
            self.process.wait(timeout=WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.process.stdout.close()


class Forks(Peer):
    """The process that brokers are forks of; `limits` are as `set_log_limits` takes them."""

    def __init__(self, **limits):
        super().__init__("tests.crash.broker_process", json.dumps(limits))

    def start(self, output, command):
        """Fork a broker; return its pid."""
        return int(self.ask(json.dumps(["start", str(output), command])))

    def poll(self, pid):
        """Return how a fork ended, or None."""
        return json.loads(self.ask(json.dumps(["poll", pid])))


def run_fork(output, command):
    """Run the command in this process, which was forked for it."""
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, null), (1, file), (2, file)):
        os.dup2(source, target)
    sys.argv = ["frazil", *command]
    code = 1
    try:
        sys.modules["frazil.cli"].main()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main():
    """Fork brokers, and say how they ended, until stdin ends."""
    import frazil.cli
    import frazil.serve.process  # noqa: F401
    from tests.support.log_limits import set_log_limits

    set_log_limits(**json.loads(sys.argv[1]))

    codes = {}
    print("ready", flush=True)
    for line in sys.stdin:
        verb, *facts = json.loads(line)
        if verb == "start":
            pid = os.fork()
            if pid == 0:
                run_fork(*facts)
            print(pid, flush=True)
            continue
        pid = facts[0]
        if pid not in codes:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                codes[pid] = os.waitstatus_to_exitcode(status)
        print(json.dumps(codes.get(pid)), flush=True)


if __name__ == "__main__":
    main()
