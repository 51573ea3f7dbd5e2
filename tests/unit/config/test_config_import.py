"""Danube's files as settings: every key is accounted for, and the result is accepted."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from frazil.cli.app import app
from frazil.config import load_settings
from frazil.config.danube import CLOUD, DROPPED, RULES, import_danube, read_documents, rule_of
from frazil.errors import InvalidRequest

DATA = Path(__file__).parents[2] / "data" / "danube-import"
DOCUMENTS = [("wal-cloud", number) for number in range(1, 6)] + [("iceberg", 1)]

DANUBE_KEYS = {
    "wal_cloud.wal": {"dir", "file_name", "cache_capacity"},
    "wal_cloud.wal.file_sync": {"interval_ms", "max_batch_bytes"},
    "wal_cloud.wal.rotation": {"max_bytes", "max_hours"},
    "wal_cloud.wal.retention": {"time_minutes", "size_mb", "check_interval_minutes"},
    "wal_cloud.uploader": {"enabled", "interval_seconds", "root_prefix", "max_object_mb"},
    "wal_cloud.cloud": {
        *("backend", "root", "region", "endpoint", "access_key", "secret_key", "profile"),
        *("role_arn", "session_token", "anonymous", "virtual_host_style", "project"),
        *("credentials_json", "credentials_path", "account_name", "account_key"),
    },
    "wal_cloud.metadata": {"etcd_endpoint", "in_memory"},
    "storage": {"type"},
    "storage.iceberg_config.catalog": {"type", "uri"},
    "storage.iceberg_config.object_store": {"type", "bucket", "region"},
    "storage.iceberg_config.wal": {"base_path", "max_file_size", "sync_mode"},
    "storage.iceberg_config.writer": {"batch_size", "flush_interval_ms", "max_memory_bytes"},
    "storage.iceberg_config.reader": {
        *("poll_interval_ms", "max_concurrent_reads", "prefetch_size"),
    },
}
"""What the examples of both kinds have, section by section."""


def imported(text):
    """Import the only document of a text."""
    (document,) = read_documents(text)
    return import_danube(document, source="danube.yml")


def cloud(**keys):
    """Return a document whose `cloud` has these keys."""
    return {f"{CLOUD}.{name}": value for name, value in keys.items()}


def accepted(text, tmp_path):
    """Load a settings file without its environment, as `config check` does."""
    path = tmp_path / "frazil.yaml"
    path.write_text(text, encoding="utf-8")
    return load_settings(file=str(path), environment={}, look_up=False)


@pytest.mark.parametrize(("name", "number"), DOCUMENTS)
def test_a_complete_file_becomes_exactly_these_settings(name, number, tmp_path):
    """Both kinds of files, every backend: the text is the kept one, and it is accepted."""
    document = read_documents((DATA / f"{name}.yml").read_text(encoding="utf-8"))[number - 1]
    found = import_danube(document, source=f"{name}.yml")
    assert found.text == (DATA / f"{name}-{number}.expected.yml").read_text(encoding="utf-8")
    settings = accepted(found.text, tmp_path)
    for mapped in found.mapped:
        if mapped.shown != "default":
            assert settings.origins[mapped.setting] != "default"


@pytest.mark.parametrize(("name", "number"), DOCUMENTS)
def test_every_key_is_named_once(name, number):
    """A key is mapped or dropped with a reason, never both and never neither."""
    document = read_documents((DATA / f"{name}.yml").read_text(encoding="utf-8"))[number - 1]
    found = import_danube(document, source="danube.yml")
    named = [entry.key for entry in (*found.mapped, *found.dropped)]
    assert sorted(named) == sorted(document)
    assert all(left.reason for left in found.dropped)


def test_the_kept_files_have_every_key_of_the_examples():
    """No key that Danube's files may have is missing from the files above."""
    texts = [(DATA / name).read_text(encoding="utf-8") for name in ("wal-cloud.yml", "iceberg.yml")]
    keys = {key for text in texts for document in read_documents(text) for key in document}
    assert keys == {f"{section}.{key}" for section, names in DANUBE_KEYS.items() for key in names}


def test_a_value_that_is_refused_is_dropped_with_its_limits(tmp_path):
    """What Frazil would not take becomes a comment that names setting and limits; others stay."""
    found = imported(
        "wal_cloud:\n  wal:\n    dir: here\n    file_sync: {interval_ms: 99999999999}\n"
        "    rotation: {max_bytes: 1048576}\n    retention: {time_minutes: soon}\n"
    )
    reasons = {left.key.rpartition(".")[2]: left.reason for left in found.dropped}
    assert "log.sync_interval_s, 0s..1h" in reasons["interval_ms"]
    assert "log.segment_bytes_max, log.write_bytes_max" in reasons["max_bytes"]
    assert "not a number" in reasons["time_minutes"]
    assert accepted(found.text, tmp_path).data_dir == "here"


