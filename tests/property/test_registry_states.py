"""The registry against a model, its entries against crashes, and its readers against junk."""

from __future__ import annotations

import io
import json

import fastavro
import jsonschema
from fastavro.utils import generate_one
from google.protobuf import descriptor_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from frazil.errors import Conflict, FrazilError, InvalidRequest, NotFound
from frazil.registry import IncompatibleSchema, Registry, check_keywords
from frazil.registry.definitions import incompatibilities, parse_definition
from frazil.registry.proto_parser import parse_proto

SUBJECTS = st.sampled_from(["a", "b", "c:1"])
TOPICS = st.sampled_from(["/default/t", "/default/u"])
KINDS = st.sampled_from(["bytes", "string", "number"])
TYPES = ["bytes", "string", "number", "avro", "json_schema", "protobuf"]
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


class RegistryMachine(RuleBasedStateMachine):
    """A dict of dicts is what the registry must say; each written entry is kept as a journal."""

    def __init__(self):
        super().__init__()
        self.registry = Registry()
        self.journal = []
        self.model = {}
        self.ids = {}
        self.modes = {}
        self.versions_next = {}
        self.topics = {}
        self.id_last = 0

    def commit(self, planned):
        self.journal += planned.changes
        return self.registry.commit(planned)

    @rule(subject=SUBJECTS, kind=KINDS)
    def register(self, subject, kind):
        versions = self.model.setdefault(subject, {})
        blocked = (
            versions
            and kind not in versions.values()
            and self.modes.get(subject, "backward") != "none"
        )
        try:
            done = self.commit(self.registry.register(subject, kind, b"", now=1))
        except IncompatibleSchema:
            assert blocked
            return
        assert not blocked
        if not versions:
            self.id_last += 1
            self.ids[subject] = self.id_last
            self.versions_next[subject] = 1
            self.modes[subject] = "backward"
        if kind not in versions.values():
            versions[self.versions_next[subject]] = kind
            self.versions_next[subject] += 1
            assert done.is_new_version
        assert versions[done.version] == kind
        assert done.schema_id == self.ids[subject]

    @rule(subject=SUBJECTS, version=st.integers(1, 4))
    def delete(self, subject, version):
        versions = self.model.get(subject, {})
        used = subject in self.topics.values() and len(versions) == 1
        try:
            self.commit(self.registry.delete_version(subject, version))
        except NotFound:
            assert version not in versions
        except Conflict:
            assert used
        else:
            assert not used
            del versions[version]

    @rule(subject=SUBJECTS, mode=st.sampled_from(["none", "backward", "forward", "full"]))
    def set_mode(self, subject, mode):
        try:
            self.commit(self.registry.set_mode(subject, mode))
        except NotFound:
            assert not self.model.get(subject)
        else:
            self.modes[subject] = mode

    @rule(topic=TOPICS, subject=SUBJECTS)
    def assign(self, topic, subject):
        try:
            self.commit(self.registry.assign_topic(topic, subject))
        except Conflict:
            assert self.topics.get(topic, subject) != subject or not self.model.get(subject)
        else:
            self.topics[topic] = subject

    @rule(topic=TOPICS)
    def forget(self, topic):
        self.commit(self.registry.forget_topic(topic))
        self.topics.pop(topic, None)

    @invariant()
    def says_what_the_model_says(self):
        listed = {each.subject: each for each in self.registry.subjects()}
        assert set(listed) == {name for name, versions in self.model.items() if versions}
        for name, line in listed.items():
            versions = self.model[name]
            assert line.schema_id == self.ids[name]
            assert line.compatibility_mode == self.modes[name]
            assert {each.version for each in self.registry.versions(name)} == set(versions)
            for version, kind in versions.items():
                assert self.registry.schema(line.schema_id, version).type == kind
        for topic, subject in self.topics.items():
            assert self.registry.topic_schema(topic).subject == subject

    @invariant()
    def replayed_is_equal(self):
        """From the whole journal, and from what is left of it by key, in another order."""
        replayed, folded = Registry(), {}
        for key, value in self.journal:
            replayed.apply(key, value)
            folded[key] = value
        assert replayed == self.registry
        rebuilt = Registry()
        for key, value in sorted(folded.items(), reverse=True):
            if value is not None:
                rebuilt.apply(key, value)
        assert rebuilt == self.registry
        assert dict(rebuilt.to_states()) == dict(self.registry.to_states())

    @invariant()
    def a_cut_journal_goes_on(self):
        """A crash between two entries leaves a registry that takes the next call."""
        cut = Registry()
        for key, value in self.journal[:-1]:
            cut.apply(key, value)
        done = cut.commit(cut.register("new", "bytes", b"", now=1))
        assert cut.schema(done.schema_id).subject == "new"


RegistryMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
TestRegistry = RegistryMachine.TestCase


