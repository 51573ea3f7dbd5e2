"""Settings of the objects tier: secrets are shown by nothing, references are looked up late."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from frazil.cli.app import app
from frazil.config import describe, load_settings
from frazil.config.values import HIDDEN, SecretText, resolve
from frazil.errors import InvalidRequest

SECRETS = [info.path for info in describe() if info.kind == "secret"]
PAIR = {"objects.access_key": "AKIA-open-sesame", "objects.secret_key": "open-sesame"}


def test_every_key_that_opens_a_store_is_a_secret():
    """No credential can be declared as a plain text by mistake."""
    words = ("access_key", "secret_key", "account_key", "objects.credentials")
    named = {info.path for info in describe() if info.path.endswith(words)}
    assert named
    assert named <= set(SECRETS)


@pytest.mark.parametrize("output", ["table", "json"])
def test_config_show_has_stars_for_a_secret(output):
    """`frazil config show` prints stars and where the secret was set, never the secret."""
    flags = [part for key, value in PAIR.items() for part in ("--set", f"{key}={value}")]
    done = CliRunner().invoke(
        app,
        ["config", "show", "-o", output, *flags],
        env={"COLUMNS": "300"},
        catch_exceptions=False,
    )
    assert done.exit_code == 0
    assert "sesame" not in done.output
    assert HIDDEN in done.output
    if output == "json":
        shown = json.loads(done.output)["objects.secret_key"]
        assert shown == {"value": HIDDEN, "origin": "flag"}


def test_no_text_of_the_tree_has_a_secret():
    """repr, str, a dump as JSON and an error about a secret have stars."""
    settings = load_settings(environment={}, overrides=dict(PAIR))
    texts = [repr(settings), str(settings), settings.model_dump_json(), str(settings.model_dump())]
    texts.append(str(settings.values()))
    with pytest.raises(InvalidRequest) as caught:
        load_settings(environment={}, overrides={"objects.secret_key": "open-sesame"})
    texts.append(str(caught.value))
    assert [text for text in texts if "sesame" in text] == []
    assert settings.objects.secret_key.get_secret_value() == "open-sesame"


@pytest.mark.parametrize("path", SECRETS)
def test_a_wrong_value_of_a_secret_is_not_repeated(path):
    """A number where a secret should be is refused without being printed."""
    with pytest.raises(InvalidRequest) as caught:
        load_settings(environment={}, overrides={path: 31415926})
    assert "31415926" not in str(caught.value)
    assert caught.value.details["key"] == path


def test_a_reference_is_shown_and_looked_up_when_it_is_used():
    """`${NAME}` stays in the tree; what it stands for is found by resolve alone."""
    reference = "${STORE_KEY}"
    overrides = {"objects.access_key": reference, "objects.secret_key": reference}
    settings = load_settings(environment={"STORE_KEY": "hush"}, overrides=overrides)
    key = settings.objects.access_key
    assert str(key) == reference
    assert resolve(key, setting="objects.access_key", environment={"STORE_KEY": "hush"}) == "hush"
    with pytest.raises(InvalidRequest, match="not set") as caught:
        resolve(key, setting="objects.access_key", environment={})
    assert caught.value.details == {"setting": "objects.access_key", "variable": "STORE_KEY"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("s3://${BUCKET}/${PREFIX}", "s3://logs/a$b"),
        ("${BUCKET}${BUCKET}", "logslogs"),
        ("$BUCKET and {BUCKET} and $${", "$BUCKET and {BUCKET} and $${"),
        ("", ""),
    ],
)
def test_references_within_a_text_are_replaced_once(text, value):
    """Only `${NAME}` is a reference, and a value is not looked at again."""
    variables = {"BUCKET": "logs", "PREFIX": "a$b", "b": "no"}
    assert resolve(text, setting="objects.root", environment=variables) == value


@pytest.mark.parametrize("text", ["x${NAME}", "${NAME}x", "${NAME", "${9}"])
def test_what_is_not_only_references_is_hidden(text):
    """A secret with a written part shows nothing of it."""
    assert str(SecretText(text)) == HIDDEN


def test_retention_can_be_switched_off_again():
    """`none` and null take back a retention of a weaker source."""
    for given in ("none", " None ", None):
        settings = load_settings(
            environment={"FRAZIL_OBJECTS__RETENTION_AGE_S": "3d"},
            overrides={"objects.retention_age_s": given},
        )
        assert settings.objects.retention_age_s is None
    assert (
        load_settings(environment={"FRAZIL_OBJECTS__RETENTION_AGE_S": "3d"}).objects.retention_age_s
        == 3 * 86_400
    )
