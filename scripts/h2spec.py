"""Find h2spec, the conformance suite of HTTP/2, or build it where Go is installed.

`python scripts/h2spec.py` prints the path of the program, or why there is none and exits with 1.
The program is built once and kept in the user's cache; `H2SPEC` names another one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

MODULE = "github.com/summerwind/h2spec/cmd/h2spec"
VERSION = "v2.2.1+incompatible"
BUILD_SECONDS_MAX = 120


class Missing(Exception):
    """There is no h2spec, and it cannot be built; the text says why."""


def cached() -> Path:
    """Return where the program is kept once it is built."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "frazil" / f"h2spec-{VERSION}"


def build(target: Path) -> None:
    """Build the program with Go.

    Raises:
        Missing: Go is not installed, or the build failed (most often for want of a network).
    """
    go = shutil.which("go")
    if go is None:
        raise Missing("h2spec is not installed, and there is no Go to build it")
    folder = target.parent / f"{target.name}.building"
    environment = {**os.environ, "GOBIN": str(folder)}
    try:
        done = subprocess.run(
            [go, "install", f"{MODULE}@{VERSION}"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=BUILD_SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Missing("h2spec is not installed, and Go did not build it in time") from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise Missing(f"h2spec is not installed, and Go could not build it: {last}")
    os.replace(folder / "h2spec", target)
    shutil.rmtree(folder, ignore_errors=True)


def find() -> str:
    """Return the path of h2spec.

    Raises:
        Missing: there is none.
    """
    given = os.environ.get("H2SPEC") or shutil.which("h2spec")
    if given:
        return given
    target = cached()
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        build(target)
    return str(target)


def main() -> int:
    """Print the path; return the exit code."""
    try:
        print(find())
    except Missing as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
