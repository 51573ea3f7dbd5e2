"""The page about security says what is true."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import yaml

from frazil.config import load_settings
from frazil.serve.auth.access_file import parse_access
from frazil.serve.auth.roles import Action, Principal, topic_resource

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "security.md").read_text("utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def blocks(language):
    """Return the examples in a language."""
    return [text for name, text in BLOCKS if name == language]


def test_the_example_of_settings_is_taken(tmp_path):
    """With both TLS and authentication the address of everybody is allowed."""
    path = tmp_path / "frazil.yaml"
    path.write_text(blocks("yaml")[0])
    settings = load_settings(file=str(path), environment={})
    assert settings.serve.exposed == ("0.0.0.0",)
    assert settings.secured
    assert not settings.serve.insecure


def test_the_example_of_access_grants_what_the_page_says():
    """The writer produces to its topics, and alice does what both of her roles allow."""
    roles, keys = parse_access(blocks("yaml")[1])
    orders, other = (topic_resource(f"/default/{name}") for name in ("orders-eu", "other"))
    app, alice = Principal("service_account", "orders-app"), Principal("user", "alice")
    assert roles.authorize(app, Action.PRODUCE, orders)
    assert not roles.authorize(app, Action.PRODUCE, other)
    assert roles.authorize(alice, Action.ADMIN, other)
    assert not roles.authorize(alice, Action.CONSUME, orders)
    assert len(keys) == 1


def test_the_command_makes_a_key_that_the_file_takes():
    """What it prints is the key, and the hash that the access file wants."""
    words = shlex.split(blocks("sh")[0])
    assert words[0] == "python"
    found = subprocess.run(
        [sys.executable, *words[1:]], capture_output=True, check=True, text=True
    ).stdout.split()
    text, digest = found
    tree = yaml.safe_load(blocks("yaml")[1])
    tree["keys"]["orders-app-1"] |= {"sha256": digest, "expires": None}
    _, keys = parse_access(yaml.safe_dump(tree))
    assert str(keys.verify(text, now_s=0.0).principal) == "service_account:orders-app"
