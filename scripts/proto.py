"""Generate the Python code of the protocol's messages: `python scripts/proto.py [--out DIRECTORY]`.

The compiler of grpcio-tools writes `*_pb2.py` beside each .proto file; two things are ours:

- The messages live in a pool of their own. In the shared pool of the process a name exists once,
  so a program that has both Frazil and a published Danube client in it could not be loaded.
- The stubs `*_pb2.pyi` are written here. Those of the compiler need a package of types for the
  library and do not pass mypy's strict mode; these say which fields have presence, too.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from google.protobuf import descriptor_pb2

SOURCES = Path(__file__).resolve().parent.parent / "src"
FOLDERS = ("frazil/metadata/proto", "frazil/serve/danube/proto")
SHARED_POOL, OWN_POOL = "_descriptor_pool.Default()", "_descriptor_pool.DescriptorPool()"

_Field = descriptor_pb2.FieldDescriptorProto
SCALARS = {
    _Field.TYPE_BOOL: "bool",
    _Field.TYPE_BYTES: "bytes",
    _Field.TYPE_ENUM: "int",
    _Field.TYPE_INT32: "int",
    _Field.TYPE_INT64: "int",
    _Field.TYPE_STRING: "str",
    _Field.TYPE_UINT32: "int",
    _Field.TYPE_UINT64: "int",
}

HEAD = '''"""Types of the messages in {name}; written by scripts/proto.py."""

from collections.abc import Iterable, Mapping, MutableMapping, MutableSequence
from typing import ClassVar, Final, Literal, Self

class _Message:
    @classmethod
    def FromString(cls, data: bytes | memoryview, /) -> Self: ...
    def SerializeToString(self) -> bytes: ...
    def ByteSize(self) -> int: ...
    def CopyFrom(self, other: Self, /) -> None: ...

class _Enum:
    def Name(self, number: int, /) -> str: ...
    def Value(self, name: str, /) -> int: ...
    def keys(self) -> list[str]: ...
    def values(self) -> list[int]: ...
'''


def main() -> int:
    """Write the generated files; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=SOURCES, help="as if it were src")
    out: Path = parser.parse_args().out
    for folder in FOLDERS:
        names = sorted(path.name for path in (SOURCES / folder).glob("*.proto"))
        for file in compiled(folder, names, out):
            code = out / file.name.replace(".proto", "_pb2.py")
            keep_own_pool(code)
            stub = "\n".join(stub_lines(file)) + "\n"
            code.with_suffix(".pyi").write_text(stub, encoding="utf-8")
            print(f"wrote {code.relative_to(out)} and its stub")
    return 0


def compiled(folder: str, names: list[str], out: Path) -> list[descriptor_pb2.FileDescriptorProto]:
    """Run the compiler on files of a folder below src; return what they declare."""
    described = out / folder / "descriptors.bin"
    described.parent.mkdir(parents=True, exist_ok=True)
    options = [f"-I{SOURCES}", f"--python_out={out}", f"--descriptor_set_out={described}"]
    paths = [f"{folder}/{name}" for name in names]
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *options, *paths], check=True)
    files = descriptor_pb2.FileDescriptorSet.FromString(described.read_bytes()).file
    described.unlink()
    return list(files)


def keep_own_pool(code: Path) -> None:
    """Make a generated module register its messages in a pool of its own."""
    text = code.read_text(encoding="utf-8")
    if text.count(SHARED_POOL) != 1:
        raise SystemExit(f"the compiler writes another form of code: no pool in {code}")
    code.write_text(text.replace(SHARED_POOL, OWN_POOL), encoding="utf-8")


def stub_lines(file: descriptor_pb2.FileDescriptorProto) -> Iterator[str]:
    """Return the stub of one file, line by line."""
    if file.dependency or file.extension:
        raise SystemExit(f"stubs know neither imports nor extensions: {file.name}")
    yield HEAD.format(name=Path(file.name).name).rstrip("\n")
    for enum in file.enum_type:
        yield ""
        yield from enum_lines(enum)
    for message in file.message_type:
        yield ""
        yield from message_lines(message, package=file.package)


def enum_lines(enum: descriptor_pb2.EnumDescriptorProto) -> Iterator[str]:
    """Return an enum: the wrapper under its name, and its values beside it."""
    yield f"class _{enum.name}(_Enum):"
    yield from (f"    {value.name}: int" for value in enum.value)
    yield ""
    yield f"{enum.name}: Final[_{enum.name}]"
    yield from (f"{value.name}: Final[int]" for value in enum.value)


def message_lines(message: descriptor_pb2.DescriptorProto, *, package: str) -> Iterator[str]:
    """Return the class of one message."""
    maps = {nested.name: nested for nested in message.nested_type}
    assert all(nested.options.map_entry for nested in maps.values()), message.name
    yield f"class {message.name}(_Message):"
    for enum in message.enum_type:
        yield f"    class _{enum.name}(_Enum):"
        yield from (f"        {value.name}: int" for value in enum.value)
        yield f"    {enum.name}: ClassVar[_{enum.name}]"
        yield from (f"    {value.name}: ClassVar[int]" for value in enum.value)
    arguments = []
    for field in message.field:
        read, given = field_types(field, maps, package=package)
        settable = field.label != _Field.LABEL_REPEATED and field.type != _Field.TYPE_MESSAGE
        if settable:
            yield f"    {field.name}: {read}"
        else:
            yield "    @property"
            yield f"    def {field.name}(self) -> {read}: ..."
        arguments.append(f"{field.name}: {given} | None = ...")
    yield (
        f"    def __init__(self, {', '.join(['*', *arguments])}) -> None: ..."
        if arguments
        else ("    def __init__(self) -> None: ...")
    )
    yield from presence_lines(message)


def field_types(
    field: descriptor_pb2.FieldDescriptorProto,
    maps: dict[str, descriptor_pb2.DescriptorProto],
    *,
    package: str,
) -> tuple[str, str]:
    """Return what reading a field gives and what the constructor takes for it."""
    entry = maps.get(field.type_name.rpartition(".")[2])
    if entry is not None:
        inner = ", ".join(SCALARS[part.type] for part in entry.field)
        return f"MutableMapping[{inner}]", f"Mapping[{inner}]"
    one = SCALARS.get(field.type) or field.type_name.removeprefix(f".{package}.")
    if field.label == _Field.LABEL_REPEATED:
        return f"MutableSequence[{one}]", f"Iterable[{one}]"
    return one, one


def presence_lines(message: descriptor_pb2.DescriptorProto) -> Iterator[str]:
    """Return the calls that ask what is present, where a message has such fields."""
    single = [field for field in message.field if field.label != _Field.LABEL_REPEATED]
    present = [
        field.name
        for field in single
        if field.type == _Field.TYPE_MESSAGE or field.HasField("oneof_index")
    ]
    if present:
        names = ", ".join(f'"{name}"' for name in present)
        yield f"    def HasField(self, name: Literal[{names}], /) -> bool: ..."
        yield f"    def ClearField(self, name: Literal[{names}], /) -> None: ..."
    for index, oneof in enumerate(message.oneof_decl):
        cases = [f for f in single if f.HasField("oneof_index") and f.oneof_index == index]
        if not any(case.proto3_optional for case in cases):
            names = ", ".join(f'"{case.name}"' for case in cases)
            yield (
                f'    def WhichOneof(self, name: Literal["{oneof.name}"], /)'
                f" -> Literal[{names}] | None: ..."
            )


if __name__ == "__main__":
    sys.exit(main())
