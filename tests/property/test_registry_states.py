"""The registry against a model, its entries against crashes, its definitions against junk."""

from __future__ import annotations

import io
import json
from contextlib import suppress

import fastavro
from fastavro.utils import generate_one
from google.protobuf import descriptor_pb2
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from frazil.errors import Conflict, FrazilError, NotFound
from frazil.registry import Planned, Registry
from frazil.registry.definitions import Invalid, compare, read_definition
from tests.unit.registry.registering import plan, register

SUBJECTS = st.sampled_from(["a", "b", "c:1"])
TOPICS = st.sampled_from(["/default/t", "/default/u"])
KINDS = st.sampled_from(["bytes", "string", "number"])
LANGUAGES = ["avro", "json_schema", "protobuf"]
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
        planned = plan(self.registry, subject, b"", kind)
        done = self.commit(planned) if isinstance(planned, Planned) else planned
        assert done.is_new_version == (kind not in versions.values())
        if not versions:
            self.id_last += 1
            self.ids[subject] = self.id_last
            self.versions_next[subject] = 1
            self.modes[subject] = "backward"
        if kind not in versions.values():
            versions[self.versions_next[subject]] = kind
            self.versions_next[subject] += 1
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
        listed = {each.subject.name: each for each in self.registry.subjects()}
        assert set(listed) == {name for name, versions in self.model.items() if versions}
        for name, line in listed.items():
            versions = self.model[name]
            assert line.subject.schema_id == self.ids[name]
            assert line.subject.mode == self.modes[name]
            assert {each.version for each in self.registry.versions(name)} == set(versions)
            for version, kind in versions.items():
                assert self.registry.schema(line.subject.schema_id, version).entry.type == kind
        for topic, subject in self.topics.items():
            assert self.registry.topics[topic].subject == subject

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

    @invariant()
    def a_cut_journal_goes_on(self):
        """A crash between two entries leaves a registry that takes the next call."""
        cut = Registry()
        for key, value in self.journal[:-1]:
            cut.apply(key, value)
        done = register(cut, "new")
        assert cut.schema(done.schema_id).subject.name == "new"


RegistryMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
TestRegistry = RegistryMachine.TestCase


def read(kind, *definitions):
    """Return those definitions that are right; any other error than its own would end the worker."""
    found = []
    for data in definitions:
        with suppress(Invalid):
            found.append(read_definition(kind, data))
    return found


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


@given(st.sampled_from(LANGUAGES), st.binary(max_size=200), st.binary(max_size=50))
@QUICK
def test_random_bytes_are_refused_or_read(kind, data, payload):
    """A definition of any bytes is wrong or a definition, and has an answer to any payload."""
    for definition in read(kind, data):
        refusal = definition.refusal(payload)
        assert refusal is None or refusal


@given(st.sampled_from(["avro", "json_schema"]), JSON, JSON, JSON)
@settings(QUICK, max_examples=150)
def test_random_json_is_refused_or_read_and_compared(kind, one, two, payload):
    """Words of the languages in the wrong places; what is read is compatible with itself."""
    found = read(kind, *(json.dumps(value).encode() for value in (one, two)))
    for old in found:
        refusal = old.refusal(json.dumps(payload).encode())
        assert refusal is None or refusal
        assert compare(old, old, "full") == ()
        for new in found:
            lines = compare(old, new, "full")
            assert all(line.startswith(("backward: ", "forward: ")) for line in lines)


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
def test_avro_payloads_fit_and_cut_ones_do_not(schema, data):
    """A value that was written fits, no proper prefix of it does."""
    checked = read_definition("avro", json.dumps(schema).encode())
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


@given(PROTO, PROTO, st.binary(max_size=40))
@settings(QUICK, max_examples=150)
def test_random_proto_words_are_refused_or_read_and_compared(one, two, payload):
    """Any row of words is wrong or a definition."""
    found = read("protobuf", one.encode(), two.encode())
    for old in found:
        refusal = old.refusal(payload)
        assert refusal is None or refusal
        for new in found:
            assert compare(old, new, "full") is not None


@given(st.data())
@QUICK
def test_damaged_descriptor_sets_are_refused_or_read(data):
    """A descriptor set with bytes changed is wrong or a definition."""
    message = {"name": "M", "field": [{"name": "n", "number": 1, "label": 3, "type_name": "M"}]}
    file = descriptor_pb2.FileDescriptorProto(name="f", syntax="proto3", message_type=[message])
    whole = bytearray(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())
    for _ in range(data.draw(st.integers(0, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    for definition in read("protobuf", bytes(whole)):
        refusal = definition.refusal(data.draw(st.binary(max_size=20)))
        assert refusal is None or refusal


@given(st.text(max_size=20), st.binary(max_size=40))
@QUICK
def test_random_entries_are_applied_or_refused(key, value):
    """An entry of any bytes is an error of the tree."""
    for prefix in ("", "subject:", "version:1:", "topic:"):
        registry = Registry()
        try:
            registry.apply(prefix + key, value)
        except FrazilError as error:
            assert error.code == "corruption"
        else:
            assert prefix
