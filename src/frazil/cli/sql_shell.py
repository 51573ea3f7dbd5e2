"""The SQL shell: history, completion, statements of several lines, and a few commands."""

from __future__ import annotations

import contextlib
import os
import re
import time
from typing import TYPE_CHECKING, Final

import attrs
import typer
from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.filters import Condition
from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from frazil.cli.batches import BatchFormat, check_format
from frazil.cli.failures import report
from frazil.cli.output import note
from frazil.cli.sql import (
    KEYWORDS,
    Options,
    is_finished,
    run_statement,
    split_statements,
)
from frazil.engine import Engine
from frazil.errors import FrazilError
from frazil.fs import RealFileSystem

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Shell", "history_path", "run_shell"]

WORD: Final = re.compile(r"[\w\".$]+")
PROMPT: Final = "frazil> "
PROMPT_MORE: Final = "   ...> "
HELP: Final = """\
a statement ends with ;  and may have several lines
\\d            list topics            \\d TOPIC      describe one
\\f FORMAT     table, csv, (nd)json   \\timing       show or hide times
\\h            this help              \\q            leave (Ctrl-D too)
EXPLAIN SELECT ...;                  shows which tiers and files are read
Ctrl-C cancels the running query"""


def run_shell(engine: Engine, options: Options, file_format: BatchFormat) -> None:
    """Read statements from the terminal and run them until the user leaves."""
    shell = Shell(engine, options, file_format)
    session: PromptSession[str] = PromptSession(
        history=_history(history_path(os.environ)),
        completer=WordCompleter(shell.words, ignore_case=True, pattern=WORD),
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
    """Open the history; statements may be private, so only their owner can read it."""
    file_system = RealFileSystem()
    try:
        file_system.make_directory(os.path.dirname(path))
        with contextlib.suppress(FileExistsError):
            file_system.open(path, "create").close()
        os.chmod(path, 0o600)
    except OSError as error:
        note(f"warning: there is no history, its file cannot be made: {error}")
        return InMemoryHistory()
    return FileHistory(path)


@attrs.define
class Shell:
    """The state of a shell, and the effect of each input."""

    engine: Engine
    options: Options
    file_format: BatchFormat = "table"
    is_timing: bool = True

    def take(self, text: str) -> bool:
        """Run the input; return False if it ends the shell. Errors are one line each."""
        text = text.strip()
        try:
            if text.startswith("\\") and not text.startswith("\\d"):
                name, _, argument = text[1:].removesuffix(";").partition(" ")
                return self._command(name, argument.strip())
            for statement in split_statements(text):
                self._run(statement)
        except FrazilError as error:
            report(error, debug=False)
        except KeyboardInterrupt:
            note("cancelled")
        return True

    def words(self) -> list[str]:
        """Return what Tab completes: topics, their columns, keywords."""
        words = [*KEYWORDS, "_offset", "_time"]
        for name in self.engine.topics():
            words += [name.removeprefix("/default/").strip("/").replace("/", ".")]
            words += self.engine.topic(name).schema.names
        return words

    def _run(self, statement: str) -> None:
        begin = time.perf_counter()
        rows = run_statement(self.engine, statement, self.options, self.file_format)
        taken = f", {(time.perf_counter() - begin) * 1e3:.1f} ms" if self.is_timing else ""
        note(f"{rows:,} row{'' if rows == 1 else 's'}{taken}")

    def _command(self, name: str, argument: str) -> bool:
        if name in {"q", "quit"}:
            return False
        if name == "timing":
            self.is_timing = not self.is_timing
            note(f"timing is {'on' if self.is_timing else 'off'}")
        elif name == "f":
            if argument:
                self.file_format = check_format(argument)
            note(f"format is {self.file_format}")
        else:
            typer.echo(HELP if name in {"h", "?"} else f"no command \\{name}\n{HELP}")
        return True
