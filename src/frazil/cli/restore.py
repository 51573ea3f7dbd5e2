"""`frazil restore`: make a broker's data directory from its object store, on an empty machine."""

from __future__ import annotations

import contextlib
import os.path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from frazil.cli.output import note, print_json, print_table, size_text, stamp
from frazil.cli.session import log_to_stderr, session_of
from frazil.clock import SystemClock
from frazil.errors import InvalidRequest
from frazil.fs import RealFileSystem
from frazil.objects import OFFSET_MARGIN
from frazil.objects import restore as restore_broker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["restore", "store_of"]

_KINDS: Final = {
    **dict.fromkeys(("s3", "s3a"), "s3"),
    **dict.fromkeys(("gcs", "gs"), "gcs"),
    **dict.fromkeys(("azblob", "az", "azure"), "azblob"),
    **dict.fromkeys(("file", "fs"), "fs"),
}


def restore(
    context: typer.Context,
    target: Annotated[str, typer.Option("--to", help="The new data directory; it must be empty.")],
    source: Annotated[
        str | None,
        typer.Option("--from", help="s3://…, gcs://…, azblob://… or a directory; else settings."),
    ] = None,
    local: Annotated[
        Literal["needed", "all"],
        typer.Option(help="Which records are fetched: those that must be local, or all."),
    ] = "needed",
    broker: Annotated[
        str | None, typer.Option(help="The broker's id, if the store has several.")
    ] = None,
    margin: Annotated[
        int, typer.Option(min=0, help="Offsets left free for records that the store does not know.")
    ] = OFFSET_MARGIN,
) -> None:
    """Rebuild a broker's topics, columns and subscriptions from its object store.

    Keys and endpoint of the store come from the settings (`--config`, `--set`, environment).
    """
    from frazil.objects import RetryingStore, open_store

    session = session_of(context)
    overrides = {"data_dir": os.path.abspath(target)}
    if source is not None:
        overrides["objects.store"], overrides["objects.root"] = store_of(source)
    settings = session.settings(**overrides)
    if settings.objects.store == "none":
        raise InvalidRequest("name the store with --from, or set objects.store and objects.root")
    if settings.metadata.backend == "memory":
        raise InvalidRequest(
            "a restored broker needs metadata that lasts", setting="metadata.backend"
        )
    log_to_stderr(settings)
    clock = SystemClock()
    opened = open_store(settings.objects, clock=clock)
    with contextlib.closing(RetryingStore(opened, clock=clock)) as store:
        report = restore_broker(
            store,
            settings.data_dir,
            settings=settings,
            file_system=RealFileSystem(),
            clock=clock,
            local_all=local == "all",
            broker=_broker(broker),
            offset_margin=margin,
        )
    if session.as_json:
        print_json(report)
        return
    _print(report, settings.data_dir)


def store_of(source: str) -> tuple[str, str]:
    """Return the kind of store and its root that a URL or a directory names.

    Raises:
        InvalidRequest: if its scheme is unknown.
    """
    scheme, separator, rest = source.partition("://")
    if not separator:
        return "fs", os.path.abspath(source)
    kind = _KINDS.get(scheme.lower())
    if kind is None:
        raise InvalidRequest(
            "unknown kind of store", url=source, known=", ".join(sorted(set(_KINDS.values())))
        )
    return (kind, rest) if kind == "fs" else (kind, f"{kind}://{rest}")


def _broker(text: str | None) -> bytes | None:
    if text is None:
        return None
    try:
        found = bytes.fromhex(text)
    except ValueError:
        found = b""
    if len(found) != 16:
        raise InvalidRequest("a broker's id is 32 hex digits", got=text)
    return found


def _print(report: dict[str, Any], target: str) -> None:
    names = ("topic", "first", "end", "objects", "subscriptions", "records", "lost", "not uploaded")
    topics = report["topics"]
    print_table(names, [_row(**topic) for topic in topics])
    source = "the objects alone: there is no backup"
    if report["backup"]:
        source = f"the backup of {stamp(report['backup_us'])}"
    typer.echo(
        f"restored {len(topics):,} topics into {target} from {source}; "
        f"{size_text(report['bytes_local'])} were fetched"
    )
    remote = sum(topic["objects"] > 0 and not topic["local"] for topic in topics)
    if remote:
        note(
            f"the records of {remote:,} topics stay in the store and are read from there; SQL sees "
            "those on this machine alone: fetch them with --local all"
        )
    for warning in _warnings(report):
        note(f"warning: {warning}")


def _warnings(report: dict[str, Any]) -> Iterator[str]:
    for key, reason in report["unreadable_backups"].items():
        yield f"backup {key} cannot be read: {reason}"
    for key, reason in report["damaged_objects"].items():
        yield f"object {key} is left out: {reason}"
    for key in report["missing_objects"]:
        yield f"object {key} is missing"
    yield from report["warnings"]


def _row(
    *,
    name: str,
    first: int,
    end: int,
    objects: int,
    local: bool,
    lost: Sequence[tuple[int, int]],
    unsaved: int,
    subscriptions: int,
) -> tuple[object, ...]:
    return (
        name,
        f"{first:,}",
        f"{end:,}",
        objects,
        subscriptions,
        "here" if local else "in the store",
        ", ".join(f"{low}-{high - 1}" for low, high in lost),
        f"{unsaved:,}" if unsaved else "",
    )