def outcome(kind, data, payload):
    """Parse and check; return what was told, nothing for a payload that fits."""
    try:
        definition = parse_definition(kind, data)
    except InvalidRequest as error:
        return str(error)
    return definition.refusal(payload)


@given(st.sampled_from(TYPES), st.binary(max_size=200), st.binary(max_size=50))
@QUICK
def test_random_bytes_are_refused_or_taken_but_never_raise(kind, data, payload):
    """A definition of any bytes is an InvalidRequest or a definition."""
    told = outcome(kind, data, payload)
    assert told is None or told


JSON_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-3, 70)
    | st.floats(allow_nan=False)
    | st.sampled_from(
        [
            *("string", "int", "record", "array", "P", "#", "#/$defs/a", "null", "enum", "a", ""),
            *("number", "object", "union", "map", "fixed", "[", "\ud800", "decimal", "bytes"),
        ]
    )
)
WORDS = st.sampled_from(
    [
        *("type", "name", "fields", "items", "values", "symbols", "size", "default", "aliases"),
        *("properties", "required", "enum", "$ref", "anyOf", "oneOf", "allOf", "not", "pattern"),
        *("minimum", "maxLength", "additionalProperties", "$defs", "a", "const", "multipleOf"),
        *("logicalType", "precision", "scale", "namespace", "if", "then", "$schema", "$id"),
        *("dependencies", "patternProperties", "exclusiveMinimum", "uniqueItems", "prefixItems"),
    ]
)
JSON = st.recursive(
    JSON_LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=25,
)


@given(st.sampled_from(["avro", "json_schema"]), JSON, JSON)
@QUICK
def test_random_json_is_refused_or_taken_but_never_raises(kind, value, payload):
    """Words of the languages in the wrong places are told."""
    told = outcome(kind, json.dumps(value).encode(), json.dumps(payload).encode())
    assert told is None or told


@given(st.sampled_from(["avro", "json_schema"]), JSON, JSON)
@QUICK
def test_random_definitions_can_be_compared(kind, one, two):
    """Whatever parses is comparable in both directions, and equal to itself in every mode."""
    parsed = []
    for value in (one, two):
        try:
            parsed.append(parse_definition(kind, json.dumps(value).encode()))
        except InvalidRequest:
            continue
    for old in parsed:
        assert incompatibilities(old=old, new=old, mode="full") == ()
        for new in parsed:
            told = incompatibilities(old=old, new=new, mode="full")
            assert all(line.startswith(("backward: ", "forward: ")) for line in told)


LEAF_SCHEMAS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["integer", "number", "string", "array", "object"])
        | st.lists(st.sampled_from(["integer", "null", "string"]), min_size=1, unique=True),
        "minimum": st.integers(-2, 2),
        "exclusiveMaximum": st.integers(-1, 3),
        "maxLength": st.integers(0, 2),
        "enum": st.lists(st.sampled_from([0, 1, True, "a", "", None]), min_size=1, unique_by=repr),
        "required": st.lists(st.sampled_from("ab"), unique=True),
    },
)
SCHEMAS = st.recursive(
    st.booleans() | LEAF_SCHEMAS,
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(["array", "object"]),
            "items": inner,
            "properties": st.fixed_dictionaries({"a": inner, "b": inner}),
            "additionalProperties": inner,
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "oneOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
        },
    ),
    max_leaves=4,
)
VALUES = [
    *(None, True, 0, 1, 2, -3, 0.5, "", "a", "abc", [], [1], ["a", 2], [[1], None], {}),
    *({"a": 1}, {"a": "x"}, {"b": 1}, {"a": 1, "b": 1}, {"a": {"a": 1}}, {"a": [1], "b": None}),
]


def pairs_of(old, other, dropped):
    """Return two schemas of which the second is the first with changes."""
    if isinstance(old, dict) and isinstance(other, dict):
        kept = {name: value for name, value in old.items() if name not in dropped}
        return old, {**other, **kept} if dropped else {**kept, **other}
    return old, other


@given(
    st.builds(
        pairs_of, SCHEMAS, SCHEMAS, st.lists(st.sampled_from(["type", "enum", "anyOf", "minimum"]))
    )
)
@settings(QUICK, max_examples=100)
def test_a_compatible_json_schema_accepts_what_the_old_one_accepted(pair):
    """No value that fits the old schema is refused by one that is called compatible.

    But for one rule: an optional field may be added to an object that was open before.
    """
    old, new = pair
    if json.dumps(new).count('"properties"') > json.dumps(old).count('"properties"'):
        return
    before = parse_definition("json_schema", json.dumps(old).encode())
    after = parse_definition("json_schema", json.dumps(new).encode())
    if incompatibilities(old=before, new=after, mode="backward"):
        return
    for value in VALUES:
        payload = json.dumps(value).encode()
        assert before.refusal(payload) is not None or after.refusal(payload) is None


