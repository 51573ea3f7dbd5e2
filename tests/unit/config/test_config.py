"""The settings: where they come from, what is refused, and what the refusal says."""

from __future__ import annotations

import json
import pickle
import re

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from frazil.cli.app import app
from frazil.config import Settings, describe, json_schema, load_settings
from frazil.config.sources import (
    FILE_BYTES_MAX,
    environment_name,
    file_entries,
    parse_assignments,
)
from frazil.errors import InvalidRequest, NotFound
from frazil.units import DURATION_PATTERN, SIZE_PATTERN


def load(*, file=None, environment=None, **overrides):
    """Load without the process's environment."""
    paths = {key.replace("__", "."): value for key, value in overrides.items()}
    return load_settings(file=file, environment=environment or {}, overrides=paths)


@pytest.fixture
def yaml_file(tmp_path):
    """Write a settings file and return its path."""

    def write(text):
        path = tmp_path / "frazil.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(path)

    return write


def test_the_defaults_are_what_the_design_says():
    """A sample of defaults has the documented numbers, in bytes and seconds."""
    settings = load()
    assert settings == Settings()
    assert (settings.data_dir, settings.log.sync) == ("./data", "commit")
    assert (settings.memory.budget_bytes, settings.log.retention_age_s) == (2 << 30, 48 * 3600)
    assert set(settings.origins.values()) == {"default"}


def test_flags_win_over_environment_over_file_over_defaults(yaml_file):
    """Each source overrides the one before, and origins say which one it was."""
    file = yaml_file(
        "log:\n  segment_bytes_max: 20MB\n  write_bytes_max: 2MB\n  queue_bytes_max: 30MB\n"
    )
    environment = {"FRAZIL_LOG__WRITE_BYTES_MAX": "3MB", "FRAZIL_LOG__QUEUE_BYTES_MAX": "31MB"}
    settings = load(file=file, environment=environment, log__queue_bytes_max="32MB")
    assert settings.log.segment_bytes_max == 20_000_000
    assert settings.log.write_bytes_max == 3_000_000
    assert settings.log.queue_bytes_max == 32_000_000
    assert settings.origins["log.segment_bytes_max"] == f"{file}:2"
    assert settings.origins["log.write_bytes_max"] == "environment FRAZIL_LOG__WRITE_BYTES_MAX"
    assert settings.origins["log.queue_bytes_max"] == "flag"
    assert settings.origins["log.sync"] == "default"


def test_the_environment_may_name_the_file(yaml_file):
    """FRAZIL_CONFIG is the file when no other is given, and an explicit file wins."""
    file = yaml_file("data_dir: /srv/frazil\n")
    assert load(environment={"FRAZIL_CONFIG": file}).data_dir == "/srv/frazil"
    with pytest.raises(NotFound):
        load(environment={"FRAZIL_CONFIG": file}, file=file + ".absent")


def test_the_process_environment_is_looked_at(monkeypatch):
    """Without an explicit environment the process's own counts; Settings() never looks at it."""
    monkeypatch.setenv("FRAZIL_LOG__SYNC", "periodic")
    assert load_settings().log.sync == "periodic"
    assert Settings().log.sync == "commit"


@pytest.mark.parametrize("info", describe(), ids=lambda info: info.path)
def test_every_setting_has_a_variable_a_flag_and_a_sentence(info):
    """Its default, written with units, is read back from the environment and from a flag."""
    text = info.shown(info.default)
    assert load(environment={environment_name(info.path): text}).values()[info.path] == info.default
    flagged = load_settings(environment={}, overrides={info.path: text})
    assert flagged.values()[info.path] == info.default
    assert re.fullmatch(r"[A-Z].{8,}\.", info.description)
    assert info.kind not in {"size", "duration", "count", "ratio"} or info.limits()


