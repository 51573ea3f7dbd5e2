"""Every update does to the metadata what the specification says, and never touches its base."""

from __future__ import annotations

import copy

import msgspec
import pytest

from frazil.lake.catalog.draft import Draft
from frazil.lake.catalog.metadata import new_table, skeleton
from frazil.lake.catalog.refusals import Refusal
from frazil.lake.catalog.requirements import Requirement, check
from frazil.lake.catalog.updates import Update

NOW = 1_000_000


def schema(*names, **more):
    fields = [
        {"id": number, "name": name, "required": False, "type": "long"}
        for number, name in enumerate(names, 1)
    ]
    return {"type": "struct", "fields": fields, **more}


def fresh(version=2, **properties):
    return new_table(
        schema=schema("a", "b"),
        spec=None,
        order=None,
        location="/wh/t",
        properties={"format-version": str(version), **properties},
        uuid="11111111-aaaa-4bbb-8ccc-222222222222",
        now_ms=NOW,
    )


def snapshot(number, sequence, parent=None, **more):
    made = {
        "snapshot-id": number,
        "sequence-number": sequence,
        "timestamp-ms": NOW + sequence,
        "manifest-list": f"/wh/t/metadata/snap-{number}.avro",
        "summary": {"operation": "append"},
        "schema-id": 0,
        **more,
    }
    return made if parent is None else {**made, "parent-snapshot-id": parent}


def add(number, sequence, parent=None, **more):
    return {"action": "add-snapshot", "snapshot": snapshot(number, sequence, parent, **more)}


def point(number, name="main", kind="branch", **more):
    given = {"ref-name": name, "type": kind, "snapshot-id": number, **more}
    return {"action": "set-snapshot-ref", **given}


def refuse_elsewhere(location):
    if not location.startswith("/wh/"):
        raise Refusal(400, "BadRequestException", "elsewhere")


def drafted(base, *updates, now_ms=NOW + 500, is_new=False):
    draft = Draft(base, now_ms=now_ms, is_new=is_new, check_location=refuse_elsewhere)
    draft.apply_all(msgspec.convert(list(updates), list[Update]))
    return draft


def applied(base, *updates, location="/wh/t/metadata/00000-x.metadata.json", **more):
    kept = copy.deepcopy(base)
    draft = drafted(base, *updates, **more)
    made = draft.finish(location)
    assert base == kept, "an update changed the base"
    return made


def refused(base, *updates, is_new=False):
    with pytest.raises(Refusal) as caught:
        applied(base, *updates, is_new=is_new)
    return caught.value


def test_a_snapshot_on_main_is_current_and_logged():
    """Adding a snapshot and pointing main at it makes it current, at its own time."""
    made = applied(fresh(), add(7, 1), point(7))
    assert made["current-snapshot-id"] == 7
    assert made["refs"] == {"main": {"snapshot-id": 7, "type": "branch"}}
    assert made["snapshot-log"] == [{"snapshot-id": 7, "timestamp-ms": NOW + 1}]
    assert (made["last-updated-ms"], made["last-sequence-number"]) == (NOW + 1, 1)


def test_a_snapshot_passed_within_one_commit_is_not_logged():
    """Two snapshots in one commit leave only the last in the log."""
    made = applied(fresh(), add(7, 1), point(7), add(8, 2, 7), point(8))
    assert [entry["snapshot-id"] for entry in made["snapshot-log"]] == [8]
    assert len(made["snapshots"]) == 2


def test_a_stale_sequence_number_is_a_failed_commit():
    """A snapshot built on an older state is a conflict that the client may retry."""
    base = applied(fresh(), add(7, 5), point(7))
    refusal = refused(base, add(8, 5, 7))
    assert (refusal.status, refusal.kind) == (409, "CommitFailedException")
    assert applied(base, add(8, 6, 7))["last-sequence-number"] == 6


def test_a_snapshot_comes_once():
    """The same snapshot id cannot be added again."""
    base = applied(fresh(), add(7, 1), point(7))
    assert refused(base, add(7, 2, 7)).status == 400


@pytest.mark.parametrize("key", ["snapshot-id", "timestamp-ms", "sequence-number"])
def test_a_snapshot_without_its_numbers_is_refused(key):
    """Numbers that readers need must be there."""
    update = add(7, 1)
    del update["snapshot"][key]
    assert refused(fresh(), update).status == 400


