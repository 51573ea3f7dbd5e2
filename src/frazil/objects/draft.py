"""An object that is about to be written: heads are hashed first, then the frames are sent.

Every frame is verified as it is sent, and whatever is not as its head said is noticed before the
last piece is given: an object whose content is not what its key says never becomes whole.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import attrs

from frazil.errors import CorruptionError
from frazil.model import topic_uid
from frazil.objects import format as fmt
from frazil.objects.descriptor import Descriptor, Intent, descriptor_of
from frazil.objects.frame_run import FrameRun, HeadsHash, Tally, count
from frazil.objects.store import PIECE_BYTES_MAX

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from typing_extensions import Buffer

__all__ = ["Draft", "drafted"]


@attrs.frozen(kw_only=True)
class Draft:
    """An object, known to the byte, whose frames are still where they were."""

    key: str
    sha: str
    size: int
    epoch: int
    created_us: int
    header: bytes
    tail: bytes
    """Footer and trailer."""
    footer: fmt.Footer
    runs: tuple[FrameRun, ...]

    def __iter__(self) -> Iterator[bytearray]:
        """Yield the object in pieces; as often as it must be sent."""
        return self.pieces()

    def pieces(self) -> Iterator[bytearray]:
        """Yield the object in pieces of `PIECE_BYTES_MAX`, the last one shorter.

        Raises:
            CorruptionError: a frame is damaged, or is not the one that was hashed.
        """
        piece = bytearray()
        for data in self._all():
            view = memoryview(data)
            while len(piece) + len(view) > PIECE_BYTES_MAX:
                room = PIECE_BYTES_MAX - len(piece)
                piece += view[:room]
                view = view[room:]
                yield piece
                piece = bytearray()
            piece += view
        yield piece

    def _all(self) -> Iterator[Buffer]:
        digest = hashlib.sha256(self.header)
        yield self.header
        for run in self.runs:
            yield from run.pieces(HeadsHash(digest))
        if digest.digest() != self.footer.heads_sha256:
            raise CorruptionError(
                "frames have changed while they were uploaded", key=self.key, size=self.size
            )
        yield self.tail

    def descriptors(self, *, etag: str) -> dict[int, Descriptor]:
        """Return the descriptors of the object by topic."""
        shared = fmt.decode_header(self.header).kind == fmt.KIND_SHARED
        return {
            found.topic: descriptor_of(
                found,
                key=self.key,
                size=self.size,
                epoch=self.epoch,
                sha=self.sha,
                etag=etag,
                created_us=self.created_us,
                shared=shared,
            )
            for found in self.footer.topics
        }

    def intent(self) -> Intent:
        """Return what is noted before a topic's object is written."""
        run = self.runs[0]
        return Intent(
            self.key, run.first, run.end, self.epoch, self.sha, self.size, run.hint, self.created_us
        )


def drafted(
    runs: Sequence[FrameRun],
    *,
    broker: bytes,
    epoch: int,
    created_us: int,
    index_bytes: int,
    shared: bool = False,
) -> Draft:
    """Count and hash the heads of frames and return the object that they make.

    Raises:
        CorruptionError: a head is damaged.
    """
    assert shared or len(runs) == 1
    kind = fmt.KIND_SHARED if shared else fmt.KIND_TOPIC
    header = fmt.encode_header(fmt.Header(kind, broker, epoch, created_us))
    digest = hashlib.sha256(header)
    position = len(header)
    slices: list[fmt.TopicSlice] = []
    tallies: list[Tally] = []
    for run in runs:
        tally = Tally(first=run.first, position=position, index_bytes=index_bytes, digest=digest)
        count(run, tally)
        assert tally.position - position == run.size
        slices.append(_slice(run, tally, position))
        tallies.append(tally)
        position = tally.position
    footer = fmt.Footer(
        heads_sha256=digest.digest(),
        topics=tuple(slices),
        lsn_first=min((t.lsn_first for t in tallies if t.lsn_first), default=0),
        lsn_last=max((t.lsn_last for t in tallies), default=0),
    )
    encoded = fmt.encode_footer(footer)
    tail = encoded + fmt.encode_trailer(encoded, position=position)
    sha = fmt.content_hash(encoded)
    return Draft(
        key=_key(footer, broker=broker, epoch=epoch, sha=sha, shared=shared),
        sha=sha,
        size=position + len(tail),
        epoch=epoch,
        created_us=created_us,
        header=header,
        tail=tail,
        footer=footer,
        runs=tuple(runs),
    )


def _key(footer: fmt.Footer, *, broker: bytes, epoch: int, sha: str, shared: bool) -> str:
    if shared:
        return fmt.shared_key(
            broker, lsn_first=footer.lsn_first, lsn_last=footer.lsn_last, epoch=epoch, sha=sha
        )
    (found,) = footer.topics
    return fmt.topic_key(
        broker, found.topic, found.uid, first=found.first, end=found.end, epoch=epoch, sha=sha
    )


def _slice(run: FrameRun, tally: Tally, position: int) -> fmt.TopicSlice:
    topic = run.topic
    return fmt.TopicSlice(
        topic=topic.spec.id,
        uid=topic_uid(topic.spec),
        spec=topic.spec,
        schemas={v: topic.schemas[v] for v in sorted(tally.schemas) if v in topic.schemas},
        producers={
            number: topic.producers[number]
            for number in sorted(tally.producers)
            if number in topic.producers
        },
        first=run.first,
        end=run.end,
        records=tally.records,
        frames=tally.frames,
        time_first_us=tally.time_first_us,
        time_last_us=tally.time_last_us,
        position=position,
        length=run.size,
        ranges=run.ranges,
        index=tally.index,
    )
