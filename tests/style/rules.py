"""The rules of the style guide that a machine can check: text or syntax tree -> problems."""

from __future__ import annotations

import ast
import gc
import re

MODULE_LINES_MAX = 1000
FUNCTION_LINES_MAX = 70
FORBIDDEN_STEMS = {"utils", "util", "helpers", "helper", "common", "base", "manager", "misc"}

OS_VERBS = (
    *("open", "fsync", "fdatasync", "sync", "urandom", "getrandom", "rename", "replace", "unlink"),
    *("remove", "makedirs", "mkdir", "rmdir", "listdir", "scandir", "stat", "lstat", "statvfs"),
    *("truncate", "ftruncate", "pread", "pwrite", "preadv", "pwritev", "posix_fallocate"),
)
SEAM_CALLS = {
    "open",
    "io.open",
    *(f"os.{verb}" for verb in OS_VERBS),
    *(f"uuid.uuid{version}" for version in (1, 4, 6, 7)),
    *(f"datetime.{verb}" for verb in ("now", "utcnow", "today")),
    *(f"datetime.datetime.{verb}" for verb in ("now", "utcnow", "today")),
    *(f"os.path.{verb}" for verb in ("exists", "isfile", "isdir", "getsize", "getmtime")),
}
SEAM_METHODS = {"read_text", "read_bytes", "write_text", "write_bytes"}
SEAM_MODULES = {"time", "random", "secrets", "tempfile", "shutil", "fcntl", "mmap", "glob"}

ASSERTING_PREFIXES = ("assert_", "check_", "expect_", "run_state_machine_as_test")
ASSERTING_CALLS = {"pytest.raises", "pytest.warns", "pytest.fail", "raises"}

_MACHINE_PATH = re.compile(r"(?<![\w.~$}-])/(?:work|root|home|Users|private/var|opt/wheels)/")
_REGISTRY_HOST = re.compile(
    "|".join(
        re.escape(first + last)
        for first, last in (
            ("pypi", ".org"),
            ("python", "hosted.org"),
            ("docker", ".io"),
            ("ghcr", ".io"),
            ("quay", ".io"),
            ("registry", ".npmjs"),
            ("repo1.mav", "en.org"),
            ("repo.mav", "en.apache.org"),
            ("repo.", "anaconda.com"),
        )
    )
)

Function = ast.FunctionDef | ast.AsyncFunctionDef


def parsed(text: str | bytes) -> ast.Module:
    """Parse a module while nothing is collected.

    In Python before 3.11.8 a collection in the middle, if it closes objects of an earlier test that
    run code, makes the parser fail with "AST constructor recursion depth mismatch".
    """
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        gc.enable()


def functions(tree: ast.AST) -> list[Function]:
    """Return all functions and methods, nested ones too."""
    return [node for node in ast.walk(tree) if isinstance(node, Function)]


def dotted(node: ast.expr) -> str:
    """Return `a.b.c` for such an expression, empty for another."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        above = dotted(node.value)
        return f"{above}.{node.attr}" if above else ""
    return ""


def too_long(text: str) -> list[str]:
    """Find a module or a function that is too long."""
    problems = []
    count = len(text.splitlines())
    if count > MODULE_LINES_MAX:
        problems.append(f"module has {count} lines, at most {MODULE_LINES_MAX}")
    for function in functions(parsed(text)):
        lines = (function.end_lineno or function.lineno) - function.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            problems.append(f"{function.name} has {lines} lines, at most {FUNCTION_LINES_MAX}")
    return problems


def past_the_seams(text: str) -> list[tuple[str, int]]:
    """Find calls and imports that only the seams of files, time and chance may have."""
    found = []
    for node in ast.walk(parsed(text)):
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if method in SEAM_METHODS:
                found.append((method, node.lineno))
            elif name in SEAM_CALLS:
                found.append((name, node.lineno))
        elif isinstance(node, ast.Import):
            found += [(a.name, node.lineno) for a in node.names if a.name in SEAM_MODULES]
        elif isinstance(node, ast.ImportFrom):
            if node.module in SEAM_MODULES:
                found.append((node.module, node.lineno))
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [(name, node.lineno) for name in names if name in SEAM_CALLS]
    return found


def foreign_places(text: str) -> list[int]:
    """Find hosts of package registries and absolute paths of somebody's machine."""
    lines = enumerate(text.splitlines(), 1)
    return [n for n, line in lines if _REGISTRY_HOST.search(line) or _MACHINE_PATH.search(line)]


def weak_tests(text: str) -> list[str]:
    """Find tests without docstring, or that assert nothing, themselves or by a local function."""
    tree = parsed(text)
    local = {function.name: function for function in functions(tree)}
    problems = []
    for name, function in local.items():
        if not name.startswith("test_") or any(
            dotted(mark).endswith("fixture") for mark in function.decorator_list
        ):
            continue
        if not ast.get_docstring(function):
            problems.append(f"{name} has no docstring")
        if not _asserts(function, local, set()):
            problems.append(f"{name} asserts nothing")
    return problems


def _asserts(function: Function, local: dict[str, Function], seen: set[str]) -> bool:
    seen.add(function.name)
    for node in ast.walk(function):
        if isinstance(node, ast.Assert):
            return True
        if not isinstance(node, ast.Call):
            continue
        name = dotted(node.func)
        last = name.rpartition(".")[2]
        if name in ASSERTING_CALLS or last.startswith(ASSERTING_PREFIXES):
            return True
        if last in local and last not in seen and _asserts(local[last], local, seen):
            return True
    return False


def reasonless_ignores(text: str) -> list[str]:
    """Find ignored lint rules in a pyproject.toml that have no comment with the reason."""
    problems, inside = [], False
    for line in text.splitlines():
        if line.startswith("["):
            inside = line.startswith("[tool.ruff.lint")
        found = re.match(r'\s*"([A-Z]+[0-9]*)",?\s*(#\s*\w.*)?$', line)
        if inside and found and not found.group(2):
            problems.append(found.group(1))
        one_line = re.match(r'\s*(?:(?:extend-)?ignore|".*")\s*=\s*\[\s*"', line)
        if inside and one_line:
            problems.append(line.strip())
    return problems