def test_row_lineage_gives_each_row_an_id_of_its_own():
    """In version 3 a snapshot must start at the next row id, which then moves on."""
    base = fresh(3)
    first = {"first-row-id": 0, "added-rows": 10}
    made = applied(base, add(7, 1, **first), point(7))
    assert made["next-row-id"] == 10
    stale = refused(made, add(8, 2, 7, **{"first-row-id": 0, "added-rows": 5}))
    assert stale.kind == "CommitFailedException"
    ahead = refused(made, add(8, 2, 7, **{"first-row-id": 11, "added-rows": 5}))
    assert ahead.kind == "CommitFailedException"
    assert refused(made, add(8, 2, 7)).status == 400
    assert refused(made, add(8, 2, 7, **{"first-row-id": 10, "added-rows": -1})).status == 400
    later = applied(made, add(8, 2, 7, **{"first-row-id": 10, "added-rows": 0}), point(8))
    assert later["next-row-id"] == 10


def test_an_upgrade_to_version_3_starts_to_count_rows():
    """Upgrading keeps snapshots and sets the next row id; going back is refused."""
    base = applied(fresh(), add(7, 1), point(7))
    made = applied(base, {"action": "upgrade-format-version", "format-version": 3})
    assert (made["format-version"], made["next-row-id"]) == (3, 0)
    assert refused(made, {"action": "upgrade-format-version", "format-version": 2}).status == 400
    assert refused(made, {"action": "upgrade-format-version", "format-version": 4}).status == 400


@pytest.mark.parametrize(
    "update",
    [
        point(99, "b"),
        point(7, "main", "tag"),
        point(7, "b", "twig"),
        point(7, "t", "tag", **{"min-snapshots-to-keep": 2}),
        point(7, "b", **{"max-ref-age-ms": 0}),
    ],
)
def test_a_ref_that_makes_no_sense_is_refused(update):
    """A ref has a kind, a snapshot and a retention that fits."""
    base = applied(fresh(), add(7, 1), point(7))
    assert refused(base, update).status == 400


def test_a_rollback_is_logged_now():
    """Setting main to an old snapshot makes it current and adds an entry at the commit's time."""
    base = applied(fresh(), add(7, 1), point(7))
    base = applied(base, add(8, 2, 7), point(8))
    made = applied(base, point(7))
    assert made["current-snapshot-id"] == 7
    assert [e["snapshot-id"] for e in made["snapshot-log"]] == [7, 8, 7]
    assert made["snapshot-log"][-1]["timestamp-ms"] == NOW + 500


def test_times_in_the_logs_never_go_back():
    """A client whose clock is behind cannot make a log that readers refuse."""
    base = applied(fresh(), add(7, 1), point(7))
    late = add(8, 2, 7)
    late["snapshot"]["timestamp-ms"] = NOW - 3_600_000
    made = applied(base, late, point(8))
    times = [entry["timestamp-ms"] for entry in made["snapshot-log"]]
    assert times == sorted(times)
    assert made["last-updated-ms"] >= times[-1]
    again = applied(made, {"action": "set-properties", "updates": {"k": "v"}}, now_ms=5)
    files = [entry["timestamp-ms"] for entry in again["metadata-log"]]
    assert files == sorted(files)


def test_removing_snapshots_takes_refs_and_statistics_along():
    """What needs a removed snapshot goes with it, and so does the history before it."""
    base = applied(fresh(), add(7, 1), point(7))
    base = applied(base, add(8, 2, 7), point(8), point(7, "old", "tag"))
    base["partition-statistics"] = base["statistics"] = [{"snapshot-id": 7}]
    made = applied(base, {"action": "remove-snapshots", "snapshot-ids": [7, 12345]})
    assert [s["snapshot-id"] for s in made["snapshots"]] == [8]
    assert set(made["refs"]) == {"main"}
    assert made["statistics"] == made["partition-statistics"] == []
    assert [e["snapshot-id"] for e in made["snapshot-log"]] == [8]


