"""A draft: metadata in the making. Updates go in one by one, then the whole is finished. Pure.

The base is never changed: dictionaries are copied one level deep, and lists are replaced, not
edited, so that the cached metadata of the base stays whole and a commit costs little.
"""

from __future__ import annotations

from functools import singledispatchmethod
from typing import TYPE_CHECKING, Final

from frazil.lake.catalog import updates as up
from frazil.lake.catalog.metadata import FORMAT_VERSIONS, MAIN
from frazil.lake.catalog.refusals import bad_request, commit_failed
from frazil.lake.catalog.schemas import (
    Json,
    bound_fields,
    check_schema,
    column_ids,
    id_highest,
    same_schema,
    spec_fields,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["PREVIOUS_VERSIONS_MAX", "Draft", "previous_versions_max"]

PREVIOUS_VERSIONS_MAX: Final = "write.metadata.previous-versions-max"
PREVIOUS_VERSIONS_DEFAULT: Final = 100
LAST_ADDED: Final = -1


class Draft:
    """Metadata that a commit is building on `base`.

    Args:
        base: complete metadata; a skeleton for a new table.
        now_ms: the time of the commit.
        is_new: whether the base is a skeleton.
        check_location: refuses a location outside of the warehouse.
    """

    def __init__(
        self, base: Json, *, now_ms: int, is_new: bool, check_location: Callable[[str], None]
    ) -> None:
        self.metadata = dict(base)
        self.changed = is_new
        self._base = base
        self._is_new = is_new
        self._now_ms = now_ms
        self._check_location = check_location
        self._updated_ms: int | None = None
        self._schema_added: int | None = None
        self._spec_added: int | None = None
        self._order_added: int | None = None
        self._snapshots_added: set[int] = set()
        self._snapshots_removed = False

    def apply_all(self, updates: Iterable[up.Update]) -> None:
        """Apply updates in their order.

        Raises:
            Refusal: 400 if one makes no sense, 409 if the table has moved on under it.
        """
        for update in updates:
            self.apply(update)

    @singledispatchmethod
    def apply(self, update: object) -> None:
        """Apply one update."""
        raise bad_request("update is not known", action=type(update).__name__)

    def _set(self, key: str, value: object) -> None:
        if self.metadata.get(key) != value:
            self.metadata[key] = value
            self.changed = True

    # ---------------------------------------------------------------- the table itself
    @apply.register
    def _(self, update: up.AssignUuid) -> None:
        if not self._is_new and update.uuid.lower() != str(self.metadata["table-uuid"]).lower():
            raise bad_request("uuid of a table cannot change", uuid=update.uuid)
        self.metadata["table-uuid"] = update.uuid

    @apply.register
    def _(self, update: up.UpgradeFormatVersion) -> None:
        version, wanted = self.metadata["format-version"], update.format_version
        if wanted not in FORMAT_VERSIONS:
            raise bad_request("format version is not supported", format_version=wanted)
        if wanted < version:
            raise bad_request("format version cannot go back", format_version=wanted, is_at=version)
        self._set("format-version", wanted)
        if wanted >= 3:
            self.metadata.setdefault("next-row-id", 0)

    @apply.register
    def _(self, update: up.SetLocation) -> None:
        location = update.location.rstrip("/")
        if location != self.metadata["location"]:
            self._check_location(location)
            self._set("location", location)

    @apply.register
    def _(self, update: up.SetProperties) -> None:
        self._set("properties", {**self.metadata["properties"], **update.updates})

    @apply.register
    def _(self, update: up.RemoveProperties) -> None:
        gone = set(update.removals)
        properties = self.metadata["properties"]
        self._set("properties", {key: properties[key] for key in properties if key not in gone})

    # ------------------------------------------------------- schemas, specs and orders
    @apply.register
    def _(self, update: up.AddSchema) -> None:
        schema = update.schema
        check_schema(schema)
        last = self.metadata["last-column-id"]
        if update.last_column_id is not None and update.last_column_id < last:
            raise bad_request(
                "last column id cannot go back", last_column_id=update.last_column_id, is_at=last
            )
        self._set("last-column-id", max(last, id_highest(schema), update.last_column_id or 0))
        schemas = self.metadata["schemas"]
        for known in schemas:
            if same_schema(known, schema):
                self._schema_added = known["schema-id"]
                return
        number = max((known["schema-id"] for known in schemas), default=-1) + 1
        self._set("schemas", [*schemas, {**schema, "type": "struct", "schema-id": number}])
        self._schema_added = number

    @apply.register
    def _(self, update: up.SetCurrentSchema) -> None:
        number = _chosen(update.schema_id, self._schema_added, "schema")
        self._known("schemas", "schema-id", number, "schema")
        self._set("current-schema-id", number)

    def _known(self, key: str, id_key: str, number: int, what: str) -> Json:
        for item in self.metadata[key]:
            if item[id_key] == number:
                found: Json = item
                return found
        raise bad_request(f"{what} is not known", id=number)

    def _columns(self, what: str) -> dict[int, int]:
        """Return the ids of the current columns, each as its own new id."""
        if not self.metadata["schemas"]:
            raise bad_request(f"{what} cannot be added before a schema")
        current = self.metadata["current-schema-id"]
        ids = column_ids(self._known("schemas", "schema-id", current, "schema"))
        return {number: number for number in ids}

    @apply.register
    def _(self, update: up.AddPartitionSpec) -> None:
        specs = self.metadata["partition-specs"]
        columns = self._columns("partition spec")
        fields = bound_fields(update.spec.get("fields", ()), columns, what="partition")
        earlier = [field for spec in specs for field in spec["fields"]]
        made, last = spec_fields(
            fields, earlier=earlier, last_id=self.metadata["last-partition-id"]
        )
        for spec in specs:
            if _without(spec["fields"], "field-id") == _without(made, "field-id"):
                self._spec_added = spec["spec-id"]
                return
        number = max((spec["spec-id"] for spec in specs), default=-1) + 1
        self._set("partition-specs", [*specs, {"spec-id": number, "fields": made}])
        self._set("last-partition-id", last)
        self._spec_added = number

    @apply.register
    def _(self, update: up.SetDefaultSpec) -> None:
        number = _chosen(update.spec_id, self._spec_added, "partition spec")
        self._known("partition-specs", "spec-id", number, "partition spec")
        self._set("default-spec-id", number)

    @apply.register
    def _(self, update: up.AddSortOrder) -> None:
        orders = self.metadata["sort-orders"]
        columns = self._columns("sort order")
        fields = bound_fields(update.sort_order.get("fields", ()), columns, what="sort")
        for order in orders:
            if order["fields"] == fields:
                self._order_added = order["order-id"]
                return
        highest = max((order["order-id"] for order in orders), default=0)
        number = highest + 1 if fields else 0
        self._set("sort-orders", [*orders, {"order-id": number, "fields": fields}])
        self._order_added = number

    @apply.register
    def _(self, update: up.SetDefaultSortOrder) -> None:
        number = _chosen(update.sort_order_id, self._order_added, "sort order")
        self._known("sort-orders", "order-id", number, "sort order")
        self._set("default-sort-order-id", number)

    @apply.register
    def _(self, update: up.RemovePartitionSpecs) -> None:
        if self.metadata["default-spec-id"] in update.spec_ids:
            raise bad_request("default partition spec cannot be removed")
        self._remove("partition-specs", "spec-id", update.spec_ids)

    @apply.register
    def _(self, update: up.RemoveSchemas) -> None:
        if self.metadata["current-schema-id"] in update.schema_ids:
            raise bad_request("current schema cannot be removed")
        self._remove("schemas", "schema-id", update.schema_ids)

    # ---------------------------------------------------------------- snapshots and refs
    @apply.register
    def _(self, update: up.AddSnapshot) -> None:
        snapshot, metadata = update.snapshot, self.metadata
        number = _number(snapshot, "snapshot-id")
        time_ms = _number(snapshot, "timestamp-ms")
        if not metadata["schemas"] or not metadata["partition-specs"]:
            raise bad_request("snapshot cannot be added before a schema and a partition spec")
        if any(known["snapshot-id"] == number for known in metadata["snapshots"]):
            raise bad_request("snapshot already exists", id=number)
        self._take_sequence(snapshot)
        if metadata["format-version"] >= 3:
            self._take_rows(snapshot)
        self._set("snapshots", [*metadata["snapshots"], snapshot])
        self._snapshots_added.add(number)
        self._updated_ms = time_ms

    def _take_sequence(self, snapshot: Json) -> None:
        sequence, last = _number(snapshot, "sequence-number"), self.metadata["last-sequence-number"]
        if sequence <= last and snapshot.get("parent-snapshot-id") is not None:
            raise commit_failed(
                "snapshot's sequence number is not above the table's last",
                sequence_number=sequence,
                last_sequence_number=last,
            )
        self._set("last-sequence-number", max(last, sequence))

    def _take_rows(self, snapshot: Json) -> None:
        """Assign row ids to the snapshot's rows: each row of a table has one permanent id."""
        first, following = _number(snapshot, "first-row-id"), self.metadata["next-row-id"]
        added = _number(snapshot, "added-rows")
        if first != following:
            raise commit_failed(
                "snapshot's first row id is not the table's next",
                first_row_id=first,
                next_row_id=following,
            )
        if added < 0:
            raise bad_request("snapshot adds less than no rows", added_rows=added)
        self._set("next-row-id", following + added)

    @apply.register
    def _(self, update: up.SetSnapshotRef) -> None:
        ref = _ref_of(update)
        name, number = update.ref_name, update.snapshot_id
        if self.metadata["refs"].get(name) == ref:
            return
        snapshots = [s for s in self.metadata["snapshots"] if s["snapshot-id"] == number]
        if not snapshots:
            raise bad_request("ref cannot point at an unknown snapshot", ref=name, id=number)
        self._set("refs", {**self.metadata["refs"], name: ref})
        if number in self._snapshots_added:
            self._updated_ms = snapshots[0]["timestamp-ms"]
        if name == MAIN:
            self._set("current-snapshot-id", number)
            log = self.metadata["snapshot-log"]
            time_ms = self._now_ms if self._updated_ms is None else self._updated_ms
            self._updated_ms = time_ms
            # Readers refuse a log with decreasing times, which a client's clock could cause.
            if log:
                time_ms = max(time_ms, log[-1]["timestamp-ms"])
            self._set("snapshot-log", [*log, {"snapshot-id": number, "timestamp-ms": time_ms}])

    @apply.register
    def _(self, update: up.RemoveSnapshotRef) -> None:
        self._drop_ref(update.ref_name)

    def _drop_ref(self, name: str) -> None:
        refs = self.metadata["refs"]
        if name in refs:
            self._set("refs", {key: ref for key, ref in refs.items() if key != name})
        if name == MAIN:
            self._set("current-snapshot-id", None)
            self._set("snapshot-log", [])

    @apply.register
    def _(self, update: up.RemoveSnapshots) -> None:
        gone = set(update.snapshot_ids)
        snapshots = [s for s in self.metadata["snapshots"] if s["snapshot-id"] not in gone]
        if len(snapshots) == len(self.metadata["snapshots"]):
            return
        self._set("snapshots", snapshots)
        self._snapshots_removed = True
        left = {snapshot["snapshot-id"] for snapshot in snapshots}
        for key in ("statistics", "partition-statistics"):
            self._remove(key, "snapshot-id", gone)
        for name, ref in list(self.metadata["refs"].items()):
            if ref["snapshot-id"] not in left:
                self._drop_ref(name)

    @apply.register
    def _(self, update: up.SetStatistics) -> None:
        self._put_statistics("statistics", update.statistics)

    @apply.register
    def _(self, update: up.SetPartitionStatistics) -> None:
        self._put_statistics("partition-statistics", update.partition_statistics)

    @apply.register
    def _(self, update: up.RemoveStatistics) -> None:
        self._remove("statistics", "snapshot-id", {update.snapshot_id})

    @apply.register
    def _(self, update: up.RemovePartitionStatistics) -> None:
        self._remove("partition-statistics", "snapshot-id", {update.snapshot_id})

    def _put_statistics(self, key: str, statistics: Json) -> None:
        self._remove(key, "snapshot-id", {_number(statistics, "snapshot-id")})
        self._set(key, [*self.metadata[key], statistics])

    def _remove(self, key: str, id_name: str, numbers: Iterable[int]) -> None:
        gone = set(numbers)
        self._set(key, [item for item in self.metadata[key] if item[id_name] not in gone])

    # ------------------------------------------------------------------------ the end
    def finish(self, base_location: str | None) -> Json:
        """Return the metadata to write, with its times and logs.

        Args:
            base_location: the file of the base, None for a new table.

        Raises:
            Refusal: something that a table must have is missing.
        """
        metadata = self.metadata
        if self._is_new:
            self._check_whole()
        self._trim_snapshot_log()
        base_ms = self._base["last-updated-ms"]
        if base_location is not None:
            entry = {"metadata-file": base_location, "timestamp-ms": base_ms}
            log = metadata["metadata-log"]
            if log:
                entry["timestamp-ms"] = max(base_ms, log[-1]["timestamp-ms"])
            keep = previous_versions_max(metadata["properties"])
            metadata["metadata-log"] = [*log, entry][-keep:]
        updated_ms = self._now_ms if self._updated_ms is None else self._updated_ms
        metadata["last-updated-ms"] = updated_ms if self._is_new else max(updated_ms, base_ms)
        return metadata

    def _check_whole(self) -> None:
        metadata = self.metadata
        if not metadata["location"]:
            raise bad_request("new table has no location")
        for key, id_key, chosen in (
            ("schemas", "schema-id", "current-schema-id"),
            ("partition-specs", "spec-id", "default-spec-id"),
            ("sort-orders", "order-id", "default-sort-order-id"),
        ):
            if not metadata[key]:
                raise bad_request("new table is not complete", missing=key)
            if all(item[id_key] != metadata[chosen] for item in metadata[key]):
                # The request set no default: an unknown id would have been refused.
                metadata[chosen] = metadata[key][-1][id_key]

    def _trim_snapshot_log(self) -> None:
        """Drop entries of removed snapshots, and of those current only within this commit.

        Entries before a removed one are no longer part of the history and are dropped as well.
        """
        passing = self._snapshots_added - {self.metadata["current-snapshot-id"]}
        if not passing and not self._snapshots_removed:
            return
        known = {snapshot["snapshot-id"] for snapshot in self.metadata["snapshots"]}
        log: list[Json] = []
        for entry in self.metadata["snapshot-log"]:
            number = entry["snapshot-id"]
            if number not in known:
                log.clear()
            elif number not in passing:
                log.append(entry)
        self.metadata["snapshot-log"] = log


def previous_versions_max(properties: Json) -> int:
    """Return how many earlier metadata files the log of a table names, at least one."""
    try:
        return max(1, int(properties.get(PREVIOUS_VERSIONS_MAX, PREVIOUS_VERSIONS_DEFAULT)))
    except ValueError as error:
        raise bad_request(
            "property is no number",
            key=PREVIOUS_VERSIONS_MAX,
            value=properties[PREVIOUS_VERSIONS_MAX],
        ) from error


def _chosen(number: int, added: int | None, what: str) -> int:
    if number != LAST_ADDED:
        return number
    if added is None:
        raise bad_request(f"last added {what} is meant, but none was added")
    return added


def _number(values: Json, key: str) -> int:
    value = values.get(key)
    if not isinstance(value, int) or isinstance(value, bool):
        raise bad_request("number is missing", key=key, found=value)
    return value


def _without(fields: list[Json], key: str) -> list[Json]:
    return [{name: item for name, item in field.items() if name != key} for field in fields]


def _ref_of(update: up.SetSnapshotRef) -> Json:
    kind = update.type.lower()
    if kind not in {"branch", "tag"}:
        raise bad_request("ref is neither branch nor tag", ref=update.ref_name, type=update.type)
    if kind == "tag" and update.ref_name == MAIN:
        raise bad_request("main must be a branch")
    if kind == "tag" and (update.min_snapshots_to_keep or update.max_snapshot_age_ms):
        raise bad_request("tag keeps one snapshot only", ref=update.ref_name)
    ref: Json = {"snapshot-id": update.snapshot_id, "type": kind}
    for key, value in (
        ("min-snapshots-to-keep", update.min_snapshots_to_keep),
        ("max-snapshot-age-ms", update.max_snapshot_age_ms),
        ("max-ref-age-ms", update.max_ref_age_ms),
    ):
        if value is not None:
            if value <= 0:
                raise bad_request("retention of a ref must be above zero", key=key, value=value)
            ref[key] = value
    return ref
