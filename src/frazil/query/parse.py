"""SQL text to its syntax tree and back, by DuckDB's own parser.

The tree is the JSON of `json_serialize_sql`: plain dictionaries and lists, whose shape belongs to
one version of DuckDB. Parsing runs in an instance of its own that has one thread, no data and no
access to anything; all engines of a process share it, as a new one costs more than most queries.
"""

from __future__ import annotations

import functools
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import msgspec

from frazil.errors import InvalidRequest
from frazil.query.lockdown import connect_locked

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

__all__ = ["Node", "Parser", "checked_text"]

Node = dict[str, Any]
"""One node of the syntax tree."""

SQL_CHARACTERS_MAX: Final = 1_000_000
_decode: Final = msgspec.json.Decoder(Node).decode
_encode: Final = msgspec.json.Encoder().encode


_making: Final = threading.Lock()


@functools.cache
def _made() -> duckdb.DuckDBPyConnection:
    return connect_locked(threads=1, memory_bytes=256 << 20)


def _instance() -> duckdb.DuckDBPyConnection:
    with _making:
        return _made()


class Parser:
    """Parses statements; all methods may be called from any thread."""

    def __init__(self) -> None:
        self._instance = _instance()
        self._idle: deque[duckdb.DuckDBPyConnection] = deque()

    def parse(self, sql: str) -> Node:
        """Return the one statement of `sql`.

        Raises:
            InvalidRequest: if it is not one statement that reads.
        """
        text = self._ask("SELECT json_serialize_sql($1::VARCHAR)", checked_text(sql))
        try:
            answer = _decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidRequest("statement cannot be parsed, make it simpler") from error
        if answer["error"]:
            raise _refusal(answer, sql)
        statements = answer["statements"]
        if len(statements) != 1:
            raise InvalidRequest("give exactly one statement", statements=len(statements))
        statement: Node = statements[0]
        return statement

    def text(self, statement: Node) -> str:
        """Return the SQL text of a statement's tree."""
        answer = _encode({"error": False, "statements": [statement]}).decode()
        return self._ask("SELECT json_deserialize_sql($1::JSON)", answer)

    def schema(self, query: str) -> pa.Schema:
        """Return the columns that a query without tables gives, as DuckDB hands them out."""
        connection = self._connection()
        try:
            return connection.execute(query).to_arrow_reader().schema
        finally:
            self._idle.append(connection)

    def close(self) -> None:
        """Close the connections; nothing is parsed any more."""
        while self._idle:
            self._idle.pop().close()

    def _ask(self, question: str, value: str) -> str:
        import duckdb

        connection = self._connection()
        try:
            row = connection.execute(question, [value]).fetchone()
        except duckdb.Error as error:
            raise InvalidRequest("statement cannot be parsed", reason=str(error)) from error
        finally:
            self._idle.append(connection)
        assert row is not None
        return str(row[0])

    def _connection(self) -> duckdb.DuckDBPyConnection:
        try:
            return self._idle.pop()
        except IndexError:
            return self._instance.cursor()


def checked_text(sql: object) -> str:
    """Return the text of a statement.

    Raises:
        InvalidRequest: if it is no text, or too long.
    """
    if not isinstance(sql, str):
        raise InvalidRequest("sql must be text", got=type(sql).__name__)
    if len(sql) > SQL_CHARACTERS_MAX:
        raise InvalidRequest("sql is too long", characters_max=SQL_CHARACTERS_MAX)
    try:
        sql.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("sql must be valid text") from None
    return sql


def _refusal(answer: Node, sql: str) -> InvalidRequest:
    message = str(answer.get("error_message", ""))
    if answer.get("error_type") != "not implemented":
        return InvalidRequest(message, position=answer.get("position", "?"))
    if "Only SELECT" not in message:
        return InvalidRequest(message)
    lowered = sql.lower()
    if lowered.lstrip().startswith("explain"):
        return InvalidRequest("give the statement without EXPLAIN to explain()")
    if "pivot" in lowered:
        return InvalidRequest("PIVOT must list its values: PIVOT t ON column IN (...) USING ...")
    return InvalidRequest(
        "only a statement that reads is allowed: SELECT, FROM, VALUES, WITH, DESCRIBE, SHOW TABLES"
        " or SUMMARIZE"
    )
