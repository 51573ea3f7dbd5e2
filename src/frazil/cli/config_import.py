"""`frazil config import`: a Danube broker's file as settings of Frazil."""

from __future__ import annotations

import os.path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from frazil.cli.output import note, write_out
from frazil.config import import_danube, read_documents
from frazil.errors import Conflict, InvalidRequest, NotFound
from frazil.fs import RealFileSystem, read_fully, write_fully

if TYPE_CHECKING:
    from frazil.config import Imported

__all__ = ["import_config"]

FILE_BYTES_MAX: Final = 1 << 20


def import_config(
    file: Annotated[str, typer.Argument(help="Danube's YAML file, e.g. danube_broker.yml.")],
    out: Annotated[
        str | None, typer.Option("--out", help="The new settings file; stdout without it.")
    ] = None,
    number: Annotated[
        int | None, typer.Option("--document", min=1, help="Which document of the file, from 1.")
    ] = None,
) -> None:
    """Write the settings that equal a Danube file's storage, and say what became of each key.

    The report goes to stderr. References to the environment stay references.
    """
    documents = read_documents(_read(file))
    wanted = number or 1
    if wanted > len(documents):
        raise InvalidRequest("there is no such document", document=wanted, documents=len(documents))
    found = import_danube(documents[wanted - 1], source=os.path.basename(file))
    if out is None:
        write_out(found.text)
    else:
        _write(out, found.text)
    _report(found)
    if number is None and len(documents) > 1:
        note(f"the file has {len(documents)} documents, this is the first: see --document")


def _report(found: Imported) -> None:
    for mapped in found.mapped:
        note(f"mapped   {mapped.key} -> {mapped.setting}: {mapped.shown}")
    for left in found.not_yet:
        note(f"not yet  {left.key}: {left.reason}")
    for left in found.dropped:
        note(f"dropped  {left.key}: {left.reason}")


def _read(path: str) -> str:
    try:
        file = RealFileSystem().open(os.path.realpath(path), "read")
        try:
            data = read_fully(file, 0, FILE_BYTES_MAX + 1)
        finally:
            file.close()
    except FileNotFoundError as error:
        raise NotFound("file does not exist", file=path) from error
    except (OSError, ValueError) as error:
        raise InvalidRequest("file cannot be read", file=path, reason=error) from error
    if len(data) > FILE_BYTES_MAX:
        raise InvalidRequest("file is too large", file=path, bytes_max=FILE_BYTES_MAX)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidRequest("file is not UTF-8", file=path, byte=error.start) from error


def _write(path: str, text: str) -> None:
    """Make a file that only its owner reads: it may hold secrets."""
    files = RealFileSystem()
    try:
        file = files.open(os.path.abspath(path), "create")
    except FileExistsError as error:
        raise Conflict("file exists already, choose another with --out", file=path) from error
    except (OSError, ValueError) as error:
        raise InvalidRequest("file cannot be written", file=path, reason=error) from error
    try:
        write_fully(file, 0, [text.encode()])
        file.sync()
    finally:
        file.close()
