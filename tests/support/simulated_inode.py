"""One simulated file: what readers see, what the disk holds, and the writes in between.

Content is a list of immutable 512-byte sectors, because a sector is what a disk writes whole. A
write puts new sectors into the visible list and remembers them as one pending change; `sync` folds
the pending changes into the durable list. A crash keeps, for each dirty sector, the durable version
or any version written since. Lists are shared between clones until one side changes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from random import Random

__all__ = ["SECTOR_BYTES", "Inode", "Survival", "sector_count"]

SECTOR_BYTES = 512
ZERO_SECTOR = bytes(SECTOR_BYTES)

Survival = Literal["nothing", "everything", "prefix", "torn"]
"""What of the unsynced changes a power loss leaves.

`prefix` keeps the first changes in their order, `torn` any subset of them in any order.
"""

# (first sector, the new sectors, the size of the file behind this change); no sectors: a truncate.
_Change = tuple[int, list[bytes], int]


def sector_count(size: int) -> int:
    """Return how many sectors `size` bytes take."""
    return (size + SECTOR_BYTES - 1) // SECTOR_BYTES


def _cut_sector(sector: bytes, used: int) -> bytes:
    return sector[:used] + ZERO_SECTOR[used:]


def _resize(sectors: list[bytes], *, size: int) -> None:
    """Cut or zero-extend; bytes of the last sector behind `size` become zero."""
    count = sector_count(size)
    have = len(sectors)
    if count > have:
        sectors.extend([ZERO_SECTOR] * (count - have))
        return
    del sectors[count:]
    used = size % SECTOR_BYTES
    if used:
        sectors[-1] = _cut_sector(sectors[-1], used)


def _fold(sectors: list[bytes], changes: list[_Change], *, size: int) -> int:
    """Apply whole changes in order; return the new size."""
    for first, chunks, size_after in changes:
        if size_after != size:
            _resize(sectors, size=size_after)
            size = size_after
        if chunks:
            sectors[first : first + len(chunks)] = chunks
    return size


class Inode:
    """A file's content, visible and durable. Not thread-safe: the file system locks around it."""

    __slots__ = (
        "_cached",
        "_cached_shared",
        "_durable",
        "_durable_shared",
        "_durable_size",
        "_pending",
        "links",
        "modified_ns",
        "opens",
        "size",
    )

    def __init__(self) -> None:
        self._cached: list[bytes] = []
        self._durable: list[bytes] = []
        self._cached_shared = False
        self._durable_shared = False
        self._durable_size = 0
        self._pending: list[_Change] = []
        self.size = 0
        self.links = 0
        self.opens = 0
        self.modified_ns = 0

    @property
    def sectors(self) -> int:
        """The sectors that this file takes from the disk."""
        return len(self._cached)

    @property
    def dirty(self) -> bool:
        """Whether there are changes that no `sync` has made durable."""
        return bool(self._pending)

    def read(self, position: int, size: int) -> bytes:
        """Return what a reader sees now."""
        end = min(position + size, self.size)
        if position >= end:
            return b""
        first, skip = divmod(position, SECTOR_BYTES)
        data = b"".join(self._cached[first : sector_count(end)])
        return data[skip : skip + end - position]

    def write(self, position: int, data: bytes) -> None:
        """Change the visible content and remember the change as pending."""
        end = position + len(data)
        first, skip = divmod(position, SECTOR_BYTES)
        last = sector_count(end)
        cached = self._cached_own()
        if len(cached) < last:
            cached.extend([ZERO_SECTOR] * (last - len(cached)))
        if skip:
            data = cached[first][:skip] + data
        used = end % SECTOR_BYTES
        if used:
            data += cached[last - 1][used:]
        chunks = [data[at : at + SECTOR_BYTES] for at in range(0, len(data), SECTOR_BYTES)]
        cached[first:last] = chunks
        self.size = max(self.size, end)
        self._pending.append((first, chunks, self.size))

    def resize(self, size: int) -> None:
        """Cut or zero-extend the visible content and remember that as pending."""
        _resize(self._cached_own(), size=size)
        self.size = size
        self._pending.append((0, [], size))

    def sync(self) -> None:
        """Make all pending changes durable."""
        if self._pending:
            durable = self._durable_own()
            self._durable_size = _fold(durable, self._pending, size=self._durable_size)
            self._pending = []

    def fail_sync(self) -> None:
        """Forget the pending changes: readers see them, but no later `sync` writes them.

        So does Linux: after an error the pages are marked clean although the disk never got them.
        """
        self._pending = []

    def durable_bytes(self) -> bytes:
        """Return what the disk certainly holds."""
        return b"".join(self._durable)[: self._durable_size]

    def replace(self, data: bytes) -> None:
        """Put `data` on the disk and into the cache, without any pending change."""
        padded = data + bytes(-len(data) % SECTOR_BYTES)
        sectors = [padded[at : at + SECTOR_BYTES] for at in range(0, len(padded), SECTOR_BYTES)]
        self._become(sectors, len(data))

    def killed(self) -> Inode:
        """Return the file as a killed process leaves it: the page cache lives on."""
        twin = Inode()
        self._cached_shared = self._durable_shared = True
        twin._cached, twin._cached_shared = self._cached, True
        twin._durable, twin._durable_shared = self._durable, True
        twin._durable_size = self._durable_size
        twin._pending = self._pending.copy()
        twin.size = self.size
        twin.modified_ns = self.modified_ns
        return twin

    def crashed(self, random: Random, survival: Survival) -> Inode:
        """Return the file as a power loss may leave it; what was synced is always in it."""
        twin = Inode()
        twin.modified_ns = self.modified_ns
        pending = self._pending
        if not pending or survival == "nothing":
            self._durable_shared = True
            twin._become(self._durable, self._durable_size)
            return twin
        sectors = self._durable.copy()
        if survival == "torn":
            size = self._tear(random, sectors)
        else:
            whole = survival == "everything"
            kept = pending if whole else pending[: random.randint(0, len(pending))]
            size = _fold(sectors, kept, size=self._durable_size)
        twin._become(sectors, size)
        return twin

    def _tear(self, random: Random, sectors: list[bytes]) -> int:
        """Put any subset of the dirty sectors into `sectors`; return the surviving size.

        The changes of the size survive in their order up to a random one. Sectors are independent
        of that and of each other: inside of the size they hold any of their versions. Only a cut
        that survived takes the older versions behind it along, as no file system brings back what
        it has freed.
        """
        pending = self._pending
        sizes_kept = random.choice((0, len(pending), random.randint(0, len(pending))))
        size = self._durable_size
        versions: dict[int, list[bytes]] = {}
        for index, (first, chunks, size_after) in enumerate(pending):
            if index < sizes_kept:
                if size_after < size:
                    _cut_versions(versions, size=size_after)
                _resize(sectors, size=size_after)
                size = size_after
            for sector, chunk in enumerate(chunks, first):
                versions.setdefault(sector, []).append(chunk)
        size_next = pending[sizes_kept][2] if sizes_kept < len(pending) else size
        steps = range(sector_count(size), sector_count(size_next))
        if steps and random.random() < 0.5:
            # A long write grows the file in steps.
            size = max(size, random.choice(steps) * SECTOR_BYTES)
            _resize(sectors, size=size)
        chance = random.choice((0.1, 0.5, 0.9, 1.0))
        for sector, written in versions.items():
            if sector < len(sectors) and random.random() < chance:
                sectors[sector] = written[-1] if random.random() < 0.7 else random.choice(written)
        _resize(sectors, size=size)
        return size

    def _become(self, sectors: list[bytes], size: int) -> None:
        self._cached = self._durable = sectors
        self._cached_shared = self._durable_shared = True
        self.size = self._durable_size = size
        self._pending = []

    def _cached_own(self) -> list[bytes]:
        if self._cached_shared:
            self._cached = self._cached.copy()
            self._cached_shared = False
        return self._cached

    def _durable_own(self) -> list[bytes]:
        if self._durable_shared:
            self._durable = self._durable.copy()
            self._durable_shared = False
        return self._durable


def _cut_versions(versions: dict[int, list[bytes]], *, size: int) -> None:
    """Drop what a surviving cut to `size` removes from the versions written before it."""
    whole, used = divmod(size, SECTOR_BYTES)
    for sector in [sector for sector in versions if sector >= whole]:
        if sector == whole and used:
            versions[sector] = [_cut_sector(version, used) for version in versions[sector]]
        else:
            del versions[sector]
