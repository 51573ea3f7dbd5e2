"""Definitions of topics: requests are checked before any frame is written. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

import attrs
import msgspec
import pyarrow as pa
import pyarrow.types as pt

from frazil.errors import CorruptionError, InvalidRequest
from frazil.log import Control
from frazil.log import format as fmt
from frazil.model import TopicKind, TopicSpec, full_topic_name, is_part_name, part_name
from frazil.schema import (
    AddColumn,
    DropColumn,
    Message,
    RenameColumn,
    WidenColumn,
    column_id,
    column_of,
    declare_schema,
    infer_schema,
    parse_partition_spec,
)
from frazil.topic.signals import checked_limits
from frazil.units import is_whole, parse_bytes, parse_duration_s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from frazil.log import TopicState
    from frazil.schema import Change, IngestLimits

_CHOICES: Final = {
    "sync": ("periodic", "commit"),
    "on_full": ("block", "expire"),
    "unknown_key": ("ignore", "error", "insert"),
    "lake": (True, False),
    "objects": (True, False),
}
"""The values of topic options with a fixed set of values."""
_AGES: Final = {"retention_age": "retention_us", "objects_retention_age": "objects_retention_us"}
"""Topic options that are ages, and the fields of `TopicSpec` that keep them."""
NAMESPACE_OF_SQL: Final = "information_schema"
_HOLD_NAME: Final = re.compile(r"[\w.:/-]{1,200}\Z")
PUBLISH_OPTIONS: Final = frozenset({"ack", "producer", "sequence", "producer_epoch"})
"""Keywords of a publish that are not fields of the record."""
PARTITIONS_MAX: Final = 256
"""The largest number of parts of a topic."""
LIMIT_MAX: Final = 2**63 - 1
"""The largest limit of a topic, in bytes or microseconds."""
TOPIC_ENCODER: Final = msgspec.msgpack.Encoder()


@attrs.frozen
class TopicRequest:
    """A request for a topic; ids are not assigned yet."""

    name: str
    kind: TopicKind
    schema: pa.Schema | None
    primary_key: tuple[int, ...]
    partition_by: tuple[Any, ...]
    partitions: int
    options: Mapping[str, Any]
    sort_by: tuple[int, ...] = ()


def request_topic(
    name: str,
    *,
    columns: object,
    primary_key: object,
    partition_by: object,
    sort_by: object,
    partitions: object,
    options: Mapping[str, object],
    limits: IngestLimits,
    loose_part: bool = False,
) -> TopicRequest:
    """Check a request for a new topic; only a `loose_part` may be named like a part.

    Raises:
        InvalidRequest: with the error and the correction.
    """
    full = _new_name(name, loose_part=loose_part)
    keys = (primary_key,) if isinstance(primary_key, str) else _names("primary_key", primary_key)
    fields_by = _names("partition_by", partition_by)
    sorts = (sort_by,) if isinstance(sort_by, str) else _names("sort_by", sort_by)
    if not is_whole(partitions) or not 0 <= partitions <= PARTITIONS_MAX:
        raise InvalidRequest(
            "partitions must be a whole number from 0 on",
            partitions=partitions,
            partitions_max=PARTITIONS_MAX,
        )
    clean = check_options(options)
    if columns is None:
        if keys or fields_by or sorts:
            raise InvalidRequest(
                "a message topic has no key, partition or sort columns, give columns for a table "
                "topic",
                topic=full,
            )
        return TopicRequest(full, "message", None, (), (), partitions, clean)
    if keys:
        check_keyed_options(full, clean)
    schema = declare_schema(columns, limits=limits, primary_key=keys)
    fields = tuple(parse_partition_spec(fields_by, schema))
    key_ids, sort_ids = _ids_of(schema, keys), _sort_ids(schema, sorts)
    return TopicRequest(full, "table", schema, key_ids, fields, partitions, clean, sort_ids)


def _new_name(name: str, *, loose_part: bool) -> str:
    """Return the full name of a new topic."""
    full = full_topic_name(name)
    if is_part_name(full) and not loose_part:
        raise InvalidRequest(
            "names that end in -part-<number> belong to partitioned topics, use partitions=",
            topic=full,
        )
    if full.split("/")[1].casefold() == NAMESPACE_OF_SQL:
        raise InvalidRequest(
            "this namespace is SQL's own and its topics could not be queried, use another",
            topic=full,
        )
    return full


def _sort_ids(schema: pa.Schema, names: Sequence[str]) -> tuple[int, ...]:
    """Return the ids of the columns that a table is sorted by."""
    for name in names:
        found = schema.field(name) if name in schema.names else None
        if found is None or pt.is_nested(found.type) or names.count(name) > 1:
            raise InvalidRequest(
                "sort_by must name columns of the topic, each once and none of a nested type",
                column=name,
                columns=", ".join(schema.names),
            )
    return _ids_of(schema, names)


def first_columns(
    record: object, options: Mapping[str, Any], limits: IngestLimits
) -> pa.Schema | None:
    """Return the columns of a topic that is created for its first record; None is a message topic.

    Raises:
        InvalidRequest: if the record is neither a message nor a row.
    """
    fields = {key: value for key, value in options.items() if key not in PUBLISH_OPTIONS}
    if record is None and fields and "payload" not in fields:
        record, fields = fields, {}
    if isinstance(record, Mapping) and not fields:
        return infer_schema(record)
    payload = fields.get("payload") if record is None else record
    if not isinstance(payload, (bytes, bytearray, memoryview)):
        raise InvalidRequest(
            "the topic does not exist and cannot be made from this record: give bytes or a row",
            got=type(payload).__name__,
        )
    _check_first_message(payload, fields, limits)
    return None


def _check_first_message(
    payload: bytes | bytearray | memoryview, fields: Mapping[str, Any], limits: IngestLimits
) -> None:
    """Refuse a first record that its new topic would refuse."""
    unknown = fields.keys() - {*Message.__struct_fields__}
    if unknown:
        allowed = ", ".join(Message.__struct_fields__)
        raise InvalidRequest("message has an unknown field", field=min(unknown), allowed=allowed)
    size = memoryview(payload).nbytes
    if size > limits.message_bytes_max:
        raise InvalidRequest("message is too large", bytes=size, bytes_max=limits.message_bytes_max)


def _ids_of(schema: pa.Schema, names: Sequence[str]) -> tuple[int, ...]:
    return tuple(column_id(column_of(schema, name)) for name in names)


def _names(what: str, names: Any) -> tuple[str, ...]:
    """Return the names in a list; a single text is refused, although it is iterable."""
    is_list = isinstance(names, Iterable) and not isinstance(names, (str, bytes, Mapping))
    found = tuple(names) if is_list else (names,)
    if not is_list or not all(isinstance(name, str) for name in found):
        got = ", ".join(type(name).__name__ for name in found)
        raise InvalidRequest(f"{what} must be a list of names", got=got)
    return found


def column_changes(
    *, add: object = None, drop: object = (), rename: object = None, widen: object = None
) -> list[Change]:
    """Return the changes that `alter` requests, in the order in which they are made.

    Raises:
        InvalidRequest: if an argument has the wrong type; `evolve` checks its contents.
    """
    changes: list[Change] = [AddColumn(name, kind) for name, kind in _pairs("add", add)]
    changes += [WidenColumn(name, kind) for name, kind in _pairs("widen", widen)]
    for name, new in _pairs("rename", rename):
        if not isinstance(new, str):
            raise InvalidRequest("rename must give names for names", got=type(new).__name__)
        changes.append(RenameColumn(name, new))
    changes += [DropColumn(name) for name in _names("drop", drop)]
    return changes


def _pairs(what: str, mapping: object) -> list[tuple[str, Any]]:
    if mapping is None:
        return []
    if not isinstance(mapping, Mapping) or not all(isinstance(name, str) for name in mapping):
        raise InvalidRequest(
            f"{what} must be a mapping by column names", got=type(mapping).__name__
        )
    return list(mapping.items())


def check_options(options: Mapping[str, object]) -> dict[str, Any]:
    """Check the options of a topic that may be given at creation and by `alter`."""
    clean: dict[str, Any] = {}
    for key, value in options.items():
        if value is None:
            continue
        if key in _CHOICES:
            clean[key] = _one_of(key, value, _CHOICES[key])
        elif key in _AGES:
            clean[_AGES[key]] = _limit(key, int(parse_duration_s(value) * 1_000_000))
        elif key in {"retention_bytes", "objects_retention_bytes"}:
            clean[key] = _limit(key, parse_bytes(value))
        elif key == "signals":
            clean[key] = checked_limits(dict(_pairs(key, value)))
        else:
            raise InvalidRequest("unknown topic option", option=key)
    return clean


def check_keyed_options(topic: str, clean: Mapping[str, Any]) -> None:
    """Check the options given for a keyed topic: its rows are its state and never expire.

    The retention defaults of the settings do not apply to keyed topics.

    Raises:
        InvalidRequest: if an option would expire rows.
    """
    expires = clean.get("on_full") == "expire"
    if expires or "retention_us" in clean:
        raise InvalidRequest(
            "the newest rows of a keyed topic are its state and never expire, leave this out; "
            "retention_bytes bounds its files, and at that size publishing to it stops",
            topic=topic,
            option="on_full=expire" if expires else "retention_age",
        )


def _limit(key: str, value: int) -> int:
    if value > LIMIT_MAX:
        raise InvalidRequest("topic option is too large", option=key, limit_max=LIMIT_MAX)
    return value


def _one_of(key: str, value: object, allowed: Sequence[str | bool]) -> str | bool:
    if not isinstance(value, (str, bool)) or value not in allowed:
        raise InvalidRequest(
            "topic option has a wrong value",
            option=key,
            got=value,
            allowed="|".join(map(str, allowed)),
        )
    return value


def specs_of(
    request: TopicRequest, *, topic_id: int, now_us: int, sync_default: str, uid: str = ""
) -> list[TopicSpec]:
    """Return the specs to write: the topic, or the parent and its parts."""
    same: dict[str, Any] = {
        "kind": request.kind,
        "created_us": now_us,
        "primary_key": request.primary_key,
        "partition_by": request.partition_by,
        "sort_by": request.sort_by,
        "uid": uid,
        "sync": sync_default,
        **request.options,
    }
    if not request.partitions:
        return [TopicSpec(id=topic_id, name=request.name, **same)]
    parent = TopicSpec(id=topic_id, name=request.name, partitions=request.partitions, **same)
    parts = [
        TopicSpec(
            id=topic_id + 1 + index,
            name=part_name(request.name, index),
            part_of=topic_id,
            part_index=index,
            **same,
        )
        for index in range(request.partitions)
    ]
    return [*parts, parent]


def check_hold_offset(offset: object) -> None:
    """Check that the offset of a hold is a whole number."""
    if not is_whole(offset):
        raise InvalidRequest("offset must be a whole number", got=type(offset).__name__)


def check_hold_name(name: object) -> str:
    """Check the name of a hold."""
    if not isinstance(name, str) or not _HOLD_NAME.match(name):
        raise InvalidRequest(
            "hold name must be 1 to 200 letters, digits or any of _.:/-", name=name
        )
    return name


SHARED_OPTIONS: Final = (
    "sync",
    "retention_us",
    "retention_bytes",
    "on_full",
    "unknown_key",
    "signals",
    "lake",
    "objects",
    "objects_retention_us",
    "objects_retention_bytes",
)
"""The options that `alter` may change of a partitioned topic and all its parts."""


def topic_control(spec: TopicSpec) -> Control:
    """Return the frame that defines a topic."""
    return Control(fmt.KIND_TOPIC, spec.id, TOPIC_ENCODER.encode(spec))


def schema_control(topic_id: int, version: int, data: bytes) -> Control:
    """Return the frame that defines one version of a topic's columns."""
    return Control(fmt.KIND_SCHEMA, topic_id, data, schema=version)


