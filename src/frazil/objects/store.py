"""What Frazil asks of an object store: few calls, each with one meaning on every kind of store.

Keys are relative to the configured root and have only the characters that Frazil puts into them.
All methods may be called from any thread and block until they are done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import Buffer

__all__ = ["LIST_KEYS_MAX", "PIECE_BYTES_MAX", "ObjectMeta", "ObjectStore"]

PIECE_BYTES_MAX: Final = 8 << 20
"""The most bytes of one upload that are in flight, and the size of its parts."""
LIST_KEYS_MAX: Final = 1_000


class ObjectMeta(NamedTuple):
    """What a store says of an object."""

    key: str
    size: int
    etag: str
    """The store's own mark of this content; empty if it has none."""
    modified_us: int


class ObjectStore(Protocol):
    """One root in one store.

    Every method raises `InvalidRequest` for a setting that the store refuses (credentials, bucket,
    endpoint; `setting` names it), and `Unavailable` for trouble that may pass, with
    `retry_after_ms` if the store asked for patience. A write that may have happened in spite of the
    error has `outcome="unknown"`: look before writing again.
    """

    def put(self, key: str, data: Buffer) -> ObjectMeta:
        """Create an object of at most `PIECE_BYTES_MAX`; nothing is ever replaced.

        Raises:
            Conflict: there is an object of this key, perhaps from an earlier try of this very call.
        """

    def put_stream(self, key: str, pieces: Iterable[Buffer], *, size: int) -> ObjectMeta:
        """Write an object of `size` bytes from pieces; it is there whole or not at all.

        At most `PIECE_BYTES_MAX` of it are in flight. An object of the same key is replaced: large
        objects have their content's hash in their key.
        """

    def get(self, key: str, *, start: int, length: int) -> bytes:
        """Return the bytes `[start, start + length)`.

        Raises:
            NotFound: there is no such object, or it ends before.
        """

    def head(self, key: str) -> ObjectMeta | None:
        """Return what there is under a key, None if nothing is."""

    def list(self, prefix: str, *, after: str = "", limit: int = LIST_KEYS_MAX) -> list[ObjectMeta]:
        """Return objects whose keys start with `prefix`, sorted, from the first one behind `after`.

        What was written a moment ago may be missing; an empty page is the end.
        """

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; absent ones are fine."""

    def close(self) -> None:
        """Let connections go."""
