"""`python -m frazil.cli`."""

from __future__ import annotations

from frazil.cli.app import main

main()
