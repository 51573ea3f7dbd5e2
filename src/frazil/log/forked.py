"""After a fork: the child must not touch the files of its parent."""

from __future__ import annotations

import os
import weakref
from typing import Final, Protocol

from frazil.errors import Closed


class Stoppable(Protocol):
    """Something that refuses all work once `failed` is set."""

    failed: BaseException | None


_WATCHED: Final[weakref.WeakSet[Stoppable]] = weakref.WeakSet()


def watch(owner: Stoppable) -> None:
    """Stop `owner` in every child that this process forks from now on."""
    _WATCHED.add(owner)


def _leave_to_the_parent() -> None:
    for owner in list(_WATCHED):
        owner.failed = Closed(
            "the engine was opened before a fork, open the directory again in this process"
        )


os.register_at_fork(after_in_child=_leave_to_the_parent)
