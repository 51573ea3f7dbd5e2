"""Pieces of an upload that are as many bytes as was said, or the upload is not completed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from frazil.errors import InvalidRequest
from frazil.objects.store import PIECE_BYTES_MAX

if TYPE_CHECKING:
    from typing_extensions import Buffer

__all__ = ["CountedPieces"]


class CountedPieces:
    """Pieces on their way to a client, counted.

    Attributes:
        failure: what their maker raised, or what was wrong with them: the client hides it.
    """

    def __init__(self, pieces: Iterable[Buffer], *, key: str, size: int) -> None:
        self._pieces = pieces
        self._key = key
        self._size = size
        self.failure: BaseException | None = None

    def __iter__(self) -> Iterator[Buffer]:
        try:
            yield from self._checked()
        except GeneratorExit:
            raise
        except BaseException as error:
            self.failure = error
            raise

    def _checked(self) -> Iterator[Buffer]:
        sent = 0
        for piece in self._pieces:
            length = memoryview(piece).nbytes
            if length > PIECE_BYTES_MAX:
                raise InvalidRequest("piece is too large", key=self._key, size=length)
            sent += length
            if sent > self._size:
                break
            yield piece
        if sent != self._size:
            # Raised while the client waits for more: it can not complete the object.
            raise InvalidRequest(
                "pieces have another size", key=self._key, size=self._size, found=sent
            )