def test_a_refused_key_takes_what_it_needs_beside_it_along(tmp_path):
    """Acks are not made less durable by a key that was dropped."""
    text = "wal_cloud:\n  wal:\n    dir: here\n    file_sync: {interval_ms: %s}\n"
    found = imported(text % "false")
    assert [left.key for left in found.dropped] == ["wal_cloud.wal.file_sync.interval_ms"]
    assert accepted(found.text, tmp_path).log.sync == "commit"
    assert accepted(imported(text % "5").text, tmp_path).log.sync == "periodic"


def test_a_key_is_free_again_when_the_one_before_it_is_refused(tmp_path):
    """Of two keys for one setting the second is taken if the first cannot be."""
    found = imported(
        "wal_cloud: {wal: {rotation: {max_bytes: false}}}\n"
        "storage: {iceberg_config: {wal: {max_file_size: 134217728}}}\n"
    )
    assert [left.key for left in found.dropped] == ["wal_cloud.wal.rotation.max_bytes"]
    assert accepted(found.text, tmp_path).log.segment_bytes_max == 134217728


def test_references_stay_references(tmp_path):
    """A variable's name is in the result wherever the value needs no arithmetic."""
    found = imported(
        "wal_cloud:\n"
        "  wal: {dir: '${ROOM}/wal', rotation: {max_bytes: '${SEGMENT}'}, retention: {time_minutes: '${AGE}'}}\n"
        "  cloud: {backend: s3, root: 's3://${BUCKET}/x', access_key: '${K}', secret_key: '${S}'}\n"
    )
    assert yaml.safe_load(found.text)["objects"]["secret_key"] == "${S}"
    path = tmp_path / "frazil.yaml"
    path.write_text(found.text, encoding="utf-8")
    environment = {"ROOM": "/srv", "SEGMENT": "64MiB"}
    settings = load_settings(file=str(path), environment=environment)
    assert settings.data_dir == "/srv/wal"
    assert settings.log.segment_bytes_max == 64 << 20
    assert settings.objects.root == "s3://${BUCKET}/x"
    assert [left.key for left in found.dropped] == ["wal_cloud.wal.retention.time_minutes"]


def test_a_secret_is_written_and_not_shown():
    """The file gets the key that was in Danube's; the report has stars."""
    document = cloud(backend="azblob", root="c", account_name="a", account_key="c2VjcmV0")
    found = import_danube(document, source="danube.yml")
    assert "account_key: c2VjcmV0" in found.text
    assert all("c2VjcmV0" not in mapped.shown for mapped in found.mapped)


def test_keys_of_other_places_are_named_with_the_reason():
    """Another backend's keys, misspelt ones and other sections are dropped, each with its words."""
    document = {
        **cloud(backend="fs", root="x", region="r", rooot="y"),
        "broker.ports.client": 6650,
    }
    found = import_danube(document, source="danube.yml")
    reasons = {left.key: left.reason for left in found.dropped}
    assert reasons[f"{CLOUD}.region"] == "is not a setting of the store fs"
    assert "misspelt" in reasons[f"{CLOUD}.rooot"]
    assert "not about storage" in reasons["broker.ports.client"]


def test_two_sections_do_not_fight_for_a_setting():
    """The first key that asks for a setting has it, the other one is reported."""
    found = imported(
        "wal_cloud: {wal: {dir: first}}\n"
        "storage: {type: iceberg, iceberg_config: {wal: {base_path: second}}}\n"
    )
    assert "data_dir: first" in found.text
    (left,) = found.dropped
    assert left == ("storage.iceberg_config.wal.base_path", f"data_dir is already set by {DIR}")


DIR = "wal_cloud.wal.dir"


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("etcd:2379", "http://etcd:2379"),
        ("https://etcd:2379", "https://etcd:2379"),
        ("${ETCD}", "${ETCD}"),
    ],
)
def test_etcd_gets_a_url_and_a_prefix_of_its_own(endpoint, url):
    """A bare address becomes a URL, and nothing of Danube's in the same servers is touched."""
    found = imported(f"wal_cloud: {{metadata: {{etcd_endpoint: '{endpoint}'}}}}\n")
    metadata = yaml.safe_load(found.text)["metadata"]
    assert metadata == {"backend": "etcd", "etcd": {"endpoints": url, "prefix": "/frazil"}}


