"""`frazil backup`: upload what is durable and back the metadata up, of a running broker too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.output import size_text
from frazil.cli.running_broker import broker_behind
from frazil.cli.session import session_of
from frazil.engine import MakeBackup
from frazil.errors import Conflict
from frazil.fs import RealFileSystem

if TYPE_CHECKING:
    from frazil.cli.session import Session
    from frazil.engine import Call

__all__ = ["Token", "backup", "perform"]

Token = Annotated[
    str | None,
    typer.Option(
        "--token", envvar="FRAZIL_TOKEN", help="The token of a broker with authentication."
    ),
]


def backup(
    context: typer.Context,
    flush: Annotated[  # noqa: FBT002 - a flag
        bool, typer.Option("--flush/--no-flush", help="Upload what is durable first.")
    ] = True,
    token: Token = None,
) -> None:
    """Upload what is durable and back the metadata up to the object store, now."""
    session = session_of(context)
    found = perform(session, MakeBackup(flush=flush), token)
    text = (
        f"backup {found['key']} ({size_text(found['bytes'])}) has {found['topics']:,} topics and "
        f"{found['objects']:,} objects"
    )
    session.show(found, text)


def perform(session: Session, call: Call, token: str | None) -> Any:
    """Do it here, or have the broker do it that has the directory open."""
    from frazil.serve.announcing import announced

    try:
        with session.engine() as engine:
            return call.perform(engine)
    except Conflict as conflict:
        broker = broker_behind(conflict, announced(RealFileSystem(), session.paths()))
        if broker is None:
            raise
    return broker.call(call, token=token)
