"""The calls of a keyed topic that has parts: each change goes to the part of its key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from frazil.engine.change_calls import when_room
from frazil.engine.part_moves import Crossing, Side, crossing, try_move
from frazil.errors import Conflict, FrazilError, InvalidRequest
from frazil.log import Pending
from frazil.model import OP_INSERT, OP_UPDATE, OP_UPSERT, Ack
from frazil.schema import part_of_values, parts_of_batch
from frazil.topic import (
    PUBLISH_OPTIONS,
    STEPS_MAX,
    answer,
    batch_steps,
    check_keys,
    check_refused,
    check_there,
    debezium_changes,
    is_arrow,
    no_changes,
    step_of,
    wait_reached,
)
from frazil.topic.change_input import change_batches
from frazil.topic.part_acks import part_acks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from frazil.engine.topic import Topic
    from frazil.log import Sender
    from frazil.model import TopicSpec
    from frazil.schema import RawChange
    from frazil.topic import Answers, Prepared, Step, TopicChanges

    Piece = list[Step] | Prepared
    Stage = dict[int, list[Piece]] | Crossing


class PartChangeCalls:
    """What a partitioned topic with a primary key can do besides `append`, which upserts.

    Promises and errors are those of the same calls of `Topic`; an ack's `part` says which part
    took a change.
    """

    _spec: TopicSpec
    parts: list[Topic]

    def insert(self, row: Mapping[str, Any] | None = None, /, **options: Any) -> Ack:
        """Publish a whole row to its part; see `Topic.insert`."""
        part = self.part_of_row_change(OP_INSERT, row, options)
        return _of_part(self.parts[part].insert(row, **options), part)

    def upsert(self, row: Mapping[str, Any] | None = None, /, **options: Any) -> Ack:
        """Publish a whole row that replaces whatever its key had; see `Topic.upsert`."""
        part = self.part_of_row_change(OP_UPSERT, row, options)
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
        order. An event that gives a row a key of another part deletes it here and inserts it
        there; both are written together, unless each part has a journal of its own: then it is
        refused. `data` is what `Topic.append_changes` takes; of tombstones alone there is no ack.

        Raises:
            InvalidRequest: with the number of the first change that is wrong.
            Conflict, NotFound: as for `Topic.append_changes`.
            Unavailable: storage failed, or only some parts were written; the details name them.
        """
        stages: Sequence[Stage]
        if is_arrow(data):
            stages = [self._arrow_pieces(data, op_column)]
        else:
            stages = self._debezium_stages(data)
        if not stages:
            self.parts[0].runtime.sender(ack, None, None, 0)
            check_there(self.parts[0].runtime)
            return []
        self._check_keys(stages)
        return self._publish_stages(stages, ack)

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

    def _debezium_stages(self, data: object) -> list[Stage]:
        """Return events as stages: a row that goes to another part is one of its own."""
        stages: list[Stage] = []
        codec = self._changes().columns.changes
        for number, raw in debezium_changes(self._spec.name, codec, data):
            try:
                part, step = self._placed(raw)
            except InvalidRequest as error:
                details = {"change": number, **error.details}
                raise InvalidRequest(error.message, **details) from error
            if isinstance(step, Crossing):
                stages.append(step)
                continue
            if not stages or isinstance(stages[-1], Crossing):
                stages.append({})
            pieces = stages[-1]
            assert isinstance(pieces, dict)
            runs = pieces.setdefault(part, [])
            last = runs[-1] if runs else ()
            if isinstance(last, list) and len(last) < STEPS_MAX:
                last.append(step)
            else:
                runs.append([step])
        return stages

    def _placed(self, raw: RawChange) -> tuple[int, Step | Crossing]:
        """Check one operation on the part that it belongs to."""
        names = self._changes().columns.changes.shape.names
        key = raw.key
        if raw.op in {OP_INSERT, OP_UPSERT}:
            missing = [name for name in names if name not in raw.row]
            if missing:
                raise InvalidRequest("row lacks its primary key", columns=", ".join(missing))
            key = {name: raw.row[name] for name in names}
        part = self.part_of_key(key)
        runtime = self.parts[part].runtime
        if raw.op == OP_UPDATE:
            part_new = self.part_of_key({name: raw.row.get(name, key[name]) for name in names})
            if part_new != part:
                other = Side(part_new, self.parts[part_new].runtime)
                return part, crossing(Side(part, runtime), other, raw)
        return part, step_of(runtime.changes.columns.changes, raw)

    def _check_keys(self, stages: Sequence[Stage]) -> None:
        """Refuse a bulk of several writes before the first one, where a later one would be."""
        by_part: dict[int, list[Piece]] = {}
        writes = 0
        for stage in stages:
            if isinstance(stage, Crossing):
                by_part.setdefault(stage.old.part, []).append([stage.move.delete])
                by_part.setdefault(stage.new.part, []).append([stage.move.insert])
                writes += 1
                continue
            for part, own in stage.items():
                by_part.setdefault(part, []).extend(own)
                writes += len(own)
        for part, own in by_part.items() if writes > 1 else ():
            check_keys(self.parts[part].runtime, [*own, []])

    def _publish_stages(self, stages: Sequence[Stage], ack: str | None) -> list[Ack]:
        """Publish stage by stage; behind one that failed nothing more is written."""
        sender = self.parts[0].runtime.sender(ack, None, None, 0)
        answers: dict[int, Answers] = {}
        for stage in stages:
            if isinstance(stage, Crossing):
                self._publish_crossing(stage, sender, answers)
            else:
                self._publish_pieces(dict(sorted(stage.items())), sender, answers)
            if any(isinstance(each, FrazilError) for own in answers.values() for each in own):
                break
        check_refused([each for own in answers.values() for each in own])
        parts = sorted(answers)
        acks = part_acks(parts, [answers[part] for part in parts])
        wait_reached(ack, [(self.parts[each.part].runtime, each) for each in acks])
        return acks

    def _publish_pieces(
        self, pieces: Mapping[int, list[Piece]], sender: Sender | None, answers: dict[int, Answers]
    ) -> None:
        """Publish piece by piece, of all parts at once: they share their syncs.

        A part whose piece failed gets no more: its changes keep their order, without a hole.
        """
        for turn in range(max(map(len, pieces.values()))):
            waiting: list[tuple[int, list[Pending]]] = []
            for part, own in pieces.items():
                found = answers.setdefault(part, [])
                failed = any(isinstance(each, FrazilError) for each in found)
                if failed or turn >= len(own):
                    continue
                try:
                    waiting.append((part, self.parts[part].begin(own[turn], sender)))
                except FrazilError as error:
                    found.append(error)
            for part, pendings in waiting:
                answers[part] += [answer(pending) for pending in pendings]

    def _publish_crossing(
        self, found: Crossing, sender: Sender | None, answers: dict[int, Answers]
    ) -> None:
        """Publish a move from one part to another."""
        try:
            for side in (found.old, found.new):
                self.parts[side.part].pass_door()
            waiting = when_room(found.old.runtime, lambda: try_move(found, sender, Pending))
        except FrazilError as error:
            answers.setdefault(found.old.part, []).append(error)
            return
        for part, pending in waiting:
            answers.setdefault(part, []).append(answer(pending))

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
