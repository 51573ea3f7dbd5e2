"""Find Azurite, the emulator of Azure's blob storage; install it where npm is there.

`python scripts/azurite.py` prints the command, or why there is none and exits with 1. The package
is installed once and kept in the user's cache; `AZURITE` names another program. `make test` runs
this when it builds the environment; the tests themselves only look.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGE = "azurite"
VERSION = "3.37.0"
INSTALL_SECONDS_MAX = 150


class Missing(Exception):
    """There is no Azurite, and it cannot be installed; the text says why."""


def cached() -> Path:
    """Return the folder that the package is kept in once it is installed."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "frazil" / f"{PACKAGE}-{VERSION}"


def install(target: Path) -> None:
    """Install the package with npm.

    Raises:
        Missing: npm is not installed, or it failed (most often for want of a network).
    """
    npm = shutil.which("npm")
    if npm is None:
        raise Missing("azurite is not installed, and there is no npm to install it")
    target.parent.mkdir(parents=True, exist_ok=True)
    # Two processes may come here at once: each has a folder, the first one wins.
    folder = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=target.parent))
    options = ["--prefix", str(folder), "--no-audit", "--no-fund", "--omit=dev", "--loglevel=error"]
    options += ["--fetch-retries=1", "--fetch-timeout=30000"]
    try:
        done = subprocess.run(
            [npm, "install", *options, f"{PACKAGE}@{VERSION}"],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=INSTALL_SECONDS_MAX,
            check=False,
        )
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise Missing(f"azurite is not installed, and npm could not install it: {last}")
        if not target.exists():
            folder.rename(target)
    except subprocess.TimeoutExpired as error:
        raise Missing("azurite is not installed, and npm did not install it in time") from error
    except OSError as error:
        if not target.exists():
            raise Missing(f"azurite cannot be kept in {target.parent}: {error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def find(*, installs: bool = False) -> list[str]:
    """Return the command that starts the blob service; with `installs` after installing it.

    Raises:
        Missing: there is none.
    """
    given = os.environ.get("AZURITE")
    if given:
        return [given]
    node = shutil.which("node")
    if node is None:
        raise Missing("azurite needs node, which is not installed")
    target = cached()
    if not target.exists() and not installs:
        raise Missing("azurite is not installed: python scripts/azurite.py installs it")
    if not target.exists():
        install(target)
    return [node, str(target / "node_modules" / PACKAGE / "dist" / "src" / "blob" / "main.js")]


def main() -> int:
    """Print the command; return the exit code."""
    try:
        print(*find(installs=True))
    except Missing as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
