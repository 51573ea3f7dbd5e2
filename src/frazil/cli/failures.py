"""The root of the commands: global options anywhere on the line, and errors as one line each."""

from __future__ import annotations

import os
import sys
import traceback
from typing import TYPE_CHECKING, Any, Final

import typer
from typer.core import TyperGroup

from frazil.errors import FrazilError, codes_of

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "EXIT_BROKEN_PIPE",
    "EXIT_INTERRUPTED",
    "RootGroup",
    "hoisted",
    "quiet_stdout",
    "report",
]

EXIT_INTERRUPTED: Final = 130
EXIT_BROKEN_PIPE: Final = 141
"""The exit codes that a shell reports for SIGINT and SIGPIPE."""

WITH_VALUE: Final = ("--data", "-d", "--config", "-c", "--set", "--output", "-o")
FLAGS: Final = ("--debug",)
OWN: Final = {"sql": ("-c",)}
"""Options with a value that mean something else to a command than they do before it."""


def hoisted(arguments: Sequence[str]) -> list[str]:
    """Return the arguments with the global options first.

    Arguments after `--` are left alone.
    """
    front: list[str] = []
    rest: list[str] = []
    waiting = list(arguments)
    while waiting:
        argument = waiting.pop(0)
        if argument in OWN.get(rest[0] if rest else "", ()):
            # With its value, which may look like an option.
            rest += [argument, *waiting[:1]]
            del waiting[:1]
            continue
        if argument == "--":
            rest += [argument, *waiting]
            break
        if argument in WITH_VALUE and waiting:
            front += [argument, waiting.pop(0)]
        elif argument in FLAGS or argument.startswith(tuple(f"{name}=" for name in WITH_VALUE)):
            front.append(argument)
        else:
            rest.append(argument)
    return front + rest


def report(error: BaseException, *, debug: bool) -> None:
    """Print an error as one line on stderr; with `debug` the traceback before it."""
    if debug:
        traceback.print_exception(error)
    if isinstance(error, FrazilError):
        typer.echo(f"error: {error}", err=True)
        return
    text = " ".join(str(error).split())
    typer.echo(
        f"error: {type(error).__name__}: {text} (this is a bug; --debug shows where)", err=True
    )


def quiet_stdout() -> None:
    """Discard the rest of stdout: its reader has closed the pipe, and Python would report it."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        return


class RootGroup(TyperGroup):
    """The root command: it turns errors into exit codes, by the table of `errors.py`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, hoisted(args))

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except FrazilError as error:
            report(error, debug=bool(ctx.params.get("debug")))
            raise typer.Exit(codes_of(error).exit) from None
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except BrokenPipeError:
            # `main` sees to it that Python does not complain about stdout at its end.
            raise typer.Exit(EXIT_BROKEN_PIPE) from None
