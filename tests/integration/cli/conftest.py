"""The command line in this process, on a data directory of the test."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from frazil.cli.app import app


@pytest.fixture
def call(tmp_path):
    """Run `frazil` on a fresh directory; `given` is stdin."""

    def run(*arguments, given=None, code=0):
        words = ["--data", str(tmp_path / "data"), *map(str, arguments)]
        result = CliRunner().invoke(app, words, input=given)
        assert result.exit_code == code, (result.output, result.exception)
        return result

    return run