def unfinished(topics: Mapping[int, TopicState], *, now_us: int) -> tuple[list[Control], list[str]]:
    """Return the frames that remove half-made topics and complete half-altered ones, and warnings.

    A table topic without columns, or parts without their parent, were never acknowledged.
    """
    live = [topic for topic in topics.values() if not topic.spec.deleted_us]
    parents = {topic.id: topic.spec for topic in live if topic.spec.partitions}
    controls: list[Control] = []
    warnings: list[str] = []
    families: dict[int, list[TopicState]] = {}
    for topic in live:
        spec = topic.spec
        if _is_half_made(topic, parents):
            warnings.append(f"topic {spec.name} was half made or half deleted and is removed")
            controls.append(topic_control(msgspec.structs.replace(spec, deleted_us=now_us)))
        elif spec.part_of:
            controls += _like_parent(spec, parents[spec.part_of])
            families.setdefault(spec.part_of, []).append(topic)
    for parent, parts in families.items():
        try:
            controls += _missing_of_parts(parts)
        except CorruptionError as error:
            warnings.append(f"parts of topic {parents[parent].name} are left as they are: {error}")
    return controls, warnings


def _is_half_made(topic: TopicState, parents: Mapping[int, TopicSpec]) -> bool:
    spec = topic.spec
    columns_missing = spec.kind == "table" and not spec.partitions and not topic.schemas
    return columns_missing or bool(spec.part_of and spec.part_of not in parents)