@pytest.mark.parametrize("info", describe(), ids=lambda info: info.path)
def test_every_number_has_limits_that_hold(info):
    """One beyond the largest value of a number is refused, naming the key and the limits."""
    if info.maximum is None:
        assert info.kind in {"choice", "switch", "text", "mapping", "secret"}
        return
    beyond = info.maximum + 1 if info.kind != "ratio" else info.maximum * 2
    with pytest.raises(InvalidRequest) as caught:
        load_settings(environment={}, overrides={info.path: beyond})
    assert caught.value.details["key"] == info.path
    assert caught.value.details["allowed"] == info.limits()


def test_an_unknown_key_in_a_file_names_its_line_and_the_nearest_key(yaml_file):
    """The error has the path, the nearest valid key and file:line."""
    file = yaml_file("data_dir: x\nlog:\n  sync: commit\n  segment_byte_max: 1GiB\n")
    with pytest.raises(InvalidRequest) as caught:
        load(file=file)
    message = str(caught.value)
    assert "log.segment_byte_max" in message
    assert "log.segment_bytes_max" in message
    assert f"{file}:4" in message


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("FRAZIL_LOG__SEGMENT_BYTES_MX", "FRAZIL_LOG__SEGMENT_BYTES_MAX"),
        ("FRAZIL_LOG_SYNC", "FRAZIL_LOG__SYNC"),
        ("FRAZIL_DATADIR", "FRAZIL_DATA_DIR"),
        ("FRAZIL_log__sync", "FRAZIL_LOG__SYNC"),
    ],
)
def test_an_unknown_variable_is_refused_with_the_nearest(name, nearest):
    """A typo in the environment is not passed over in silence."""
    with pytest.raises(InvalidRequest) as caught:
        load(environment={name: "commit"})
    assert caught.value.details["nearest"] == nearest
    assert name in str(caught.value)


def test_variables_of_tests_and_strangers_are_left_alone():
    """Only FRAZIL_ names count, without those of suites and benchmarks."""
    allowed = ["FRAZIL_TEST_CRASH_SEEDS", "FRAZIL_TEST_X", "FRAZIL_BENCH_X", "HOME"]
    settings = load(environment=dict.fromkeys([*allowed, "FRAZIL_BENCH_Y"], "1"))
    assert set(settings.origins.values()) == {"default"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data_dir", 5),
        ("data_dir", None),
        ("data_dir", ""),
        ("data_dir", "a\0b"),
        ("log.sync", "Commit!"),
        ("log.sync", True),
        ("topics.topics_max", True),
        ("topics.topics_max", 1.5),
        ("topics.topics_max", "many"),
        ("log.segment_bytes_max", "12 parsecs"),
        ("log.retention_age_s", float("nan")),
        ("log.retention_age_s", ["1h"]),
        ("log.free_ratio_min", "nan"),
        ("log.free_ratio_min", "half"),
        ("topics.auto_create", "maybe"),
        ("topics.auto_create", 1),
        ("topics.message_bytes_max", "17MiB"),
    ],
)
def test_a_wrong_value_is_refused_with_key_and_place(key, value):
    """Nothing is converted that was not meant: no numbers from booleans, no text from numbers."""
    with pytest.raises(InvalidRequest) as caught:
        load_settings(environment={}, overrides={key: value})
    assert caught.value.details["key"] == key
    assert "flag" in str(caught.value)


@pytest.mark.parametrize("info", describe(), ids=lambda info: info.path)
def test_a_number_too_long_to_print_is_refused(info):
    """An integer beyond what Python prints is refused with a message that can be printed."""
    with pytest.raises(InvalidRequest) as caught:
        load_settings(environment={}, overrides={info.path: 16**5000})
    assert f"key={info.path} " in str(caught.value)


def test_a_wrong_choice_names_the_nearest():
    """A misspelt choice is answered with the valid one."""
    with pytest.raises(InvalidRequest, match="nearest=periodic"):
        load(log__sync="periodc")


