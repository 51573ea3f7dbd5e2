"""The session of all commands: global options, settings and an open engine."""

from __future__ import annotations

import contextlib
import os.path
import sys
from typing import TYPE_CHECKING, Annotated, Literal

import attrs
import typer

from frazil.cli.output import note, print_json, print_table
from frazil.config import Settings, load_settings, parse_assignments
from frazil.engine import Engine, open_engine
from frazil.errors import NotFound
from frazil.log import DataDirectory
from frazil.telemetry import configure

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = [
    "Output",
    "Session",
    "TopicFilter",
    "TopicName",
    "Yes",
    "log_to_stderr",
    "session_of",
]

Output = Literal["table", "json"]
TopicName = Annotated[str, typer.Argument(help="The topic: name or /namespace/name.")]
TopicFilter = Annotated[str | None, typer.Argument(help="One topic; all topics without it.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


@attrs.frozen
class Session:
    """The global options of one call of `frazil`."""

    data: str | None = None
    config: str | None = None
    assignments: tuple[str, ...] = ()
    output: Output = "table"

    @property
    def as_json(self) -> bool:
        """Return whether results are written as JSON."""
        return self.output == "json"

    def settings(self, **overrides: object) -> Settings:
        """Load the settings; `--data` overrides assignments, `overrides` override all others."""
        given = parse_assignments(self.assignments)
        if self.data is not None:
            given["data_dir"] = self.data
        return load_settings(file=self.config, overrides=given | overrides)

    def paths(self) -> DataDirectory:
        """Return the data directory, which may not exist."""
        return DataDirectory(os.path.abspath(self.settings().data_dir))

    @contextlib.contextmanager
    def engine(self, *, create: bool = False, lake: bool = False) -> Iterator[Engine]:
        """Open the data directory; its warnings go to stderr.

        Without `lake` the catalog and Spark are started only if the command needs them.

        Raises:
            NotFound: if there is no data and `create` is False: reading creates no directories.
        """
        settings = self.settings()
        if not create and not os.path.exists(os.path.abspath(settings.data_dir)):
            raise NotFound(
                "there is no data directory, choose one with --data or publish to it first",
                path=settings.data_dir,
            )
        log_to_stderr(settings)
        with open_engine(settings) as engine:
            engine.lake.by_itself = lake
            for warning in engine.warnings:
                note(f"warning: {warning}")
            yield engine

    def show(self, value: object, text: str) -> None:
        """Print a result: `value` as JSON, or `text` for people."""
        if self.as_json:
            print_json(value)
        else:
            typer.echo(text)

    def table(self, value: object, names: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Print a result: `value` as JSON, or rows under column names for people."""
        if self.as_json:
            print_json(value)
        else:
            print_table(names, rows)


def log_to_stderr(settings: Settings) -> None:
    """Write events to stderr, in the format and level of the settings."""
    telemetry = settings.telemetry
    configure(sys.stderr, log_level=telemetry.log_level, log_format=telemetry.log_format)


def session_of(context: typer.Context) -> Session:
    """Return the session of a command's context."""
    session = context.find_root().obj
    assert isinstance(session, Session)
    return session
