"""A struct's type is learnt once, before several threads decode it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src"
SCRIPT = textwrap.dedent(
    """
    import sys, threading
    import msgspec
    from frazil.struct_types import learnt

    sys.setswitchinterval(1e-6)
    DATA = b'{"f0": "x", "f19": "y", "inner": {"a3": 4}}'
    for number in range(400):
        inner = msgspec.defstruct(f"I{number}", [(f"a{i}", "int | None", None) for i in range(20)])
        fields = [(f"f{i}", "str | None", None) for i in range(20)]
        kind = msgspec.defstruct(f"T{number}", [("inner", inner), *fields])
        go, found = threading.Barrier(4), []

        def work():
            go.wait()
            found.append(msgspec.json.decode(DATA, type=learnt(kind)))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert [each.inner.a3 for each in found] == [4] * 4
    """
)


def test_threads_that_decode_a_type_first_do_not_end_the_process():
    """Four of them begin with each of 400 types at once; without care that is a segfault."""
    environment = {"PYTHONPATH": str(SOURCE)}
    command = [sys.executable, "-c", SCRIPT]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_every_struct_that_is_decoded_by_its_type_is_learnt():
    """No module names a struct where it decodes without having it learnt first."""
    plain = ("type=dict", "type=tuple[int", "type=tuple[bytes", "type=list[tuple[int", "tuple[Any")
    wrong = []
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        for line in text.splitlines():
            is_typed = ("decode(" in line and "type=" in line) or "msgspec.convert(" in line
            is_safe = "learnt(" in line or any(each in line for each in plain)
            if "msgspec." in line and is_typed and not is_safe:
                wrong.append(f"{path.name}: {line.strip()}")
    assert wrong == []
