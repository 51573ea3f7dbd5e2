"""Have a topic's table verified: gather what the tiers know of it and ask the worker."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final

import msgspec

from frazil.errors import Conflict, InvalidRequest, NotFound, Unavailable
from frazil.lake.certificate import Certificate, Findings, PartFacts, StagedRows, VerifyRequest
from frazil.lake.declared import merged, without
from frazil.lake.plan import PartRange
from frazil.lake.staging import part_sets, plan_of
from frazil.log import RANGE_LOST
from frazil.schema import column_id
from frazil.struct_types import learnt
from frazil.topic import special_ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from frazil.lake.plan import StagedSet
    from frazil.lake.runtime import Lake
    from frazil.lake.topics import LakeTopic
    from frazil.lake.wire import Answer
    from frazil.log import SpecialRange
    from frazil.topic import TopicRuntime

__all__ = ["bundles", "column_names", "part_facts", "verify_topic"]

READY_PAUSE_S: Final = 0.2
READY_TIMEOUT_S: Final = 300.0
VERIFY_TIMEOUT_S: Final = 24 * 3600.0


def verify_topic(
    lake: Lake,
    topic: LakeTopic,
    *,
    timeout_s: float | None = None,
    progress: Callable[[str], None] | None = None,
) -> Certificate:
    """Prove that a topic's table has each of its records once; see `Lake.verify`.

    Files of the disk tier that it is compared with stay in place meanwhile.
    """
    if topic.keyed:
        raise InvalidRequest("keyed tables come later", topic=topic.name)
    tell = progress or _silent

    def told(answer: Answer) -> None:
        tell(str(answer.body.get("step", "")))

    with lake.needed():
        # Without Spark: what cannot be verified is refused before it has started.
        view = lake.call(lambda: lake.tables().look(topic.table))
        if view.topic_id != topic.uid:
            raise Conflict(
                "the table is another topic's", table=topic.table, topic_id=view.topic_id
            )
        if view.schema_version is None:
            raise NotFound("the table has no columns of this topic", table=topic.table)
        tell("starting")
        _wait_ready(lake, topic)
        with _kept(lake, topic.runtimes):
            body = msgspec.to_builtins(_request(lake, topic, view.schema_version), str_keys=True)
            answer = lake.ask_worker("verify", body, told).result(timeout_s or VERIFY_TIMEOUT_S)
    findings = msgspec.convert(answer, learnt(Findings), str_keys=True)
    return Certificate(findings, lake.clock.now_us())


def _silent(_step: str) -> None:
    """Tell nobody."""


def _wait_ready(lake: Lake, topic: LakeTopic) -> None:
    lake.call(lake.worker.try_again)
    deadline = lake.clock.monotonic() + READY_TIMEOUT_S
    pause = threading.Event()
    while lake.worker.state != "ready":
        if lake.worker.refused:
            raise Unavailable("Spark cannot be started", why=lake.worker.refused)
        if lake.clock.monotonic() > deadline:
            raise Unavailable("Spark did not start in time", why=lake.worker.why or topic.why)
        pause.wait(READY_PAUSE_S)


@contextlib.contextmanager
def _kept(lake: Lake, runtimes: Iterable[TopicRuntime]) -> Iterator[None]:
    """Keep the files of the disk tier in place."""
    disk = lake.tiers.disk
    with contextlib.ExitStack() as stack:
        for runtime in runtimes:
            stack.enter_context(disk.pins.pin(disk.files(runtime.state.id)))
        yield


def _request(lake: Lake, topic: LakeTopic, version: int) -> VerifyRequest:
    """Return what the worker needs; `version` is that of the table's columns."""
    disk = lake.tiers.disk
    message = topic.runtimes[0].state.spec.kind == "message"
    runs: list[tuple[int, PartRange]] = []
    parts: list[PartFacts] = []
    # Before the table is looked at: it may only have more.
    committed = topic.remembered()
    for runtime in topic.runtimes:
        ranges = special_ranges(runtime)
        parts.append(part_facts(runtime.part, ranges, committed=committed[runtime.part]))
        picture = disk.picture(runtime.state.id)
        sets = part_sets(picture, part=runtime.part, committed=0, path=disk.path).sets
        # Columns that the table has not got yet are those of records that it has not got either.
        older = [each for each in sets if each.schema_version <= version]
        runs += _runs(runtime.part, runtime.state.id, older)
    now = topic.columns(version)
    staged: list[StagedRows] = []
    for number, (own, some) in enumerate(bundles(runs)):
        schema = topic.columns(own)
        names, added = column_names(schema, now, by_id=not message)
        plan = plan_of(
            identity=f"verify-{number}",
            topic=topic.name,
            uid=topic.uid,
            table=topic.table,
            kind="message" if message else "table",
            version=own,
            schema=schema,
            ranges=some,
            now_us=lake.clock.now_us(),
        )
        staged.append(StagedRows(plan, names, added))
    return VerifyRequest(
        topic=topic.name,
        topic_id=topic.uid,
        table=topic.table,
        parts=tuple(parts),
        staged=tuple(staged),
    )


def part_facts(part: int, ranges: Sequence[SpecialRange], *, committed: int = 0) -> PartFacts:
    """Return which offsets of a part have no record, and which have lost theirs here."""
    lost = {part: merged((each.first, each.end) for each in ranges if each.kind == RANGE_LOST)}
    gaps = {part: merged((each.first, each.end) for each in ranges if each.kind != RANGE_LOST)}
    return PartFacts(part, gaps[part], without(lost, gaps)[part], committed)


def _runs(part: int, topic: int, sets: Sequence[StagedSet]) -> list[tuple[int, PartRange]]:
    """Join sets of one version that touch."""
    found: list[tuple[int, PartRange]] = []
    for each in sets:
        if found and found[-1][0] == each.schema_version and found[-1][1].hi == each.first:
            last = found.pop()[1]
            files, gaps = (*last.files, *each.files), (*last.gaps, *each.gaps)
            joined = PartRange(part, topic, last.lo, each.end, files, gaps)
        else:
            joined = PartRange(part, topic, each.first, each.end, each.files, each.gaps)
        found.append((each.schema_version, joined))
    return found


def bundles(
    runs: Sequence[tuple[int, PartRange]],
) -> list[tuple[int, tuple[PartRange, ...]]]:
    """Put ranges of one schema version together, of each part at most one."""
    made: dict[tuple[int, int], list[PartRange]] = {}
    counts: dict[tuple[int, int], int] = {}
    for version, each in runs:
        number = counts.get((version, each.part), 0)
        counts[version, each.part] = number + 1
        made.setdefault((version, number), []).append(each)
    return [(version, tuple(ranges)) for (version, _number), ranges in sorted(made.items())]


def column_names(
    then: pa.Schema, now: pa.Schema, *, by_id: bool
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return what columns are called now, without those that were dropped, and which came later."""
    if not by_id:
        return {name: name for name in then.names if name in now.names}, ()
    names = {column_id(field): field.name for field in now}
    found = {field.name: names[column_id(field)] for field in then if column_id(field) in names}
    return found, tuple(name for name in now.names if name not in found.values())
