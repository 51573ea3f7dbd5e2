"""The style guide's limits hold for every file."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.style import rules

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "frazil"
FOLDERS = ("src", "tests", "scripts", "bench")
GENERATED = "_pb2.py"
"""How the names of files end that a compiler wrote; scripts/proto.py is the one to be tidy."""

SEAMS = {"fs.py", "clock.py"}

SEAM_EXCEPTIONS = {
    "config/sources.py": ({"open"}, "the settings file is read before there is an engine"),
    "cli/": (
        {"open", "time", "os.path.exists", "os.path.isdir", "os.path.isfile", "os.path.getsize"},
        "commands read the user's files and show how long things took",
    ),
    "cli/failures.py": (
        {"os.open"},
        "the null device takes stdout's place when its reader is gone",
    ),
    "lake/catalog/server.py": (
        {"tempfile"},
        "a catalog in memory has a warehouse that is gone with it",
    ),
    "lake/worker_spark.py": ({"shutil"}, "scratch files of a dead Spark are a tree of any depth"),
    "lake/session.py": ({"os.open"}, "the JVM's own output needs a descriptor that appends"),
    "engine/doctor.py": (
        {"os.stat", "os.path.exists", "os.path.lexists", "shutil", "tempfile"},
        "rights and owner are the user's business; a copy of the metadata is opened, never the file",
    ),
    "registry/definitions.py": ({"os.pread"}, "protoc writes into files in memory"),
    "lake/worker_client.py": (
        {"os.open"},
        (
            "a child process gets descriptors (its output, a short way to its socket), and the kernel's "
            "file of a session's priority takes no pwrite"
        ),
    ),
}
"""Paths under src/frazil with what they may call although it belongs to the seams, and why."""


def python_files(*folders):
    found = []
    for folder in folders:
        found += [path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts]
    return sorted(path for path in found if not path.name.endswith(GENERATED))


def tracked_files():
    """The files git knows; without git (an unpacked archive) those in the known folders."""
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, check=False
    )
    if listed.returncode == 0:
        return [ROOT / os.fsdecode(name) for name in listed.stdout.split(b"\0") if name]
    return [*python_files(*FOLDERS), *ROOT.glob("*.*"), *(ROOT / "docs").rglob("*.md")]


def problems_of(files, rule):
    """Apply a rule to files; return `path: problem` for all it finds."""
    found = []
    for path in files:
        text = path.read_text(encoding="utf-8")
        found += [f"{path.relative_to(ROOT)}: {problem}" for problem in rule(text)]
    return found


def test_modules_and_functions_are_short():
    """No module has more than 1,000 lines, no function more than 70."""
    files = python_files(*FOLDERS)
    assert SOURCE / "errors.py" in files
    assert not problems_of(files, rules.too_long)


def test_modules_are_named_by_what_they_do():
    """There is no utils, helpers, common, base or manager."""
    stems = {path.stem for path in python_files(*FOLDERS)}
    parents = {path.parent.name for path in python_files(*FOLDERS)}
    assert not (stems | parents) & rules.FORBIDDEN_STEMS


def test_files_time_and_chance_come_through_the_seams():
    """Only fs.py and clock.py call the operating system for them; exceptions have reasons."""
    found = []
    for path in python_files("src"):
        name = path.relative_to(SOURCE).as_posix()
        if name in SEAMS:
            continue
        allowed = set()
        for prefix, (calls, reason) in SEAM_EXCEPTIONS.items():
            assert reason
            if name == prefix or (prefix.endswith("/") and name.startswith(prefix)):
                allowed |= calls
        calls = rules.past_the_seams(path.read_text(encoding="utf-8"))
        found += [f"{name}:{line}: {call}" for call, line in calls if call not in allowed]
    assert not found


def test_exceptions_to_the_rules_exist():
    """An exception for a file that is gone is removed."""
    gone = [name for name in SEAM_EXCEPTIONS if not (SOURCE / name).exists()]
    assert not gone


def test_tests_say_and_assert_something():
    """Every test has a sentence that could fail and at least one assertion."""
    files = [path for path in python_files("tests") if path.name.startswith("test_")]
    assert files
    assert not problems_of(files, rules.weak_tests)


def test_no_file_names_a_registry_or_somebodys_machine():
    """Tracked text files hold no registry host and no absolute path of a machine."""
    found = []
    for path in tracked_files():
        if not path.is_file() or path.name == "LICENSE" or "tests/data" in path.as_posix():
            continue
        data = path.read_bytes()
        if b"\0" not in data:
            lines = rules.foreign_places(data.decode("utf-8"))
            found += [f"{path.relative_to(ROOT)}:{line}" for line in lines]
    assert not found


def test_every_ignored_lint_rule_has_its_reason():
    """pyproject.toml says beside each ignore why it is there."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'select = ["ALL"]' in text
    assert not rules.reasonless_ignores(text)


