"""Imports go downwards, as pyproject.toml says."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LINT = "import sys; from importlinter.cli import lint_imports_command as c; sys.exit(c())"


def lint(root):
    """Run import-linter over the package in `root` and return the finished process."""
    command = [sys.executable, "-c", LINT, "--no-cache"]
    return subprocess.run(
        command,
        cwd=root,
        env={"PYTHONPATH": str(root / "src"), "PYTHONUTF8": "1", "TERM": "dumb"},
        capture_output=True,
        text=True,
        check=False,
    )


def copied(target):
    """Copy the package's sources and contracts, so that a test may break them."""
    (target / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for path in (ROOT / "src").rglob("*.py"):
        copy = target / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    return target


def test_imports_go_downwards():
    """Every contract of pyproject.toml is kept."""
    done = lint(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    count = len(contracts["tool"]["importlinter"]["contracts"])
    assert f"{count} kept, 0 broken" in done.stdout


PLANTED = (
    ("units", "import frazil.config", "frazil.units -> frazil.config"),
    ("units", "import tests.support", "frazil.units -> tests"),
    ("stray", "", "stray"),
    ("objects/store", "def f():\n    import obstore", "frazil.objects.store -> obstore"),
    ("serve/h2/connection", "import asyncio", "frazil.serve.h2.connection -> asyncio"),
    ("serve/danube/producers", "import socket", "frazil.serve.danube.producers -> socket"),
)
"""Module, what is added to it, and what import-linter reports: imports upwards and of the
simulation, a module without a layer, a second importer of obstore, I/O in the pure protocol."""


def test_what_breaks_a_contract_is_found(tmp_path):
    """Each planted import is reported, also a lazy one, and a module that has no layer."""
    root = copied(tmp_path)
    for name, text, _report in PLANTED:
        with (root / "src" / "frazil" / f"{name}.py").open("a", encoding="utf-8") as module:
            module.write(f"\n{text}\n")
    done = lint(root)
    assert done.returncode == 1
    missed = [report for _name, _text, report in PLANTED if report not in done.stdout]
    assert not missed, done.stdout