@pytest.mark.parametrize(
    ("changes", "key", "against"),
    [
        (
            {"log.segment_bytes_max": "11263KiB", "log.write_bytes_max": "10MiB"},
            "log.segment_bytes_max",
            "log.write_bytes_max",
        ),
        ({"log.queue_bytes_max": "9MiB"}, "log.queue_bytes_max", "log.write_bytes_max"),
        ({"objects.store": "s3"}, "objects.root", "objects.store"),
        ({"objects.access_key": "k"}, "objects.access_key", "objects.secret_key"),
        ({"topics.message_bytes_max": "11MiB"}, "topics.message_bytes_max", "log.write_bytes_max"),
        ({"log.sync_interval_s": 0}, "log.sync_interval_s", "log.sync"),
        ({"memory.budget_bytes": "9MiB"}, "memory.budget_bytes", "log.write_bytes_max"),
    ],
)
def test_contradictions_are_refused_with_both_keys(changes, key, against):
    """Two values that exclude each other are named with both places."""
    with pytest.raises(InvalidRequest, match="contradict") as caught:
        load_settings(environment={}, overrides=changes)
    assert caught.value.details["key"] == key
    assert caught.value.details["against"] == against
    assert "flag" in str(caught.value.details["set_at"])


def test_a_mapping_comes_from_a_file_a_variable_and_flags(yaml_file):
    """A mapping is one in YAML, JSON in the environment, and JSON or name by name as flags."""
    file = yaml_file("lake:\n  spark:\n    conf:\n      spark.ui.enabled: true\n      a.b: 7\n")
    assert load(file=file).lake.spark.conf == {"spark.ui.enabled": "true", "a.b": "7"}
    environment = {"FRAZIL_LAKE__SPARK__CONF": '{"spark.driver.memory": "2g"}'}
    settings = load(file=file, environment=environment)
    assert settings.lake.spark.conf == {"spark.driver.memory": "2g"}
    assert settings.origins["lake.spark.conf"] == "environment FRAZIL_LAKE__SPARK__CONF"
    flags = parse_assignments(["lake.spark.conf.spark.x=1", "lake.spark.conf.spark.y=a=b"])
    settings = load_settings(file=file, environment={}, overrides=flags)
    assert settings.lake.spark.conf == {
        "spark.ui.enabled": "true",
        "a.b": "7",
        "spark.x": "1",
        "spark.y": "a=b",
    }
    assert settings.origins["lake.spark.conf"] == "flag"
    flag = {"lake.spark.conf.a": 1}
    both = load_settings(environment=environment, overrides=flag).lake.spark.conf
    assert both == {"spark.driver.memory": "2g", "a": "1"}
    with pytest.raises(InvalidRequest, match="unknown setting"):
        load(environment={"FRAZIL_LAKE__SPARK__CONF__A": "1"})


@pytest.mark.parametrize("value", ["{", "[1]", "5", None, {"a": None}, {"a": [1]}, {5: 1j}])
def test_what_is_no_mapping_is_refused(value):
    """Lists, broken JSON and values that are no single ones are refused with the key."""
    with pytest.raises(InvalidRequest) as caught:
        load_settings(environment={}, overrides={"lake.spark.conf": value})
    assert caught.value.details["key"] == "lake.spark.conf"


def test_a_boundary_itself_is_no_contradiction():
    """A segment that just holds the largest write, and a budget of exactly that, are allowed."""
    settings = load(log__segment_bytes_max="11MiB", log__write_bytes_max="10MiB")
    assert settings.log.segment_bytes_max == 11 << 20
    settings = load(memory__budget_bytes="10MiB", disk__bytes_max="1MiB")
    assert settings.memory.budget_bytes == settings.log.write_bytes_max


def test_a_tree_built_by_hand_is_checked_too():
    """Constructing Settings directly refuses contradictions and unknown names as well."""
    with pytest.raises(InvalidRequest, match="contradict"):
        Settings(log={"queue_bytes_max": 2048})
    with pytest.raises(pydantic.ValidationError):
        Settings(logs={})


