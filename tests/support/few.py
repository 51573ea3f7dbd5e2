"""Small limits of the broker, so that a test reaches them with a few calls.

    few(monkeypatch.setattr, PRODUCERS_MAX=2)

`python -c` with `FEW_COMMAND` is the command line with the limits of a JSON object in front.
"""

from __future__ import annotations

from frazil.serve import broker
from frazil.serve.danube import admin, consumers, producers
from frazil.subscribe import cursors

FEW_COMMAND = (
    "import json, sys; from tests.support.few import few; few(**json.loads(sys.argv.pop(1))); "
    "from frazil.cli import main; main()"
)


def few(patch=setattr, **limits):
    """Set constants wherever they are used."""
    for module in (admin, broker, consumers, cursors, producers):
        for name, value in limits.items():
            if hasattr(module, name):
                patch(module, name, value)
