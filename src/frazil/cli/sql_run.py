"""Run one statement and print what it gives; Ctrl-C cancels the query."""

from __future__ import annotations

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, Final

import attrs
import typer

from frazil.cli.output import print_json, to_json, write_out
from frazil.cli.sql_output import SqlFormat, explain_lines, write_batches
from frazil.cli.sql_text import explained
from frazil.errors import FrazilError, InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Callable

    from frazil.engine import Engine

__all__ = ["Look", "run_statement"]

CANCEL_AGAIN_S: Final = 0.05


@attrs.frozen
class Look:
    """What all statements of a call share: parameters, the moment they look at, the time they have."""

    params: dict[str, Any] | None = None
    as_of_offset: int | None = None
    as_of_time: Any = None
    timeout_s: float | None = None


def run_statement(engine: Engine, sql: str, look: Look, file_format: SqlFormat) -> int:
    """Run a statement and print its rows; return how many. EXPLAIN tells what would be read.

    Raises:
        KeyboardInterrupt: after Ctrl-C, when the query is over.
    """
    inner = explained(sql)
    if inner is None:
        return _interruptible(engine, lambda go_on: _query(engine, sql, look, file_format, go_on))
    if file_format not in {"table", "json", "ndjson"}:
        raise InvalidRequest("EXPLAIN is printed as table, json or ndjson", format=file_format)
    return _interruptible(engine, lambda _go_on: _explain(engine, inner, look, file_format))


def _query(
    engine: Engine, sql: str, look: Look, file_format: SqlFormat, go_on: Callable[[], bool]
) -> int:
    with engine.query(
        sql,
        look.params,
        as_of_offset=look.as_of_offset,
        as_of_time=look.as_of_time,
        timeout_s=look.timeout_s,
    ) as result:
        return write_batches(result.schema, result.batches(), file_format, go_on=go_on)


def _explain(engine: Engine, sql: str, look: Look, file_format: SqlFormat) -> int:
    found = engine.explain(sql, look.params)
    if file_format == "json":
        print_json(found)
    elif file_format == "ndjson":
        write_out(to_json(found) + "\n")
    else:
        for line in explain_lines(found):
            typer.echo(line)
    return 0


def _interruptible(engine: Engine, work: Callable[[Callable[[], bool]], int]) -> int:
    """Do the work in a thread, so that this one can take Ctrl-C while the query runs."""
    stop = threading.Event()
    with ThreadPoolExecutor(1, thread_name_prefix="frazil-sql") as pool:
        future = pool.submit(work, lambda: not stop.is_set())
        try:
            return future.result()
        except KeyboardInterrupt:
            stop.set()
            # Again and again: the first may come before the query has begun.
            while not future.done():
                engine.cancel_queries()
                wait([future], CANCEL_AGAIN_S)
            # That it was cancelled is what the user asked for.
            with contextlib.suppress(FrazilError):
                future.result()
            raise
