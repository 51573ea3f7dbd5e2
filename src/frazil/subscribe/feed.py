"""One topic as its subscriptions read it: live records at once, older ones in a worker thread.

What was decoded is kept for the next subscription, within a budget that all topics share. So a
record that many subscriptions follow is decoded once, and a subscription that is far behind reads
for itself without holding up the others.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right, insort
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Final

from frazil.errors import FrazilError, NotFound, Unavailable
from frazil.subscribe.record import Chunk, Record, chunk_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable
    from concurrent.futures import Executor

    from frazil.log import Piece
    from frazil.topic import TopicRuntime

__all__ = ["FeedCache", "Found", "TopicFeed"]

Found = Chunk | FrazilError
"""What came of a read."""

READ_BYTES: Final = 512 << 10
"""How much a worker thread reads and decodes at once."""
LIVE_BYTES: Final = 256 << 10
"""How much is read and decoded at once on the loop, which has others to serve."""
LIVE_RECORDS_MAX: Final = 2048
"""New records beyond so many are read in a worker thread, like old ones."""


class FeedCache:
    """Chunks of all feeds, the ones used last; the others are read again when they are needed."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.size_bytes = 0
        self._chunks: OrderedDict[Chunk, TopicFeed] = OrderedDict()

    def add(self, chunk: Chunk, feed: TopicFeed) -> None:
        """Take a chunk in, and let go of those used longest ago."""
        self._chunks[chunk] = feed
        self.size_bytes += chunk.size_bytes
        while self.size_bytes > self.bytes_max and len(self._chunks) > 1:
            oldest, owner = self._chunks.popitem(last=False)
            self.size_bytes -= oldest.size_bytes
            owner.forget(oldest)

    def use(self, chunk: Chunk) -> None:
        """Note that a chunk was used."""
        self._chunks.move_to_end(chunk)

    def drop(self, chunk: Chunk) -> None:
        """Let go of a chunk of a feed that ends."""
        if self._chunks.pop(chunk, None) is not None:
            self.size_bytes -= chunk.size_bytes