@pytest.mark.parametrize("key", ["statistics", "partition-statistics"])
def test_a_snapshot_has_at_most_one_statistics_file_of_each_kind(key):
    """Setting replaces the file of the same snapshot only; removing drops it."""
    base = applied(fresh(), add(7, 1), point(7), add(8, 2, 7), point(8))
    sets = [
        {"action": f"set-{key}", key: {"snapshot-id": number, "statistics-path": path}}
        for number, path in ((7, "a"), (8, "b"), (7, "c"))
    ]
    made = applied(base, *sets)
    assert {item["snapshot-id"]: item["statistics-path"] for item in made[key]} == {7: "c", 8: "b"}
    left = applied(made, {"action": f"remove-{key}", "snapshot-id": 7})
    assert left[key] == [{"snapshot-id": 8, "statistics-path": "b"}]


def test_removing_the_branch_main_leaves_no_current_snapshot():
    """Without main nothing is current and there is no history."""
    base = applied(fresh(), add(7, 1), point(7))
    made = applied(base, {"action": "remove-snapshot-ref", "ref-name": "main"})
    assert made["current-snapshot-id"] is None
    assert (made["snapshot-log"], made["refs"], len(made["snapshots"])) == ([], {}, 1)


def test_schemas_are_found_again_or_added():
    """An equal schema keeps its id, another gets the next; -1 is the one just added."""
    base = fresh()
    same = drafted(base, {"action": "add-schema", "schema": schema("a", "b")})
    assert not same.changed
    last = {"action": "set-current-schema", "schema-id": -1}
    made = applied(base, {"action": "add-schema", "schema": schema("a", "b", "c")}, last)
    assert (made["current-schema-id"], made["last-column-id"]) == (1, 3)
    assert [s["schema-id"] for s in made["schemas"]] == [0, 1]
    back = applied(made, {"action": "add-schema", "schema": schema("a", "b")}, last)
    assert (back["current-schema-id"], back["last-column-id"], len(back["schemas"])) == (0, 3, 2)


@pytest.mark.parametrize(
    "update",
    [
        {"action": "set-current-schema", "schema-id": 9},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "set-default-spec", "spec-id": 9},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "set-default-sort-order", "sort-order-id": 9},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "add-schema", "schema": schema("a", "b", "c"), "last-column-id": 1},
        {"action": "remove-schemas", "schema-ids": [0]},
        {"action": "remove-partition-specs", "spec-ids": [0]},
        {"action": "set-location", "location": "/elsewhere/t"},
        {"action": "assign-uuid", "uuid": "33333333-aaaa-4bbb-8ccc-222222222222"},
    ],
)
def test_an_update_that_makes_no_sense_is_refused(update):
    """Unknown ids, removals of what is in use and changes of identity are bad requests."""
    assert refused(fresh(), update).kind == "BadRequestException"


def part(source, name, transform="identity", **more):
    return {"source-id": source, "name": name, "transform": transform, **more}


def test_specs_get_ids_and_are_found_again():
    """New partition fields get the next id, known ones keep theirs, an equal spec keeps its own."""
    last = {"action": "set-default-spec", "spec-id": -1}
    made = applied(fresh(), {"action": "add-spec", "spec": {"fields": [part(1, "a")]}}, last)
    assert made["default-spec-id"] == 1
    assert made["partition-specs"][1]["fields"][0]["field-id"] == 1000
    both = {"fields": [part(2, "b"), part(1, "a")]}
    made = applied(made, {"action": "add-spec", "spec": both}, last)
    assert [f["field-id"] for f in made["partition-specs"][2]["fields"]] == [1001, 1000]
    assert (made["default-spec-id"], made["last-partition-id"]) == (2, 1001)
    again = {"fields": [part(1, "a", **{"field-id": 1000})]}
    made = applied(made, {"action": "add-spec", "spec": again}, last)
    assert (made["default-spec-id"], len(made["partition-specs"])) == (1, 3)


@pytest.mark.parametrize(
    "fields",
    [
        [part(9, "x")],
        [part(1, "x"), part(2, "x")],
        [part(1, "")],
        [part(1, "x", **{"field-id": 1000}), part(2, "y", **{"field-id": 1000})],
    ],
)
def test_a_spec_that_makes_no_sense_is_refused(fields):
    """A spec has known sources, names of its own and ids of its own."""
    assert refused(fresh(), {"action": "add-spec", "spec": {"fields": fields}}).status == 400


