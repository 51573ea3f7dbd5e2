"""`frazil sql`: one read statement, several from stdin, or a shell on a terminal."""

from __future__ import annotations

import importlib.util
import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.read import parse_start
from frazil.cli.session import session_of
from frazil.cli.sql_output import SINGLE, SqlFormat, check_format
from frazil.cli.sql_run import Look, run_statement
from frazil.cli.sql_text import parse_meta, split_statements
from frazil.cli.sql_topics import print_meta
from frazil.clock import SystemClock
from frazil.errors import InvalidRequest
from frazil.units import parse_duration_s

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["parse_params", "sql"]


def sql(
    context: typer.Context,
    command: Annotated[
        str | None,
        typer.Option(
            "--command", "-c", help="Run this and end; `;` separates several. \\d lists topics."
        ),
    ] = None,
    file_format: Annotated[
        SqlFormat | None,
        typer.Option("--format", "-f", help="How to print; table without it, json with -o json."),
    ] = None,
    params: Annotated[
        list[str] | None,
        typer.Option("--param", "-p", help="A value for $name as name=value; may be repeated."),
    ] = None,
    as_of_offset: Annotated[
        int | None, typer.Option("--as-of-offset", min=0, help="As it was before this offset.")
    ] = None,
    as_of_time: Annotated[
        str | None, typer.Option("--as-of-time", help="As it was then: an ISO 8601 time, or -5m.")
    ] = None,
    timeout: Annotated[
        str | None, typer.Option("--timeout", help="At most so long for each statement: 30s.")
    ] = None,
) -> None:
    """Query topics with SQL: -c, statements on stdin, or a shell if stdin is a terminal."""
    session = session_of(context)
    look = Look(
        params=parse_params(params),
        as_of_offset=as_of_offset,
        as_of_time=None if as_of_time is None else _moment(as_of_time),
        timeout_s=None if timeout is None else parse_duration_s(timeout),
    )
    chosen = check_format(file_format or ("json" if session.as_json else "table"))
    is_shell = command is None and sys.stdin.isatty()
    require_extra("prompt_toolkit" if is_shell else "duckdb", "duckdb")
    if is_shell:
        from frazil.cli.sql_shell import run_shell

        with session.engine() as engine:
            run_shell(engine, look, chosen)
        return
    text = sys.stdin.read() if command is None else command
    meta = parse_meta(text)
    if meta is not None:
        with session.engine() as engine:
            print_meta(engine, meta, chosen)
        return
    found = split_statements(text)
    statements = [*found.statements, *filter(None, [found.rest])]
    if not statements:
        raise InvalidRequest("there is no statement to run, give one with -c or on stdin")
    if chosen in SINGLE and len(statements) > 1:
        raise InvalidRequest(
            "this format is one document for one statement, choose ndjson, csv or table",
            format=chosen,
            statements=len(statements),
        )
    with session.engine() as engine:
        for statement in statements:
            run_statement(engine, statement, look, chosen)


def require_extra(*modules: str) -> None:
    """Check that the modules of the extra `query` are installed.

    Raises:
        InvalidRequest: with the command that installs them.
    """
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise InvalidRequest(
                "SQL needs more packages, install them with: pip install frazil[query]",
                missing=module,
            )


def parse_params(texts: Sequence[str] | None) -> dict[str, Any] | None:
    """Return the values of `--param`: JSON numbers, true, false, null and "texts"; else the text.

    Raises:
        InvalidRequest: if one is not name=value, or a name comes twice.
    """
    found: dict[str, Any] = {}
    for text in texts or ():
        name, sign, value = text.partition("=")
        name = name.strip().removeprefix("$")
        if not sign or not name:
            raise InvalidRequest("--param takes name=value", got=text)
        if name in found:
            raise InvalidRequest("--param comes twice", name=name)
        found[name] = _value(value)
    return found or None


def _value(text: str) -> object:
    try:
        found = json.loads(text, parse_constant=_refuse)
    except ValueError:
        return text
    return text if isinstance(found, (list, dict)) else found


def _refuse(name: str) -> object:
    raise ValueError(name)


def _moment(text: str) -> object:
    found = parse_start(text, now_us=SystemClock().now_us())
    if isinstance(found, (str, int)):
        raise InvalidRequest("--as-of-time takes an ISO 8601 time or a span such as -5m", got=text)
    return found
