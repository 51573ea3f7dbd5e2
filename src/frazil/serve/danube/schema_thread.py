"""The thread that works on the schema registry, beside the loop: one thing after the other.

It is a daemon: whatever it is at, the process may end. (Threads of an executor are waited for at
the end of the process, for as long as it takes.)
"""

from __future__ import annotations

import asyncio
import threading
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from frazil.errors import FrazilError

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SchemaThread"]

NAME: Final = "frazil-schemas"
_Answer = TypeVar("_Answer")


class _Asked(NamedTuple):
    function: Callable[[], Any]
    answer: asyncio.Future[Any]


class SchemaThread:
    """Runs functions in the order in which they were asked for; starts with the first one.

    All methods belong to the event loop's thread.
    """

    def __init__(self) -> None:
        self._asked: SimpleQueue[_Asked | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    @property
    def is_running(self) -> bool:
        """Whether there is such a thread now."""
        return self._thread is not None

    def ask(self, function: Callable[[], _Answer]) -> asyncio.Future[_Answer]:
        """Return what will be the function's answer, or what it raises."""
        answer: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()
        self._asked.put(_Asked(function, answer))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=NAME, daemon=True)
            self._thread.start()
        return answer

    def close(self) -> None:
        """Let the thread end when it has done what it was asked for; nobody waits for that."""
        if self._thread is not None:
            self._asked.put(None)
            self._thread = None

    def _run(self) -> None:
        while (asked := self._asked.get()) is not None:
            try:
                found = asked.function()
            except FrazilError as error:
                _tell(asked.answer, None, error)
            except BaseException as error:
                # A bug of ours: told to who asked, and printed. The next question has a new thread.
                self._thread = None
                _tell(asked.answer, None, error)
                raise
            else:
                _tell(asked.answer, found, None)
            # Nothing of it is kept while the thread waits.
            found = asked = None


def _tell(answer: asyncio.Future[Any], found: object, error: BaseException | None) -> None:
    try:
        answer.get_loop().call_soon_threadsafe(_settle, answer, found, error)
    except RuntimeError:
        return  # The loop is closed: nobody waits any more.


def _settle(answer: asyncio.Future[Any], found: object, error: BaseException | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(found)
    else:
        answer.set_exception(error)