def test_orders_are_numbered_from_one_and_found_again():
    """Unsorted is 0; the first order is 1, the next 2."""
    last = {"action": "set-default-sort-order", "sort-order-id": -1}

    def order(*sources):
        sides = {"transform": "identity", "direction": "asc", "null-order": "nulls-first"}
        fields = [{"source-id": source, **sides} for source in sources]
        return {"action": "add-sort-order", "sort-order": {"order-id": 77, "fields": fields}}

    made = applied(fresh(), order(1), last)
    assert made["default-sort-order-id"] == 1
    made = applied(made, order(2, 1), last)
    assert made["default-sort-order-id"] == 2
    made = applied(made, order(1), last)
    assert made["default-sort-order-id"] == 1
    made = applied(made, order(), last)
    assert made["default-sort-order-id"] == 0
    assert [o["order-id"] for o in made["sort-orders"]] == [0, 1, 2]
    assert refused(made, order(9)).status == 400


def test_unused_schemas_and_specs_can_be_forgotten():
    """Expiry with clean_expired_metadata removes what nothing uses."""
    made = applied(
        fresh(),
        {"action": "add-schema", "schema": schema("a", "b", "c")},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": {"fields": [part(1, "a")]}},
        {"action": "set-default-spec", "spec-id": -1},
    )
    made = applied(
        made,
        {"action": "remove-schemas", "schema-ids": [0]},
        {"action": "remove-partition-specs", "spec-ids": [0]},
    )
    assert [s["schema-id"] for s in made["schemas"]] == [1]
    assert [s["spec-id"] for s in made["partition-specs"]] == [1]
    assert made["last-column-id"] == 3


def test_properties_and_location_change():
    """Properties are set over the old ones and removed; a location may move inside."""
    made = applied(
        fresh(2, k="v", gone="x"),
        {"action": "set-properties", "updates": {"k": "w", "n": "1"}},
        {"action": "remove-properties", "removals": ["gone", "never"]},
        {"action": "set-location", "location": "/wh/other/"},
    )
    assert made["properties"] == {"k": "w", "n": "1", "write.parquet.compression-codec": "zstd"}
    assert (made["location"], made["last-updated-ms"]) == ("/wh/other", NOW + 500)


NOTHING = [
    {"action": "set-properties", "updates": {"k": "v"}},
    {"action": "remove-properties", "removals": ["never"]},
    {"action": "remove-snapshots", "snapshot-ids": [5]},
    {"action": "remove-snapshot-ref", "ref-name": "nobody"},
    {"action": "set-location", "location": "/wh/t"},
    {"action": "upgrade-format-version", "format-version": 2},
    {"action": "assign-uuid", "uuid": "11111111-AAAA-4bbb-8ccc-222222222222"},
    {"action": "set-current-schema", "schema-id": 0},
    {"action": "remove-schemas", "schema-ids": [44]},
]


@pytest.mark.parametrize("update", NOTHING, ids=lambda update: update["action"])
def test_an_update_that_changes_nothing_is_no_change(update):
    """What is true already makes no new metadata."""
    assert not drafted(fresh(2, k="v"), update).changed


def test_the_log_of_metadata_is_bounded():
    """The newest files before this one are named, as many as the property says."""
    base = fresh(2, **{"write.metadata.previous-versions-max": "3"})
    for number in range(6):
        update = {"action": "set-properties", "updates": {"n": str(number)}}
        base = applied(base, update, location=f"/m/{number}", now_ms=NOW + number)
    assert [entry["metadata-file"] for entry in base["metadata-log"]] == ["/m/3", "/m/4", "/m/5"]
    assert [entry["timestamp-ms"] for entry in base["metadata-log"]] == [NOW + 2, NOW + 3, NOW + 4]


def test_a_bound_that_is_no_number_is_refused():
    """A property that the catalog itself needs is checked."""
    update = {
        "action": "set-properties",
        "updates": {"write.metadata.previous-versions-max": "many"},
    }
    assert refused(fresh(), update).status == 400


