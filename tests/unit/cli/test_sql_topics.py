r"""`frazil sql -c '\d'`: topics and their columns without a shell."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

import frazil
from frazil.cli.app import app


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "data"
    with frazil.open(path) as db:
        db.create_topic("users", {"id": "long", "name": "string"}, primary_key="id").upsert(id=1)
    return path


def ask(data, *words, given=None, code=0):
    result = CliRunner().invoke(app, ["--data", str(data), "sql", *words], input=given)
    assert result.exit_code == code, (result.output, result.exception)
    return result.stdout or result.stderr


def test_topics_are_listed(data):
    r"""`\d` lists the topics, from -c and from stdin."""
    (topic,) = json.loads(ask(data, "-c", r"\d", "-f", "json"))
    assert (topic["topic"], topic["key"], topic["records"]) == ("users", "id", "1")
    assert json.loads(ask(data, "-f", "json", given="\\d\n")) == [topic]
    assert "users" in ask(data, "-c", r"\d")


def test_a_topic_is_described(data):
    r"""`\d users` tells its columns; one that does not exist is an error."""
    found = json.loads(ask(data, "-c", r"\d users;", "-f", "json"))
    assert [column["column"] for column in found] == ["id", "name", "_offset", "_time"]
    assert [column["key"] for column in found] == [True, False, False, False]
    assert "nope" in ask(data, "-c", r"\d nope", code=3)


def test_other_commands_need_the_shell(data):
    """A command that only a shell can follow is refused."""
    assert "outside of the shell" in ask(data, "-c", r"\timing", code=2)
