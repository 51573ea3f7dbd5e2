"""`${NAME}` in a settings file: looked up at load, or kept where it is looked up when used."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from frazil.cli.app import app
from frazil.config import load_settings
from frazil.errors import InvalidRequest


@pytest.fixture
def settings_file(tmp_path):
    """Write a settings file and return its path."""

    def write(text):
        path = tmp_path / "frazil.yaml"
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def test_a_reference_is_taken_from_the_environment_at_load(settings_file):
    """Texts, numbers, switches and mappings may refer to variables; the origin names them."""
    file = settings_file(
        "data_dir: ${ROOM}/${NAME}\nlog:\n  segment_bytes_max: ${SIZE}\n"
        "topics:\n  auto_create: ${CREATE}\n"
        "lake:\n  spark:\n    conf: {a: 'x ${NAME}', b: 5, c: '${user.home}'}\n"
    )
    environment = {"ROOM": "/srv", "NAME": "river", "SIZE": "1GiB", "CREATE": "no"}
    settings = load_settings(file=file, environment=environment)
    assert settings.data_dir == "/srv/river"
    assert settings.log.segment_bytes_max == 1 << 30
    assert not settings.topics.auto_create
    assert settings.lake.spark.conf == {"a": "x river", "b": "5", "c": "${user.home}"}
    assert settings.origins["data_dir"] == f"{file}:1 ${{ROOM}}, ${{NAME}}"


def test_a_variable_that_is_not_set_is_named_with_its_place(settings_file):
    """The error has the setting, the variable and the line, and nothing is taken for it."""
    file = settings_file("log:\n  sync: ${MODE}\n")
    with pytest.raises(InvalidRequest, match="not set") as caught:
        load_settings(file=file, environment={})
    assert caught.value.details == {
        "setting": "log.sync",
        "variable": "MODE",
        "set_at": f"{file}:2",
    }


def test_secrets_stay_references(settings_file, monkeypatch):
    """What a secret refers to is not in the settings, nor in what `config show` prints."""
    monkeypatch.setenv("RIVER_SECRET", "dont-print-me")
    monkeypatch.setenv("RIVER_BUCKET", "bucket")
    file = settings_file(
        "objects:\n  store: s3\n  root: s3://${RIVER_BUCKET}\n"
        "  access_key: ${RIVER_SECRET}\n  secret_key: ${RIVER_SECRET}\n"
    )
    settings = load_settings(file=file)
    assert settings.objects.secret_key.get_secret_value() == "${RIVER_SECRET}"
    assert settings.objects.root == "s3://${RIVER_BUCKET}"
    for output in ("table", "json"):
        shown = CliRunner().invoke(app, ["config", "show", "-c", file, "-o", output])
        assert shown.exit_code == 0
        assert "dont-print-me" not in shown.output
        assert "RIVER_SECRET" in shown.output


def test_a_check_needs_no_variables(settings_file):
    """`config check` looks at the file alone: references are taken as given, wrong keys are not."""
    file = settings_file("data_dir: ${ROOM}\nlog:\n  segment_bytes_max: ${SIZE}\n")
    assert CliRunner().invoke(app, ["config", "check", file]).exit_code == 0
    wrong = settings_file("data_dirr: ${ROOM}\n")
    assert "data_dir" in CliRunner().invoke(app, ["config", "check", wrong]).output


def test_the_environment_and_flags_have_no_references(settings_file):
    """Only files refer to variables: a flag's text is what it is."""
    file = settings_file("data_dir: a\n")
    environment = {"FRAZIL_DATA_DIR": "${HOME}"}
    assert load_settings(file=file, environment=environment).data_dir == "${HOME}"
