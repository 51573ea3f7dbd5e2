"""The command line: `frazil`. `docs/cli.md` has each command with an example."""

from __future__ import annotations

from frazil.cli.app import main

__all__ = ["main"]