class TopicFeed:
    """The records of one topic. All methods belong to the loop's thread."""

    def __init__(
        self,
        runtime: TopicRuntime,
        cache: FeedCache,
        *,
        loop: asyncio.AbstractEventLoop,
        executor: Executor,
    ) -> None:
        self.runtime = runtime
        self._cache = cache
        self._loop = loop
        self._executor = executor
        self._chunks: dict[int, Chunk] = {}
        self._starts: list[int] = []
        self._reading: dict[int, list[Callable[[Found], None]]] = {}
        self._followers: list[Callable[[], None]] = []
        self._is_closed = False
        # Before the look at what is there: nothing that comes in between may stay unnoticed.
        runtime.state.followers += (self._tell,)
        self.head = runtime.state.visible
        """The offset behind the last record whose publisher has its answer."""
        self.decoded = 0
        """How many records were decoded; with n subscriptions at the head still one a record."""

    def get(self, offset: int) -> Chunk | None:
        """Return the chunk that has `offset` if it is decoded, or new enough to be at hand."""
        at = bisect_right(self._starts, offset) - 1
        if at >= 0:
            chunk = self._chunks[self._starts[at]]
            if offset < chunk.offset_next:
                self._cache.use(chunk)
                return chunk
        if 0 < self.head - offset <= LIVE_RECORDS_MAX:
            return self._read_live(offset)
        return None

    async def fetch(self, offset: int) -> Record | None:
        """Return one record from wherever it is, None if what was read says that there is none.

        Raises:
            NotFound: if it is not held any more, with `offset_first`.
            FrazilError: what else keeps it from being read, for now perhaps.
        """
        chunk = self.get(offset)
        if chunk is None:
            read: asyncio.Future[Found] = self._loop.create_future()
            self.request(offset, partial(_hand_over, read))
            # Not asked for again: the next thing that was read may have taken its room already.
            found = await read
            if isinstance(found, FrazilError):
                raise found
            chunk = found
        if not chunk.offset <= offset < chunk.offset_next:
            raise Unavailable(
                "the record is on its way from one tier to the next, try again",
                topic=self.runtime.name,
                offset=offset,
            )
        return chunk.record(offset)

    def request(self, offset: int, done: Callable[[Found], None]) -> None:
        """Read from `offset` on in a worker thread, then call `done` with what was read.

        `get` has it for a while. What was read is empty while records are on their way from one tier
        to the next. Where something else was met `done` gets that: `NotFound` with `offset_first`
        where nothing is held any more, `CorruptionError` with `offset_next` behind the damage.
        """
        waiting = self._reading.get(offset)
        if waiting is not None:
            waiting.append(done)
            return
        self._reading[offset] = [done]
        future = self._loop.run_in_executor(self._executor, self._read, offset)
        future.add_done_callback(partial(self._read_done, offset))

    def is_old(self, offset: int) -> bool:
        """Tell whether there is so much from `offset` on that whoever reads there catches up."""
        return self.head - offset > LIVE_RECORDS_MAX

    def prefetch(self, offset: int) -> None:
        """Begin to read from `offset` on, if that is not at hand: somebody will ask for it soon."""
        if self.is_old(offset) and offset not in self._reading and offset not in self._chunks:
            self.request(offset, _ignore)

    def follow(self, wake: Callable[[], None]) -> None:
        """Call `wake`, once, when there are more records, or when the topic ends."""
        self._followers.append(wake)

    def end_error(self) -> FrazilError | None:
        """Return why nothing more will come, None while the topic lives."""
        journal = self.runtime.log.journal
        if journal.closed or journal.failed is not None:
            return journal.closed_error()
        if self.runtime.state.spec.deleted_us:
            return NotFound("topic was deleted", topic=self.runtime.name)
        return None

    def forget(self, chunk: Chunk) -> None:
        """Drop a chunk that the cache let go."""
        if self._chunks.pop(chunk.offset, None) is not None:
            self._starts.remove(chunk.offset)
        # Subscriptions may keep records of it until they are acked, but not these bytes, too.
        for record in chunk.records:
            record.body, record.body_kind = b"", -1

    def close(self) -> None:
        """Let all go."""
        self._is_closed = True
        state = self.runtime.state
        state.followers = tuple(each for each in state.followers if each != self._tell)
        for chunk in self._chunks.values():
            self._cache.drop(chunk)
        self._chunks = {}
        self._starts = []

    # -- reading ---------------------------------------------------------------------------------

    def _read_live(self, offset: int) -> Chunk | None:
        """Read what was just written, from the log alone: it is still in the machine's memory."""
        source, topic = self.runtime.log.source, self.runtime.state.id
        if self.end_error() is not None:
            return None
        try:
            piece = source.read(topic, offset=offset, bytes_max=LIVE_BYTES)
        except FrazilError:
            # It moved to the disk tier, or is damaged: the way round finds out.
            return None
        if not piece.batches:
            return None
        chunk = self._decoded(piece, offset)
        self._add(chunk)
        return chunk

    def _read(self, offset: int) -> Chunk:
        """Read and decode in a worker thread, from wherever the records are."""
        runtime = self.runtime
        topic = runtime.state.id
        error = self.end_error()
        if error is not None:
            raise error
        piece = runtime.history.read(topic, offset=offset, bytes_max=READ_BYTES)
        return self._decoded(piece, offset)

    def _decoded(self, piece: Piece, offset: int) -> Chunk:
        runtime = self.runtime
        key = runtime.state.spec.primary_key
        return chunk_of(piece, offset=offset, is_message=runtime.is_message, primary_key=key)

    def _read_done(self, offset: int, future: asyncio.Future[Chunk]) -> None:
        waiting = self._reading.pop(offset)
        met = None if future.cancelled() else future.exception()
        found: Found
        if isinstance(met, FrazilError):
            found = met
        elif met is not None or future.cancelled():
            found = Unavailable("records could not be read", topic=self.runtime.name, cause=met)
        else:
            found = future.result()
            if found.offset_next > found.offset:
                self._add(found)
        for done in waiting:
            done(found)

    def _add(self, chunk: Chunk) -> None:
        self.decoded += len(chunk.records)
        if self._is_closed:
            return
        old = self._chunks.get(chunk.offset)
        if old is not None:
            self._cache.drop(old)
        else:
            insort(self._starts, chunk.offset)
        self._chunks[chunk.offset] = chunk
        self._cache.add(chunk, self)

    def _tell(self) -> None:
        """Pass news on to the loop; the journal's thread calls it behind the acks of what is new."""
        # The loop may be closed by then, and for the journal's thread an error is the end.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._news, self.runtime.state.visible)

    def _news(self, head: int) -> None:
        self.head = max(self.head, head)
        followers, self._followers = self._followers, []
        for wake in followers:
            wake()


def _hand_over(read: asyncio.Future[Found], found: Found) -> None:
    """Give what was read to whoever waits for it, if somebody still does."""
    if not read.done():
        read.set_result(found)


def _ignore(_found: Found) -> None:
    """Leave it to whoever asks for the same records."""
