"""`frazil sql`: one read statement, several from stdin, or a shell on a terminal."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import re
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer
import yaml

from frazil.cli.batches import SINGLE, BatchFormat, BatchWriter, check_format
from frazil.cli.output import plain, print_json, to_json, write_out
from frazil.cli.read import parse_start
from frazil.cli.session import session_of
from frazil.clock import SystemClock
from frazil.errors import FrazilError, InvalidRequest
from frazil.units import parse_duration_s

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from frazil.engine import Engine

__all__ = [
    "KEYWORDS",
    "Options",
    "explained",
    "is_finished",
    "parse_params",
    "run_statement",
    "split_statements",
    "sql",
]

_T = TypeVar("_T")
Options = dict[str, Any]
"""Keyword arguments of `Engine.query` that all statements of a call share."""
CANCEL_AGAIN_S: Final = 0.05
_EXPLAIN: Final = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/)*explain(?:\s+analyze)?\b\s+", re.IGNORECASE | re.DOTALL
)
_WORDS: Final = """
ALL AND AS ASC BETWEEN BY CASE CAST COUNT CROSS DESC DESCRIBE DISTINCT ELSE END EXCEPT EXISTS
EXPLAIN FALSE FILTER FROM FULL GROUP HAVING ILIKE IN INNER INTERSECT INTERVAL IS JOIN LEFT LIKE
LIMIT NOT NULL OFFSET ON OR ORDER OUTER OVER PARTITION QUALIFY RECURSIVE RIGHT SELECT SHOW TABLES
THEN TRUE UNION UNNEST USING VALUES WHEN WHERE WINDOW WITH
"""
KEYWORDS: Final = tuple(_WORDS.split())


def sql(
    context: typer.Context,
    command: Annotated[
        str | None,
        typer.Option(
            "--command", "-c", help="Run this and end; `;` separates several. \\d lists topics."
        ),
    ] = None,
    file_format: Annotated[
        BatchFormat | None,
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
    options: Options = {
        "params": parse_params(params),
        "as_of_offset": as_of_offset,
        "as_of_time": None if as_of_time is None else _moment(as_of_time),
        "timeout_s": None if timeout is None else parse_duration_s(timeout),
    }
    chosen = check_format(file_format or ("json" if session.as_json else "table"))
    _require("duckdb")
    if command is None and sys.stdin.isatty():
        _require("prompt_toolkit")
        from frazil.cli.sql_shell import run_shell

        with session.engine() as engine:
            run_shell(engine, options, chosen)
        return
    statements = _checked(sys.stdin.read() if command is None else command, chosen)
    with session.engine() as engine:
        for statement in statements:
            run_statement(engine, statement, options, chosen)


def _checked(text: str, file_format: BatchFormat) -> list[str]:
    """Return the statements of a text, at least one, and one alone if the format is a document."""
    statements = split_statements(text)
    if not statements:
        raise InvalidRequest("there is no statement to run, give one with -c or on stdin")
    if file_format in SINGLE and len(statements) > 1:
        raise InvalidRequest(
            "this format is one document for one statement, choose ndjson, csv or table",
            format=file_format,
            statements=len(statements),
        )
    return statements


def _require(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise InvalidRequest(
            "SQL needs more packages, install them with: pip install frazil[query]", missing=module
        )


# -- statements ----------------------------------------------------------------------------------


def split_statements(text: str) -> list[str]:
    r"""Return the statements of a text. One with a syntax error stays whole: its error is shown.

    `\d` means `SHOW TABLES`, `\d TOPIC` means `DESCRIBE TOPIC`.
    """
    import duckdb

    command, _, topic = text.strip().removesuffix(";").partition(" ")
    if command == "\\d":
        return [f"DESCRIBE {topic}" if topic.strip() else "SHOW TABLES"]
    try:
        found = duckdb.extract_statements(text)
    except duckdb.Error:
        return [text]
    return [statement.query.strip().removesuffix(";").strip() for statement in found]


def is_finished(text: str) -> bool:
    """Return whether Enter runs the text: a shell command, nothing, or statements up to a `;`."""
    import duckdb

    text = text.strip()
    if not text or text.startswith("\\"):
        return True
    try:
        return not duckdb.extract_statements(text) or text.endswith(";")
    except duckdb.Error as error:
        # An open quote or comment needs more lines; the statement reports any other error.
        return text.endswith(";") and "unterminated" not in str(error)


def explained(statement: str) -> str | None:
    """Return the statement that an EXPLAIN is about; None if it is another statement."""
    found = _EXPLAIN.match(statement)
    return None if found is None else statement[found.end() :]


def run_statement(engine: Engine, text: str, options: Options, file_format: BatchFormat) -> int:
    """Run a statement, print its rows and return their number. EXPLAIN prints the plan.

    Raises:
        KeyboardInterrupt: after Ctrl-C, when the query has ended.
    """
    inner = explained(text)
    if inner is None:
        return _interruptible(
            engine, lambda go_on: _query(engine, text, options, file_format, go_on)
        )
    if file_format not in {"table", "json", "ndjson"}:
        raise InvalidRequest("EXPLAIN is printed as table, json or ndjson", format=file_format)
    found = _interruptible(engine, lambda _go_on: engine.explain(inner, options["params"]))
    if file_format == "json":
        print_json(found)
    elif file_format == "ndjson":
        write_out(to_json(found) + "\n")
    else:
        plan = found.pop("plan")
        facts = yaml.safe_dump(plain(found), sort_keys=False, allow_unicode=True)
        write_out(f"{facts}{plan}\n")
    return 0


def _query(
    engine: Engine,
    text: str,
    options: Options,
    file_format: BatchFormat,
    go_on: Callable[[], bool],
) -> int:
    with engine.query(text, **options) as result:
        with contextlib.closing(BatchWriter(file_format, result.schema)) as writer:
            for batch in result.batches():
                if not go_on():
                    break
                writer.write(batch, go_on=go_on)
        return writer.rows


def _interruptible(engine: Engine, work: Callable[[Callable[[], bool]], _T]) -> _T:
    """Do the work in a thread, so that this one can take Ctrl-C while the query runs."""
    stop = threading.Event()
    with ThreadPoolExecutor(1, thread_name_prefix="frazil-sql") as pool:
        future = pool.submit(work, lambda: not stop.is_set())
        try:
            return future.result()
        except KeyboardInterrupt:
            stop.set()
            # The first cancel may precede the start of the query.
            while not future.done():
                engine.cancel_queries()
                wait([future], CANCEL_AGAIN_S)
            # The user requested the cancellation: it is not an error.
            with contextlib.suppress(FrazilError):
                future.result()
            raise


# -- options -------------------------------------------------------------------------------------


def parse_params(texts: Sequence[str] | None) -> dict[str, Any] | None:
    """Return the values of `--param`: JSON numbers, true, false, null and "texts"; else the text.

    Raises:
        InvalidRequest: if one is not name=value, or a name is repeated.
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