def _missing_of_parts(parts: Sequence[TopicState]) -> list[Control]:
    whole = shared_schemas(part.schemas for part in parts)
    return [each for part in parts for each in missing_schemas(part.id, part.schemas, whole)]


def parts_options(parent: TopicSpec) -> dict[str, Any]:
    """Return the options that a partitioned topic gives to its parts."""
    return {name: getattr(parent, name) for name in SHARED_OPTIONS}


def _like_parent(part: TopicSpec, parent: TopicSpec) -> list[Control]:
    if part.version >= parent.version:
        return []
    fresh = msgspec.structs.replace(part, version=parent.version, **parts_options(parent))
    return [topic_control(fresh)]


def shared_schemas(copies: Iterable[Mapping[int, bytes]]) -> dict[int, bytes]:
    """Return the versions of the columns of several parts as one history.

    Raises:
        CorruptionError: if a version differs between parts; using it for all parts would show the
            values of one column under the name of another.
    """
    whole: dict[int, bytes] = {}
    for copy in copies:
        for version, data in copy.items():
            if whole.setdefault(version, data) != data:
                raise CorruptionError(
                    "one version of the columns differs between the parts of a topic",
                    version=version,
                )
    return dict(sorted(whole.items()))


def missing_schemas(
    topic_id: int, have: Mapping[int, bytes], whole: Mapping[int, bytes]
) -> list[Control]:
    """Return the versions that one part lacks because a crash interrupted an `alter`.

    The last frame defines the current version, so no older version may follow it.
    """
    current = max(have, default=0)
    return [
        schema_control(topic_id, version, data)
        for version, data in sorted(whole.items())
        if version > current
    ]
