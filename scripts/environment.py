"""Build `.venv` and install Frazil into it, unless that has been done already.

Called by `scripts/environment.sh` with the Python that `.venv` shall have; the standard library
is all it needs. A key file in `.venv` says for which `pyproject.toml`, folder and flavour it was
built, so that a second call has nothing to do.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
JARS_TIMEOUT_S = 120
AZURITE_TIMEOUT_S = 180
TARGETS = {
    "run": ".[query,lake,serve,objects,etcd]",
    "dev": ".[dev,lake,serve,objects,etcd]",
}


def main() -> int:
    """Build what is missing; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("flavour", choices=sorted(TARGETS))
    parser.add_argument("--check", action="store_true", help="only tell whether it is up to date")
    arguments = parser.parse_args()
    if arguments.check:
        return 0 if is_current(arguments.flavour) else 1
    with one_at_a_time():
        if not is_current(arguments.flavour):
            build(arguments.flavour)
    return 0


def is_current(flavour: str) -> bool:
    """Tell whether `.venv` holds `flavour`; `dev` has everything that `run` has."""
    wanted = {key_of(flavour), key_of("dev")}
    return any(
        path.is_file() and path.read_text(encoding="utf-8") in wanted
        for path in (key_path(flavour), key_path("dev"))
    )


def key_of(flavour: str) -> str:
    """Return what `.venv` depends on: the project file, this folder, the Python, the flavour."""
    digest = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    version = ".".join(map(str, sys.version_info[:2]))
    return f"{flavour} {version} {digest} {ROOT}\n"


def key_path(flavour: str) -> Path:
    """Return the file that holds the key of `flavour`."""
    return VENV / f"frazil-{flavour}.key"


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Let a second `make` in the same folder wait for the first."""
    name = hashlib.sha256(str(ROOT).encode()).hexdigest()[:16]
    path = Path(tempfile.gettempdir()) / f"frazil-environment-{os.getuid()}-{name}.lock"
    with path.open("w", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build(flavour: str) -> None:
    """Make `.venv` with this Python if it is missing, broken or of another version; install."""
    if not works():
        print(f"building {VENV.name} with Python {sys.version.split()[0]}", flush=True)
        run([sys.executable, "-m", "venv", "--clear", str(VENV)])
    for path in (key_path("run"), key_path("dev")):
        path.unlink(missing_ok=True)
    print(f"installing {TARGETS[flavour]} into {VENV.name}", flush=True)
    options = ["--quiet", "--disable-pip-version-check", "--no-input"]
    run([str(PYTHON), "-m", "pip", "install", *options, "--editable", TARGETS[flavour]])
    fetch_jars()
    if flavour == "dev":
        fetch_azurite()
    # Written last: an interrupted build leaves no key and is done again.
    key_path(flavour).write_text(key_of(flavour), encoding="utf-8")


def fetch_jars() -> None:
    """Fetch what Spark needs, so that the first table does not wait for it; or let the lake do it."""
    command = [str(PYTHON), "-m", "frazil.cli", "lake", "setup"]
    try:
        done = subprocess.run(
            command, cwd=ROOT, check=False, stdin=subprocess.DEVNULL, timeout=JARS_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        done = None
    if done is None or done.returncode != 0:
        print("the lake has no jars yet and will try again when it starts", flush=True)


def fetch_azurite() -> None:
    """Install the emulator of Azure's store with npm; without it, its tests are skipped."""
    command = [str(PYTHON), str(ROOT / "scripts" / "azurite.py")]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            check=False,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=AZURITE_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        print("azurite did not install in time; its tests are skipped", flush=True)
        return
    if done.returncode != 0:
        print(f"{done.stderr.strip()}; its tests are skipped", flush=True)


def works() -> bool:
    """Tell whether `.venv` has pip and the version of the Python that runs this."""
    if not PYTHON.exists():
        return False
    code = f"import sys, pip; sys.exit(sys.version_info[:2] != {sys.version_info[:2]!r})"
    return (
        subprocess.run([str(PYTHON), "-c", code], check=False, capture_output=True).returncode == 0
    )


def run(command: list[str]) -> None:
    """Run a command in the project's folder; stop with its exit code if it fails."""
    done = subprocess.run(command, cwd=ROOT, check=False, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        sys.exit(done.returncode)


if __name__ == "__main__":
    sys.exit(main())
