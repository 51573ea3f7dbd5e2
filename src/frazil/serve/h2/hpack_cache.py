"""Reading header blocks: `hpack` behind a cache of whole blocks.

To decode even a short block costs ten times what the rest of a call does, and a client's calls
repeat one block. A block may be remembered only if reading it changed nothing in the table, and
any change of the table (by any block) makes all remembered ones wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import attrs
from hpack import Decoder, HPACKError, OversizedHeaderListError
from hpack.table import HeaderTable

from frazil.serve.h2.costs import HEADERS_COST_TIMES, REQUEST_COST_BYTES
from frazil.serve.h2.frames import ConnectionFailure, ErrorCode
from frazil.serve.h2.validation import Fields, request_problem

if TYPE_CHECKING:
    from frazil.serve.h2.limits import ServerLimits

Resolve = Callable[[Fields], object]
"""What the application makes of a request's headers, once for each block; raises nothing."""
Refuse = Callable[[], object]
"""What it makes of headers that are too large."""
_FIELD_BYTES: Final = 32
"""What a field counts beside its name and value (RFC 9113, section 6.5.2)."""


@attrs.frozen(eq=False)
class Head:
    """What a header block says.

    `problem` says why it is no request; only without one `target` (what the application made of
    it) and `content_length` (-1 if not given) mean something. Of one that `is_large` the fields are
    not kept, and the target is what the application refuses such requests with.
    """

    fields: Fields
    problem: str | None
    content_length: int
    target: object
    size: int = 0
    is_large: bool = False
    cost: int = REQUEST_COST_BYTES
    """What a stream with it costs: less if it is remembered, so that many streams have the same."""


class CountingTable(HeaderTable):
    """A table of `hpack` that counts what is added to it."""

    def __init__(self) -> None:
        super().__init__()
        self.additions = 0

    def add(self, name: bytes, value: bytes) -> None:
        self.additions += 1
        super().add(name, value)

    def state(self) -> tuple[int, int, int]:
        """Return a value that differs if the table was changed in between.

        Without an addition entries can only be lost, so their count tells it; an update of the
        size that takes nothing away and leaves the size as it was is no change.
        """
        return self.additions, self.maxsize, len(self.dynamic_entries)


class HeaderReader:
    """One connection's header blocks, in the order they arrive.

    `cache` may be asked directly by a caller that falls back to `read`.
    """

    def __init__(
        self, limits: ServerLimits, resolve: Resolve, refuse: Refuse = lambda: None
    ) -> None:
        self.cache: dict[bytes, Head] = {}
        self.work = 0
        """What reading has cost, about one a microsecond; whoever wants to know sets it back."""
        self._limits = limits
        self._resolve = resolve
        self._refuse = refuse
        self._table = CountingTable()
        most = max(limits.header_bytes_read_max, limits.header_bytes_max)
        self._decoder = Decoder(max_header_list_size=most)
        self._decoder.header_table = self._table

    def read(self, block: bytes) -> Head:
        """Return what a block says; the table changes as the block says.

        Raises:
            ConnectionFailure: It is not HPACK, or unpacks to more than is read.
        """
        known = self.cache.get(block)
        if known is not None:
            return known
        before = self._table.state()
        try:
            fields: Fields = tuple((n, v) for n, v in self._decoder.decode(block, raw=True))
        except OversizedHeaderListError as error:
            raise ConnectionFailure(
                ErrorCode.ENHANCE_YOUR_CALM, "header block too large"
            ) from error
        except HPACKError as error:
            raise ConnectionFailure(
                ErrorCode.COMPRESSION_ERROR, "unreadable header block"
            ) from error
        head = self._head(fields)
        self.work += 10 + 5 * len(fields) + len(block) // 3
        if self._table.state() != before:
            self.cache.clear()
        elif len(block) <= self._limits.cached_block_bytes_max:
            if len(self.cache) >= self._limits.cached_blocks_max:
                self.cache.clear()
            self.cache[block] = attrs.evolve(head, cost=REQUEST_COST_BYTES)
        return head

    def _head(self, fields: Fields) -> Head:
        problem, content_length = request_problem(fields)
        size = sum(len(name) + len(value) + _FIELD_BYTES for name, value in fields)
        if size > self._limits.header_bytes_max:
            return Head((), problem, content_length, self._refuse(), is_large=True)
        target = self._resolve(fields) if problem is None else None
        cost = REQUEST_COST_BYTES + HEADERS_COST_TIMES * size
        return Head(fields, problem, content_length, target, size, cost=cost)
