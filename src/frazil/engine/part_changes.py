"""The calls of a keyed topic that has parts: each change goes to the part of its key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from frazil.engine.catalog import PUBLISH_OPTIONS
from frazil.engine.change_input import (
    batch_steps,
    change_batches,
    check_keys,
    check_refused,
    check_there,
    debezium_changes,
    is_arrow,
    no_changes,
)
from frazil.engine.changing import STEPS_MAX, step_of
from frazil.engine.part_acks import answer, part_acks
from frazil.errors import Conflict, FrazilError, InvalidRequest
from frazil.ingest.routing import part_of_values, parts_of_batch
from frazil.log import format as fmt
from frazil.model import Ack

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    import pyarrow as pa

    from frazil.engine.changing import Step, TopicChanges
    from frazil.engine.part_acks import Answers
    from frazil.engine.runtime import Prepared
    from frazil.engine.topic import Topic
    from frazil.ingest.debezium import RawChange
    from frazil.log.committer import Pending
    from frazil.model import TopicSpec

    Piece = list[Step] | Prepared


class PartChangeCalls:
    """What a partitioned topic with a primary key can do besides `append`, which upserts.

    Promises and errors are those of the same calls of `Topic`; an ack's `part` says which part
    took a change.
    """

    _spec: TopicSpec
    parts: list[Topic]

    def insert(self, row: Mapping[str, Any] | None = None, /, **options: Any) -> Ack:
        """Publish a whole row to its part; see `Topic.insert`."""
        part = self.part_of_row_change(fmt.OP_INSERT, row, options)
        return _of_part(self.parts[part].insert(row, **options), part)

    def upsert(self, row: Mapping[str, Any] | None = None, /, **options: Any) -> Ack:
        """Publish a whole row that replaces whatever its key had; see `Topic.upsert`."""
        part = self.part_of_row_change(fmt.OP_UPSERT, row, options)
        return _of_part(self.parts[part].upsert(row, **options), part)

    def update(self, *arguments: Any, **options: Any) -> Ack:
        """Change the named columns of one row; see `Topic.update`.

        Raises:
            InvalidRequest: also if it would move the row to a key of another part: delete the row
                and insert it under its new key.
        """
        part = self.part_of_update(arguments, options)
        return _of_part(self.parts[part].update(*arguments, **options), part)

    def delete(self, *arguments: Any, **options: Any) -> Ack:
        """Delete the row with a key; see `Topic.delete`."""
        part = self.part_of_delete(arguments, options)
        return _of_part(self.parts[part].delete(*arguments, **options), part)

    # -- where a change belongs ------------------------------------------------------------------

    def _changes(self) -> TopicChanges:
        """Return what checks changes; all parts have the same columns."""
        return self.parts[0].runtime.changes

    def part_of_row_change(self, op: int, row: object, options: Mapping[str, Any]) -> int:
        """Return the part for the arguments of an `insert` or `upsert`."""
        changes = self._changes()
        return changes.part_of(changes.whole(op, row, _fields(options)), len(self.parts))

    def part_of_update(self, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> int:
        """Return the part for the arguments of an `update`."""
        changes = self._changes()
        return changes.part_of(changes.update(arguments, _fields(options)), len(self.parts))

    def part_of_delete(self, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> int:
        """Return the part for the arguments of a `delete`."""
        changes = self._changes()
        return changes.part_of(changes.delete(arguments, _fields(options)), len(self.parts))

    def part_of_key(self, key: object) -> int:
        """Return the part that a key belongs to; `key` as `Topic.get` takes it.

        Raises:
            InvalidRequest: if the topic has no primary key, or the key does not fit it.
        """
        values = self._changes().columns.changes.parse_key(key)
        return part_of_values(values, len(self.parts))

    # -- changes in bulk -------------------------------------------------------------------------

    def append_changes(
        self, data: object, *, op_column: str = "_op", ack: str | None = None
    ) -> list[Ack]:
        """Publish changes in bulk to their parts; one ack for each part that got some.

        All changes are checked before the first is written, and those of one part keep their
        order. `data` is what `Topic.append_changes` takes; of tombstones alone there is no ack.

        Raises:
            InvalidRequest: with the number of the first change that is wrong.
            Conflict, NotFound: as for `Topic.append_changes`.
            Unavailable: storage failed, or only some parts were written; the details name them.
        """
        if is_arrow(data):
            pieces = self._arrow_pieces(data, op_column)
        else:
            pieces = self._debezium_pieces(data)
        if not pieces:
            self.parts[0].runtime.sender(ack, None, None, 0)
            check_there(self.parts[0].runtime)
            return []
        if sum(map(len, pieces.values())) > 1:
            for part, own in pieces.items():
                check_keys(self.parts[part].runtime, [*own, []])
        return self._publish_pieces(dict(sorted(pieces.items())), ack)

    def _arrow_pieces(self, data: object, op_column: str) -> dict[int, list[Piece]]:
        keyed = self._changes().columns
        names, count = keyed.changes.shape.names, len(self.parts)
        pieces: dict[int, list[Piece]] = {}
        for batch in change_batches(self.parts[0].runtime, keyed, data, op_column):
            rows: dict[int, list[int]] = {}
            for row, part in enumerate(parts_of_batch(batch, names, count)):
                rows.setdefault(part, []).append(row)
            for part, numbers in rows.items():
                found = self._part_steps(part, keyed.changes.version, batch.take(numbers))
                pieces.setdefault(part, []).extend(found)
        if not pieces:
            raise no_changes(self._spec.name)
        return pieces

    def _part_steps(self, part: int, version: int, batch: pa.RecordBatch) -> Iterator[Piece]:
        runtime = self.parts[part].runtime
        keyed = runtime.changes.columns
        if keyed.changes.version != version:
            name = self._spec.name
            raise Conflict("the topic's columns changed meanwhile, try again", topic=name)
        return batch_steps(runtime, keyed, batch)

    def _debezium_pieces(self, data: object) -> dict[int, list[Piece]]:
        by_part: dict[int, list[list[Step]]] = {}
        codec = self._changes().columns.changes
        for number, raw in debezium_changes(self._spec.name, codec, data):
            try:
                part, step = self._step(raw)
            except InvalidRequest as error:
                details = {"change": number, **error.details}
                raise InvalidRequest(error.message, **details) from error
            runs = by_part.setdefault(part, [[]])
            if len(runs[-1]) >= STEPS_MAX:
                runs.append([])
            runs[-1].append(step)
        return {part: list(runs) for part, runs in by_part.items()}

    def _step(self, raw: RawChange) -> tuple[int, Step]:
        """Check one operation on the part that it belongs to."""
        whole = raw.op in {fmt.OP_INSERT, fmt.OP_UPSERT}
        names = self._changes().columns.changes.shape.names
        key = raw.key
        if whole:
            missing = [name for name in names if name not in raw.row]
            if missing:
                raise InvalidRequest("row lacks its primary key", columns=", ".join(missing))
            key = {name: raw.row[name] for name in names}
        part = self.part_of_key(key)
        changes = self.parts[part].runtime.changes
        step = step_of(changes.columns.changes, raw)
        return changes.part_of(step, len(self.parts)), step

    def _publish_pieces(self, pieces: Mapping[int, list[Piece]], ack: str | None) -> list[Ack]:
        """Publish piece by piece, of all parts at once: they share their syncs.

        A part whose piece failed gets no more: its changes keep their order, without a hole.
        """
        sender = self.parts[0].runtime.sender(ack, None, None, 0)
        answers: dict[int, Answers] = {part: [] for part in pieces}
        for turn in range(max(map(len, pieces.values()))):
            waiting: list[tuple[int, list[Pending]]] = []
            for part, own in pieces.items():
                failed = any(isinstance(each, FrazilError) for each in answers[part])
                if failed or turn >= len(own):
                    continue
                try:
                    waiting.append((part, self.parts[part].begin(own[turn], sender)))
                except FrazilError as error:
                    answers[part].append(error)
            for part, pendings in waiting:
                answers[part] += [answer(pending) for pending in pendings]
        found = [each for own in answers.values() for each in own]
        check_refused(found)
        return part_acks(list(pieces), list(answers.values()))

    # -- look-ups --------------------------------------------------------------------------------

    def get(self, key: Any) -> dict[str, Any] | None:
        """Return the row with a key, None if there is none; see `Topic.get`."""
        return self.parts[self.part_of_key(key)].get(key)

    def get_many(self, keys: Iterable[Any]) -> list[dict[str, Any] | None]:
        """Return the rows with these keys, in their order; those of one part are of one moment."""
        by_part: dict[int, tuple[list[int], list[Any]]] = {}
        count = 0
        for count, key in enumerate(keys, 1):
            numbers, own = by_part.setdefault(self.part_of_key(key), ([], []))
            numbers.append(count - 1)
            own.append(key)
        found: list[dict[str, Any] | None] = [None] * count
        for part, (numbers, own) in by_part.items():
            for number, row in zip(numbers, self.parts[part].get_many(own), strict=True):
                found[number] = row
        return found

    def changes(
        self, from_offset: int = 0, *, limit: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """Return the change feeds of the parts, one after the other; see `Topic.changes`.

        Each change has its `part`. `from_offset` is that of every part, `limit` that of the call.
        """
        for number, part in enumerate(self.parts):
            if limit is not None and limit <= 0:
                return
            for change in part.changes(from_offset, limit=limit):
                yield {"part": number, **change}
                limit = None if limit is None else limit - 1


def _fields(options: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if key not in PUBLISH_OPTIONS}


def _of_part(ack: Ack, part: int) -> Ack:
    return Ack(ack.offset, ack.offset_last, ack.lsn, part)