def test_settings_cannot_be_changed():
    """The tree is frozen at every level."""
    settings = load()
    with pytest.raises(pydantic.ValidationError):
        settings.data_dir = "elsewhere"
    with pytest.raises(pydantic.ValidationError):
        settings.log.sync = "periodic"


def test_settings_survive_pickling():
    """A worker process gets the same values and origins."""
    settings = load(log__sync="periodic")
    copy = pickle.loads(pickle.dumps(settings))
    assert copy == settings
    assert copy.origins == settings.origins


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("log:\n  sync: periodic\n  sync: commit\n", "given twice"),
        ("log:\n  sync: periodic\nlog:\n  sync: commit\n", "given twice"),
        ("- log\n", "not a mapping"),
        ("log: [1]\n", "must be one value"),
        ("log: 5\n", "section"),
        ("log:\n  sync:\n    mode: none\n", "unknown setting"),
        ("lake:\n  writer: 5\n", "section"),
        ("lake:\n  writer:\n    flush_interval: {a: 1}\n", "refused"),
        ("lake:\n  spark:\n    conf: [1]\n", "must be one value"),
        ("lake:\n  spark:\n    conf: {a: {b: 1}}\n", "must be one value"),
        ("lake:\n  spark:\n    conf: {a: 1, a: 2}\n", "given twice"),
        ("log.sync: periodic\n", "unknown setting"),
        ("5: x\n", "not a text"),
        ("log: {sync: periodic\n", "not valid YAML"),
        ("data_dir: !!python/name:os.system\n", "not plain YAML"),
        ("data_dir: 2026-13-45\n", "not plain YAML"),
        ("data_dir: !!int x\n", "not plain YAML"),
        ("a: 1\n---\nb: 2\n", "not valid YAML"),
        ("log: &a\n  sync: *a\n", "must be one value|not valid YAML"),
        ("log:\n  <<: {sync: none}\n", "refused|unknown"),
        (b"\xff\xfe\x00", "not UTF-8"),
        ("[" * 5000, "too deeply|not valid YAML"),
        ("\0", "not valid YAML"),
    ],
)
def test_a_broken_file_is_refused_with_its_place(yaml_file, text, message):
    """Whatever is wrong with the file is an InvalidRequest that names it."""
    file = yaml_file(text)
    with pytest.raises(InvalidRequest, match=message) as caught:
        load(file=file)
    assert file in str(caught.value)


def test_an_empty_file_and_an_empty_section_set_nothing(yaml_file):
    """Comments, an empty section and a byte-order mark are fine."""
    assert load(file=yaml_file("")) == Settings()
    assert load(file=yaml_file("\ufeff# nothing\nlog:\n")) == Settings()


def test_a_file_that_is_too_large_absent_or_a_directory_is_refused(yaml_file, tmp_path):
    """The limit is 1 MiB; an absent file is NotFound, an unreadable one InvalidRequest."""
    assert load(file=yaml_file(b"#" * FILE_BYTES_MAX)) == Settings()
    with pytest.raises(InvalidRequest, match="too large"):
        load(file=yaml_file(b"#" * (FILE_BYTES_MAX + 1)))
    with pytest.raises(NotFound, match="does not exist"):
        load(file=str(tmp_path / "absent.yaml"))
    with pytest.raises(InvalidRequest, match="cannot be read"):
        load(file=str(tmp_path))


_VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)


@given(st.dictionaries(st.sampled_from([info.path for info in describe()]), _VALUES, max_size=4))
def test_no_value_is_taken_that_breaks_a_limit(overrides):
    """Any values either give a tree within all limits, or an InvalidRequest."""
    try:
        settings = load_settings(environment={}, overrides=overrides)
    except InvalidRequest as error:
        assert error.details["key"]
        return
    for info in describe():
        value = settings.values()[info.path]
        if info.minimum is not None and (value is not None or info.default is not None):
            assert info.minimum <= value <= info.maximum