@given(SCHEMAS, st.sampled_from(["draft-06", "draft-07", "draft/2020-12"]))
@settings(QUICK, max_examples=60)
def test_payloads_are_judged_as_by_another_implementation(schema, draft):
    """Each value fits here exactly when it fits there, in each dialect with booleans."""
    if isinstance(schema, bool):
        return
    name = "https://json-schema.org/draft/2020-12/schema"
    if draft != "draft/2020-12":
        name = f"http://json-schema.org/{draft}/schema#"
    schema = {**schema, "$schema": name}
    theirs = jsonschema.validators.validator_for(schema)(schema)
    ours = parse_definition("json_schema", json.dumps(schema).encode())
    for value in VALUES:
        assert (ours.refusal(json.dumps(value).encode()) is None) == theirs.is_valid(value)


@given(JSON)
@QUICK
def test_keywords_that_pass_here_pass_the_meta_schema(value):
    """What this check takes, the dialect's own meta-schema takes, but for free-form identifiers."""
    if not isinstance(value, (dict, bool)) or "$schema" in json.dumps(value):
        return
    if "$id" in json.dumps(value):
        return
    try:
        check_keywords(value, is_draft4=False)
    except InvalidRequest:
        return
    if isinstance(value, dict) and '"items": [' in json.dumps(value):
        return
    jsonschema.Draft202012Validator.check_schema(value)
    assert value is not None


AVRO = st.recursive(
    st.sampled_from(["null", "boolean", "int", "long", "float", "double", "bytes", "string"])
    | st.just(["null", "long"])
    | st.just({"type": "enum", "name": "E", "symbols": ["A", "B"]})
    | st.just({"type": "fixed", "name": "F", "size": 3}),
    lambda inner: (
        st.builds(lambda items: {"type": "array", "items": items}, inner)
        | st.builds(lambda values: {"type": "map", "values": values}, inner)
    ),
    max_leaves=2,
)


def record_of(kinds):
    names = {"E": 0, "F": 0}

    def renamed(kind):
        if isinstance(kind, dict):
            kind = {key: renamed(value) for key, value in kind.items()}
            if "name" in kind:
                names[kind["name"]] += 1
                kind["name"] += str(names[kind["name"]])
        return kind

    fields = [{"name": f"f{n}", "type": renamed(kind)} for n, kind in enumerate(kinds)]
    return {"type": "record", "name": "R", "fields": fields}


@given(st.lists(AVRO, max_size=5).map(record_of), st.data())
@settings(QUICK, max_examples=40)
def test_avro_payloads_of_another_writer_are_taken_and_cut_ones_are_not(schema, data):
    """Whatever another implementation writes is a value here, no proper prefix of it is one."""
    checked = parse_definition("avro", json.dumps(schema).encode())
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, schema, generate_one(fastavro.parse_schema(schema)))
    payload = sink.getvalue()
    assert checked.refusal(payload) is None
    if payload:
        cut = data.draw(st.integers(0, len(payload) - 1))
        assert checked.refusal(payload[:cut]) is not None


PROTO = st.lists(
    st.sampled_from(
        [
            *("syntax", "=", '"proto3"', '"proto2"', ";", "message", "M", "{", "}", "optional"),
            *("int32", "a", "1", "2", "repeated", "oneof", "enum", "E", "A", "0", "reserved"),
            *("to", "max", "map", "<", ">", ",", "string", "import", "option", "[", "]", "("),
            *("package", "p", ".", "-", "required", "group", "service", "extensions", "//", "\n"),
        ]
    ),
    max_size=40,
).map(" ".join)


@given(PROTO, st.binary(max_size=40))
@settings(QUICK, max_examples=200)
def test_random_proto_words_are_refused_or_taken_but_never_raise(text, payload):
    """Any row of words is an InvalidRequest or a definition."""
    told = outcome("protobuf", text.encode(), payload)
    assert told is None or told


@given(st.data())
@QUICK
def test_damaged_descriptor_sets_never_raise(data):
    """A descriptor set with bytes changed is an InvalidRequest or a definition."""
    text = b'syntax = "proto3"; message M { N n = 1; E e = 2; oneof o { int32 a = 3; } }'
    file = parse_proto((text + b" message N { M m = 1; } enum E { A = 0; }").decode())
    whole = bytearray(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    for _ in range(data.draw(st.integers(0, 4))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at] = data.draw(st.integers(0, 255))
    told = outcome("protobuf", bytes(whole), data.draw(st.binary(max_size=20)))
    assert told is None or told


@given(st.text(max_size=20), st.binary(max_size=40))
@QUICK
def test_random_entries_are_applied_or_told(key, value):
    """An entry of any bytes is an error of the tree."""
    for prefix in ("", "subject:", "version:1:", "topic:"):
        registry = Registry()
        try:
            registry.apply(prefix + key, value)
        except FrazilError as error:
            assert error.code == "corruption"
        else:
            assert prefix