def test_the_readme_has_the_two_commands():
    """A newcomer finds `make run` and `make test`."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make run" in text
    assert "make test" in text


def test_the_makefile_has_its_targets():
    """Each promised target exists and is listed by `make help`."""
    listed = subprocess.run(["make", "-C", str(ROOT), "help"], capture_output=True, check=True)
    lines = listed.stdout.decode().splitlines()
    words = {line.split()[0] for line in lines if line.startswith("  ")}
    wanted = {"help", "run", "test", "test-times", "check", "bench", "crash", "fuzz", "soak"}
    assert wanted | {"clean"} <= words


LONG = "def f():\n" + "    x = 1\n" * 71

PLANTED = [
    (rules.too_long, LONG),
    (rules.too_long, "x = 1\n" * 1001),
    (rules.past_the_seams, "def f():\n    with open('x'):\n        pass\n"),
    (rules.past_the_seams, "import os\nos.fsync(3)\n"),
    (rules.past_the_seams, "from os import fdatasync\n"),
    (rules.past_the_seams, "import time\n"),
    (rules.past_the_seams, "import uuid\nuuid.uuid4()\n"),
    (rules.past_the_seams, "from random import choice\n"),
    (rules.past_the_seams, "Path('x').read_text()\n"),
    (rules.past_the_seams, "import datetime\ndatetime.datetime.now()\n"),
    (rules.foreign_places, "see https://py" + "pi.org/simple\n"),
    (rules.foreign_places, "path = '/ho" + "me/me/x'\n"),
    (rules.weak_tests, "def test_a():\n    assert 1\n"),
    (rules.weak_tests, 'def test_a():\n    """Text."""\n    f()\n'),
    (rules.weak_tests, 'def f():\n    test_a()\ndef test_a():\n    """Text."""\n    f()\n'),
    (rules.reasonless_ignores, '[tool.ruff.lint]\nignore = [\n  "E501",\n]\n'),
    (rules.reasonless_ignores, '[tool.ruff.lint]\nignore = ["E501"]\n'),
]


@pytest.mark.parametrize(
    ("rule", "text"), PLANTED, ids=lambda value: getattr(value, "__name__", "")
)
def test_each_rule_finds_what_it_forbids(rule, text):
    """A planted violation is found."""
    assert rule(text)


FINE = [
    (rules.too_long, "def f():\n" + "    x = 1\n" * 69),
    (rules.past_the_seams, "self._fs.open('x')\nclock.monotonic()\nfile.sync()\n"),
    (rules.foreign_places, "path = '/tmp/x'; url = 'https://example.org/home/x'\n"),
    (rules.weak_tests, 'def f():\n    assert 1\ndef test_a():\n    """Text."""\n    f()\n'),
    (rules.reasonless_ignores, '[tool.ruff.lint]\nignore = [\n  "E501",  # a reason\n]\n'),
]


@pytest.mark.parametrize(("rule", "text"), FINE, ids=lambda value: getattr(value, "__name__", ""))
def test_no_rule_finds_what_is_fine(rule, text):
    """Good code passes."""
    assert not rule(text)
