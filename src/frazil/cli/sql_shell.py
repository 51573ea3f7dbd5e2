"""The SQL shell: history, completion, several lines, and a few commands of its own."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

import attrs
import typer
from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import Completer, Completion
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from frazil.cli.failures import report
from frazil.cli.output import note
from frazil.cli.sql_output import SqlFormat, check_format
from frazil.cli.sql_run import Look, run_statement
from frazil.cli.sql_text import Meta, is_finished, parse_meta, split_statements
from frazil.cli.sql_topics import SYSTEM_COLUMNS, print_meta
from frazil.cli.sql_words import table_name, words_for
from frazil.engine import Engine
from frazil.errors import FrazilError
from frazil.fs import RealFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

__all__ = ["Shell", "TopicCompleter", "history_path", "run_shell"]

PROMPT: Final = "frazil> "
PROMPT_MORE: Final = "   ...> "
HELP: Final = """\
a statement ends with ;  and may have several lines
\\d            list topics            \\d TOPIC      describe one
\\f FORMAT     table, csv, (nd)json   \\timing       show times, or stop it
\\h            this help              \\q            leave (Ctrl-D too)
EXPLAIN SELECT ...;                  tells which tiers and files are read
Ctrl-C cancels the running query"""


def run_shell(engine: Engine, look: Look, file_format: SqlFormat) -> None:
    """Read statements from the terminal and run them until the user leaves."""
    shell = Shell(engine, look, file_format)
    session: PromptSession[str] = PromptSession(
        history=_history(history_path(os.environ)),
        completer=TopicCompleter(shell.tables),
        complete_while_typing=False,
        auto_suggest=AutoSuggestFromHistory(),
        multiline=Condition(lambda: not is_finished(get_app().current_buffer.text)),
        prompt_continuation=PROMPT_MORE,
        enable_history_search=False,
    )
    typer.echo(f"{engine.paths.root}: \\h for help, \\q to leave")
    while True:
        try:
            text = session.prompt(PROMPT)
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if not shell.take(text):
            return


def history_path(environment: Mapping[str, str]) -> str:
    """Return the file of the history in the user's directory for state."""
    state = environment.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):
        state = os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(state, "frazil", "sql_history")


def _history(path: str) -> History:
    """Open the history; what was typed may be private, so only its owner can read it."""
    directory = os.path.dirname(path)
    file_system = RealFileSystem()
    try:
        for place in (os.path.dirname(directory), directory):
            if file_system.stat(place) is None:
                file_system.make_directory(place)
        if file_system.stat(path) is None:
            file_system.open(path, "create").close()
        os.chmod(path, 0o600)
    except OSError as error:
        note(f"warning: there is no history, its file cannot be made: {error}")
        return InMemoryHistory()
    return FileHistory(path)


class TopicCompleter(Completer):
    """Completes topics, columns and keywords, as `words_for` says."""

    def __init__(self, tables: Callable[[], Mapping[str, Sequence[str]]]) -> None:
        self._tables = tables

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        del complete_event
        typed, words = words_for(
            document.text_before_cursor, self._tables(), after=document.text_after_cursor
        )
        for word in words:
            yield Completion(word.text, start_position=-len(typed), display_meta=word.kind)


@attrs.define
class Shell:
    """The state of a shell, and what each input does to it."""

    engine: Engine
    look: Look = attrs.Factory(Look)
    file_format: SqlFormat = "table"
    is_timing: bool = True

    def take(self, text: str) -> bool:
        """Run what was typed; return False if it ends the shell. Errors are one line each."""
        meta = parse_meta(text)
        try:
            if meta is not None:
                return self._meta(meta)
            for statement in split_statements(text).statements:
                self._run(statement)
        except FrazilError as error:
            report(error, debug=False)
        except KeyboardInterrupt:
            note("cancelled")
        return True

    def tables(self) -> dict[str, list[str]]:
        """Return the columns of all topics by their names in SQL."""
        return {
            table_name(name): [*self.engine.topic(name).schema.names, *SYSTEM_COLUMNS]
            for name in self.engine.topics()
        }

    def _run(self, statement: str) -> None:
        begin = time.perf_counter()
        rows = run_statement(self.engine, statement, self.look, self.file_format)
        taken = f", {(time.perf_counter() - begin) * 1e3:.1f} ms" if self.is_timing else ""
        note(f"{rows:,} row{'' if rows == 1 else 's'}{taken}")

    def _meta(self, meta: Meta) -> bool:
        if meta.name in {"q", "quit"}:
            return False
        if meta.name == "d":
            print_meta(self.engine, meta, "table")
        elif meta.name == "timing":
            self.is_timing = not self.is_timing
            note(f"timing is {'on' if self.is_timing else 'off'}")
        elif meta.name == "f":
            if meta.argument:
                self.file_format = check_format(meta.argument)
            note(f"format is {self.file_format}")
        else:
            typer.echo(HELP if meta.name in {"h", "?"} else f"no command \\{meta.name}\n{HELP}")
        return True