@given(st.binary(max_size=200) | st.text("{}[]&*!:-#'\"\n lgosync0:", max_size=60).map(str.encode))
def test_junk_in_a_file_never_crashes(data):
    """Any bytes give entries or an InvalidRequest, nothing else."""
    try:
        entries = file_entries(data, file="junk.yaml")
    except InvalidRequest as error:
        assert "junk.yaml" in str(error)
        return
    assert all(entry.origin.startswith("junk.yaml:") for entry in entries)


def test_assignments_of_flags_are_split_at_the_first_sign():
    """`--set key=value` keeps later signs in the value and refuses a repeat."""
    assert parse_assignments(["data_dir=a=b", "log.sync = periodic"]) == {
        "data_dir": "a=b",
        "log.sync": "periodic",
    }
    with pytest.raises(InvalidRequest, match="key=value"):
        parse_assignments(["log.sync"])
    with pytest.raises(InvalidRequest, match="twice"):
        parse_assignments(["log.sync=periodic", "log.sync=commit"])


def test_the_schema_knows_every_setting_and_its_units():
    """Each setting is in the JSON Schema with its sentence; sizes and durations take texts."""
    schema = json_schema()
    assert json.loads(json.dumps(schema)) == schema
    assert schema["additionalProperties"] is False
    for info in describe():
        *sections, name = info.path.split(".")
        node = schema
        for section in sections:
            reference = node["properties"][section]
            target = reference.get("$ref") or reference["allOf"][0]["$ref"]
            node = schema["$defs"][target.rpartition("/")[2]]
            assert node["additionalProperties"] is False
        field = node["properties"][name]
        assert field["description"] == info.description
        if info.kind in {"size", "duration"}:
            number, *nothing, text = field["anyOf"]
            assert number["maximum"] == info.maximum
            assert nothing == ([{"type": "null"}] if info.default is None else [])
            assert re.search(text["pattern"], info.shown(info.default))


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        *((SIZE_PATTERN, text) for text in ("128MB", "1.5 GiB", "4096", "10kB")),
        *((DURATION_PATTERN, text) for text in ("20ms", "1h30m", "5", "48h", "250us")),
    ],
)
def test_the_schema_takes_what_sizes_and_durations_are(pattern, text):
    """The patterns of the schema agree with the readers of sizes and durations."""
    assert re.search(pattern, text)
    assert not re.search(pattern, text + "!")


def run(*arguments, env=None):
    """Run `frazil config` without the process's settings."""
    return CliRunner().invoke(app, ["config", *arguments], env=env)


def test_config_show_prints_values_and_origins():
    """Both forms show the value in effect and where it was set."""
    shown = json.loads(run("show", "--output", "json", "--set", "log.sync=periodic").stdout)
    assert shown["log.sync"] == {"value": "periodic", "origin": "flag"}
    assert shown["log.segment_bytes_max"] == {"value": 128 << 20, "origin": "default"}
    table = run("show", env={"COLUMNS": "200", "FRAZIL_LOG__SYNC": "periodic"})
    assert table.exit_code == 0
    assert "environment FRAZIL_LOG__SYNC" in table.stdout
    assert "128MiB" in table.stdout


def test_config_check_answers_for_the_file_alone(yaml_file):
    """A good file is counted, a bad one is an error that names the key."""
    good = run("check", yaml_file("log:\n  sync: periodic\n"), env={"FRAZIL_LOG__SYNC": "junk"})
    assert good.exit_code == 0
    assert "sets 1 of" in good.stdout
    bad = run("check", yaml_file("log:\n  sink: none\n"))
    assert bad.exit_code == 2
    assert "log.sink" in bad.output


def test_config_schema_prints_the_schema():
    """What is printed is the JSON Schema."""
    assert json.loads(run("schema").stdout) == json_schema()