CREATION = [
    {"action": "assign-uuid", "uuid": "44444444-aaaa-4bbb-8ccc-222222222222"},
    {"action": "add-schema", "schema": schema("a", "b")},
    {"action": "set-current-schema", "schema-id": -1},
    {"action": "add-spec", "spec": {"fields": []}},
    {"action": "set-default-spec", "spec-id": -1},
    {"action": "add-sort-order", "sort-order": {"fields": []}},
    {"action": "set-default-sort-order", "sort-order-id": -1},
    {"action": "set-location", "location": "/wh/new"},
]


def test_a_staged_table_is_made_by_its_updates():
    """A commit on nothing makes a whole table with the ids that the updates bring."""
    base = skeleton(format_version=2, uuid="u", now_ms=NOW)
    made = applied(base, *CREATION, add(7, 1), point(7), location=None, is_new=True)
    assert made["table-uuid"].startswith("44444444")
    assert (made["current-schema-id"], made["default-spec-id"]) == (0, 0)
    assert (made["default-sort-order-id"], made["location"]) == (0, "/wh/new")
    assert (made["metadata-log"], made["current-snapshot-id"]) == ([], 7)


def test_the_first_parts_of_a_staged_table_are_the_current_ones():
    """A client that chooses none, as DuckDB, gets what it added."""
    base = skeleton(format_version=2, uuid="u", now_ms=NOW)
    chosen = [update for update in CREATION if not update["action"].startswith(("set-c", "set-d"))]
    made = applied(base, *chosen, location=None, is_new=True)
    assert len(chosen) == 5
    assert (made["current-schema-id"], made["default-spec-id"]) == (0, 0)


@pytest.mark.parametrize("missing", [1, 3, 5, 7])
def test_a_staged_table_without_one_of_its_parts_is_refused(missing):
    """A table needs a schema, a spec, an order and a location."""
    base = skeleton(format_version=2, uuid="u", now_ms=NOW)
    gone = {missing} if missing == 7 else {missing, missing + 1}
    updates = [update for number, update in enumerate(CREATION) if number not in gone]
    assert refused(base, *updates, is_new=True).status == 400


TRUE = [
    {"type": "assert-table-uuid", "uuid": "11111111-AAAA-4bbb-8ccc-222222222222"},
    {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 7},
    {"type": "assert-ref-snapshot-id", "ref": "none", "snapshot-id": None},
    {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 2},
    {"type": "assert-current-schema-id", "current-schema-id": 0},
    {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 999},
    {"type": "assert-default-spec-id", "default-spec-id": 0},
    {"type": "assert-default-sort-order-id", "default-sort-order-id": 0},
]
FALSE = [
    {"type": "assert-create"},
    {"type": "assert-table-uuid", "uuid": "51111111-aaaa-4bbb-8ccc-222222222222"},
    {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": 8},
    {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": None},
    {"type": "assert-ref-snapshot-id", "ref": "none", "snapshot-id": 7},
    {"type": "assert-last-assigned-field-id", "last-assigned-field-id": 1},
    {"type": "assert-current-schema-id", "current-schema-id": 1},
    {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": 1000},
    {"type": "assert-default-spec-id", "default-spec-id": 1},
    {"type": "assert-default-sort-order-id", "default-sort-order-id": 1},
]


def requirements(*values):
    return msgspec.convert(list(values), list[Requirement])


def test_true_requirements_pass():
    """All eight kinds hold of a table they are true of, and creation holds where there is none."""
    base = applied(fresh(), add(7, 1), point(7))
    assert check(requirements(*TRUE), base, table="db.t") is None
    assert check(requirements({"type": "assert-create"}), None, table="db.t") is None


@pytest.mark.parametrize("requirement", FALSE, ids=lambda value: value["type"])
def test_a_false_requirement_is_a_conflict_with_its_facts(requirement):
    """What was required and what is there stand in the refusal."""
    base = applied(fresh(), add(7, 1), point(7))
    with pytest.raises(Refusal, match="requirement failed") as caught:
        check(requirements(requirement), base, table="db.t")
    assert (caught.value.status, caught.value.details["table"]) == (409, "db.t")


def test_other_requirements_of_a_new_table_are_refused():
    """Only creation can be required of a table that is not there."""
    with pytest.raises(Refusal) as caught:
        check(requirements({"type": "assert-create"}, TRUE[4]), None, table="db.t")
    assert caught.value.status == 400