def test_a_backend_that_frazil_lacks_is_dropped(tmp_path):
    """An unknown kind of store is dropped with those that exist, and the rest is accepted."""
    found = import_danube(cloud(backend="swift", root="x"), source="danube.yml")
    (left,) = found.dropped
    assert (left.key, "|s3|" in left.reason) == (f"{CLOUD}.backend", True)
    assert accepted(found.text, tmp_path).objects.store == "none"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("- 1\n", "not a mapping"),
        ("a: [\n", "not valid YAML"),
        ("broker: {host: x}\n", "neither wal_cloud"),
        ("wal_cloud: {}\n---\nstorage: {type: iceberg}\n", "neither wal_cloud"),
        ("wal_cloud: &a {x: *a}\n", "not valid YAML|too deeply"),
        ("wal_cloud: {a: {b: {c: {d: {e: {f: {g: {h: 1}}}}}}}}\n", "too deeply"),
        ("[" * 5000, "too deeply|not valid YAML"),
        ("wal_cloud: 2026-13-45\n", "not valid YAML"),
        ("wal_cloud: {wal: {dir: !!python/name:os.system x}}\n", "not valid YAML"),
        ("wal_cloud:\n" + "".join(f"  k{n}: 1\n" for n in range(10_001)), "too many keys"),
    ],
)
def test_what_is_no_such_file_is_refused(text, message):
    """Whatever is wrong with it is an InvalidRequest in words."""
    with pytest.raises(InvalidRequest, match=message):
        read_documents(text)


_VALUES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.lists(st.integers(), max_size=2)
    | st.dates()
    | st.sampled_from(["${X}", "s3", "gcs", "azblob", "fs", "http://h", "a\nb: c", "\x85", "# x"])
)
_NAMES = [*RULES, *DROPPED, *(f"{CLOUD}.{name}" for name in DANUBE_KEYS[CLOUD]), "a\nb", "x: y"]


def _paths(node, above=""):
    """Return the dotted names of a settings file's values."""
    for name, value in node.items():
        if isinstance(value, dict):
            yield from _paths(value, f"{above}{name}.")
        else:
            yield f"{above}{name}"


@given(st.dictionaries(st.sampled_from(_NAMES), _VALUES, max_size=8))
def test_any_values_give_a_file_that_is_accepted(tmp_path_factory, document):
    """Whatever the values are: each key is named, and the result loads with what was mapped."""
    found = import_danube(document, source="danube\n.yml")
    settings = accepted(found.text, tmp_path_factory.getbasetemp())
    named = {entry.key for entry in (*found.mapped, *found.dropped)}
    assert named == set(document)
    written = yaml.safe_load(found.text) or {}
    backend = str(document.get(f"{CLOUD}.backend") or "")
    wanted = set()
    for mapped in found.mapped:
        if document[mapped.key] is not None:
            wanted |= set(rule_of(mapped.key, backend=backend).convert(document[mapped.key]))
    # A key without a value says nothing about what another sets, one that is refused sets nothing.
    assert set(_paths(written)) == wanted
    assert settings.memory.enabled


@given(st.text("{}[]&*!:-#'\"\n walcoud_0:", max_size=80))
def test_junk_never_crashes(text):
    """Any text gives documents or an InvalidRequest, nothing else."""
    try:
        documents = read_documents(text)
    except InvalidRequest as error:
        assert error.message
        return
    assert all(import_danube(document, source="x").text for document in documents)


def test_the_command_writes_a_file_that_passes_the_check(tmp_path):
    """`config import --out` then `config check`; the report names every key; nothing is replaced."""
    runner = CliRunner()
    source, target = DATA / "wal-cloud.yml", tmp_path / "frazil.yaml"
    done = runner.invoke(app, ["config", "import", str(source), "--out", str(target)])
    assert done.exit_code == 0, done.output
    assert target.stat().st_mode & 0o777 == 0o600
    assert target.read_text(encoding="utf-8") == (DATA / "wal-cloud-1.expected.yml").read_text(
        encoding="utf-8"
    )
    assert "mapped   wal_cloud.wal.dir -> data_dir: /srv/river/wal" in done.output
    assert "dropped  wal_cloud.wal.file_name: " in done.output
    assert "5 documents" in done.output
    checked = runner.invoke(app, ["config", "check", str(target)])
    assert checked.exit_code == 0, checked.output
    again = runner.invoke(app, ["config", "import", str(source), "--out", str(target)])
    assert "exists already" in again.output
    third = runner.invoke(app, ["config", "import", str(source), "--document", "3"])
    assert "store: azblob" in third.output
    none = runner.invoke(app, ["config", "import", str(source), "--document", "6"])
    assert "no such document" in none.output
    absent = runner.invoke(app, ["config", "import", str(tmp_path / "absent.yml")])
    assert "does not exist" in absent.output
