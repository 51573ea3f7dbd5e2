"""Join small files of adjacent ranges: a run of sets becomes one set with one file a partition."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from frazil.errors import Conflict, CorruptionError
from frazil.telemetry import event
from frazil.tiers.disk.rows import FileGone
from frazil.tiers.disk.write import FILES_MAX, SetWriter, unavailable
from frazil.tiers.partitions import Partition

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from frazil.tiers.disk.catalog import Span, TopicFiles
    from frazil.tiers.disk.file import DiskFile
    from frazil.tiers.disk.tier import DiskTier

__all__ = ["choose_run", "merge_once"]

SPANS_MIN: Final = 4
SPANS_MAX: Final = 256
INPUT_FILES_MAX: Final = 700
RUN_BYTES_MAX: Final = 1 << 30


def merge_once(tier: DiskTier, topic: int, *, keep: Collection[str] = ()) -> bool:
    """Join one run of small sets, if there is one that is worth it; tell whether there was.

    The new files are synced and registered in the old ones' place in one transaction; whoever
    reads the old ones keeps them until done. A damaged file is reported and ends the attempt; sets
    with files that are known as damaged are left out.
    """
    picture = tier.picture(topic)
    broken = {name for number, name in tier.damage.damaged() if number == topic}
    run = choose_run(
        picture,
        file_bytes=tier.settings.file_bytes,
        small_bytes=tier.settings.small_file_bytes,
        keep=broken.union(keep),
    )
    if not run:
        return False
    files = [file for span in run for file in span.files]
    try:
        with tier.pin_files(files):
            _merge(tier, run, files)
    except (FileGone, Conflict):
        # The files were replaced or evicted meanwhile.
        return False
    except OSError as error:
        raise unavailable(error, topic=topic) from error
    except CorruptionError as error:
        damaged = picture.by_name.get(str(error.details.get("file")))
        if damaged is None:
            raise
        tier.damaged(damaged, error.details["reason"])
        return False
    event("disk_merged", topic=topic, first=run[0].first, end=run[-1].end, files=len(files))
    return True


def choose_run(
    picture: TopicFiles, *, file_bytes: int, small_bytes: int, keep: Collection[str]
) -> tuple[Span, ...]:
    """Return adjacent sets that should become one, empty if there are none.

    They are all committed or all not, of one schema version, each with small files only. A run is
    worth it when its oldest set is not larger than the others together, so that a row is written
    again only a few times in its life.
    """
    run: list[Span] = []
    for span in reversed(picture.spans):
        if run and not _fits(span, run, picture.marks.committed):
            if chosen := _worth_it(run, file_bytes):
                return chosen
            run = []
        if _is_small(span, small_bytes, keep):
            run.insert(0, span)
    return _worth_it(run, file_bytes)


def _fits(span: Span, run: Sequence[Span], committed: int) -> bool:
    after = run[0]
    return (
        span.end == after.first
        and span.files[0].schema == after.files[0].schema
        and (span.end <= committed) == (after.end <= committed)
        and len(run) < SPANS_MAX
    )


def _is_small(span: Span, small_bytes: int, keep: Collection[str]) -> bool:
    return all(file.bytes < small_bytes and file.name not in keep for file in span.files)


def _worth_it(run: Sequence[Span], file_bytes: int) -> tuple[Span, ...]:
    """Return the longest end of a run that may become one set and is worth it."""
    total = files = best = 0
    partitions: dict[str, int] = {}
    for count, span in enumerate(reversed(run)):
        size = sum(file.bytes for file in span.files)
        for file in span.files:
            partitions[file.partition] = partitions.get(file.partition, 0) + file.bytes
        files += len(span.files)
        too_large = max(partitions.values()) > file_bytes or total + size > RUN_BYTES_MAX
        if too_large or files > INPUT_FILES_MAX or len(partitions) > FILES_MAX:
            # As large as a file should be: these are merged for the last time.
            best = count if 2 * total >= file_bytes else best
            break
        if count + 1 >= SPANS_MIN and size <= total:
            best = count + 1
        total += size
    return tuple(run[len(run) - best :]) if best > 1 else ()


def _merge(tier: DiskTier, run: Sequence[Span], files: Sequence[DiskFile]) -> None:
    readers = tier.readers
    sample = next((file for file in files if file.rows), files[0])
    opened = readers.reader(sample)
    writer = SetWriter(
        tier,
        topic=sample.topic,
        schema=opened.columns,
        version=sample.schema,
        key_ids=sample.key_ids,
        shape=opened.shape,
        first=run[0].first,
        end=run[-1].end,
        gaps=sorted({gap for file in files for gap in file.ranges}),
        runs=[run for file in files for run in readers.reader(file).runs()],
    )
    with writer:
        # Partition by partition, so that few files are open at a time.
        for file in sorted(files, key=lambda each: (each.partition, each.offset_first)):
            partition = Partition(file.partition_values, file.partition)
            deltas = file.deltas
            for number in range(readers.reader(file).groups):
                batch = readers.read(file, number)
                writer.add([(partition, batch)], deltas=deltas)
                deltas = 0
        writer.commit(replaces=files)
