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


def test_an_import_upwards_is_found(tmp_path):
    """A lower layer that imports a higher one, or the simulation, breaks a contract."""
    root = copied(tmp_path)
    units = root / "src" / "frazil" / "units.py"
    text = units.read_text(encoding="utf-8")
    units.write_text(text + "\nimport frazil.config\n", encoding="utf-8")
    upwards = lint(root)
    assert upwards.returncode == 1
    assert "frazil.units -> frazil.config" in upwards.stdout
    units.write_text(text + "\nimport tests.support\n", encoding="utf-8")
    simulated = lint(root)
    assert simulated.returncode == 1
    assert "frazil.units -> tests" in simulated.stdout


def test_a_module_without_a_layer_is_found(tmp_path):
    """A new top-level module must be given its place in the layers."""
    root = copied(tmp_path)
    (root / "src" / "frazil" / "stray.py").write_text('"""A stray module."""\n', encoding="utf-8")
    done = lint(root)
    assert done.returncode == 1
    assert "stray" in done.stdout


def test_a_second_module_with_obstore_is_found(tmp_path):
    """The client of object stores is imported in one module alone, also where it is lazy."""
    root = copied(tmp_path)
    path = root / "src" / "frazil" / "objects" / "store.py"
    text = path.read_text(encoding="utf-8")
    path.write_text(text + "\n\ndef f():\n    import obstore\n", encoding="utf-8")
    done = lint(root)
    assert done.returncode == 1
    assert "frazil.objects.store -> obstore" in done.stdout


def test_a_transport_that_leaks_is_found(tmp_path):
    """The HTTP/2 connection does no I/O, and what answers calls has no socket."""
    root = copied(tmp_path)
    for name, imported in (("h2/connection", "asyncio"), ("danube/producers", "socket")):
        path = root / "src" / "frazil" / "serve" / f"{name}.py"
        text = path.read_text(encoding="utf-8")
        path.write_text(text + f"\nimport {imported}\n", encoding="utf-8")
        done = lint(root)
        path.write_text(text, encoding="utf-8")
        assert done.returncode == 1
        module = f"frazil.serve.{name.replace('/', '.')}"
        assert f"{module} -> {imported}" in done.stdout
