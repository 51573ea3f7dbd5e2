"""The access file: what it grants, and that nothing in it is misread."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from frazil.errors import InvalidRequest
from frazil.serve.auth.access_file import parse_access
from frazil.serve.auth.credentials import BadCredential, new_key
from frazil.serve.auth.roles import (
    CLUSTER,
    Action,
    Principal,
    Resource,
    topic_resource,
)

KEY = new_key("app-1", random=bytes(32))
APP = Principal("service_account", "app")
GOOD = f"""
roles:
  writer:
    - actions: [produce]
      namespace: default
      topics: ["orders", "orders-*"]
      subjects: ["orders*"]
  all:
    - actions: [admin]
      namespace: "*"
      topics: ["*"]
principals:
  service_account:app: [writer]
  user:alice: [writer, all]
keys:
  app-1:
    sha256: {KEY.digest}
    principal: service_account:app
    expires: 2027-01-31T00:00:00Z
"""
EXPIRES_S = 1_801_353_600


def test_the_page_example_grants_what_it_says():
    """Roles are joined, keys belong to principals, and what is not named is not granted."""
    roles, keys = parse_access(GOOD)
    orders = topic_resource("/default/orders-eu")
    assert roles.authorize(APP, Action.PRODUCE, orders)
    assert not roles.authorize(APP, Action.CONSUME, orders)
    assert not roles.authorize(APP, Action.ADMIN, CLUSTER)
    assert roles.authorize(Principal("user", "alice"), Action.ADMIN, CLUSTER)
    assert not roles.authorize(Principal("user", "app"), Action.PRODUCE, orders)
    assert keys.verify(KEY.text, now_s=EXPIRES_S - 1) == (APP, EXPIRES_S)
    with pytest.raises(BadCredential):
        keys.verify(KEY.text, now_s=EXPIRES_S)


@pytest.mark.parametrize(
    "name", ["com.acme.Order", "orders/value", "urn:orders:v1", "c++", "orders@eu", "späti"]
)
def test_subjects_are_granted_by_the_names_that_they_have(name):
    """A file names any subject that can be registered, and grants that one alone."""
    roles, _keys = parse_access(GOOD.replace("orders*", name))
    this, other = (Resource("subject", name=each) for each in (name, f"{name}2"))
    assert roles.authorize(APP, Action.PRODUCE, this)
    assert not roles.authorize(APP, Action.PRODUCE, other)


def test_a_time_without_a_zone_is_utc():
    """Where the broker runs does not move the end of a key."""
    _roles, keys = parse_access(GOOD.replace("00:00:00Z", "00:00:00"))
    assert keys.verify(KEY.text, now_s=0).expires_s == EXPIRES_S


def test_an_empty_file_grants_nothing():
    """Nothing in the file is nothing granted."""
    roles, keys = parse_access("")
    assert len(keys) == 0
    assert not roles.authorize(APP, None, CLUSTER)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        *(("topics", text) for text in ("", "a/b", "a.b", "[ab]", "a b", "x" * 256, "a\n", 7)),
        *(("subjects", text) for text in ("", "[ab]", "a b", "x" * 256, "a\n", "a!", "a\\b", 7)),
    ],
)
def test_what_no_name_can_match_is_no_pattern(what, text):
    """Patterns are characters of names, with stars and question marks."""
    tree = yaml.safe_load(GOOD)
    next(iter(tree["roles"].values()))[0][what] = [text]
    with pytest.raises(InvalidRequest, match="access file is refused"):
        parse_access(yaml.safe_dump(tree))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("[produce]", "[produces]"),
        ("[produce]", "[]"),
        ("[produce]", "produce"),
        ("actions: [produce]", "action: [produce]"),
        ("topics:", "topic:"),
        ('"orders-*"', '"orders.*"'),
        ('"orders-*"', '"/default/orders"'),
        ('"orders*"', '"orders!"'),
        ("namespace: default", "namespace: /default"),
        ("service_account:app: [writer]", "app: [writer]"),
        ("service_account:app: [writer]", "robot:app: [writer]"),
        ("service_account:app: [writer]", "'user:': [writer]"),
        ("[writer, all]", "[writer, al]"),
        (f"sha256: {KEY.digest}", "sha256: abc"),
        (f"sha256: {KEY.digest}", f"sha256: {KEY.digest}\n    sha256: {'0' * 64}"),
        (f"sha256: {KEY.digest}", f"secret: {KEY.text}"),
        ("app-1:", "App_1:"),
        ("expires: 2027", "expires: never2027"),
        ("principals:", "grants:"),
        ("roles:", "roles: &a\n  x: *a\nroles:"),
        ("roles:", "- roles:"),
        ("roles:", "roles: !!python/object/apply:os.system ['x']\nx:"),
    ],
)
def test_what_is_misspelt_is_refused(before, after):
    """A wrong word anywhere refuses the whole file, without quoting a key or hash."""
    text = GOOD.replace(before, after, 1)
    assert text != GOOD
    with pytest.raises(InvalidRequest) as caught:
        parse_access(text, file="access.yaml")
    shown = f"{caught.value} {caught.value!r}"
    assert "access" in shown
    assert KEY.digest not in shown
    assert KEY.text not in shown
    assert caught.value.__cause__ is None


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda data: data.decode("latin-1")))
def test_junk_is_refused_or_grants_nothing(text):
    """No text crashes the reader."""
    try:
        roles, _keys = parse_access(text)
    except InvalidRequest:
        return
    assert not roles.grants


_LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=8)
_TREES = st.recursive(
    _LEAVES,
    lambda kids: (
        st.lists(kids, max_size=3)
        | st.dictionaries(
            st.sampled_from(["roles", "principals", "keys", "actions", "topics", "a"]),
            kids,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@given(_TREES)
def test_any_tree_is_refused_or_read(tree):
    """No shape of YAML crashes the reader."""
    try:
        _roles, keys = parse_access(yaml.safe_dump(tree))
    except InvalidRequest as error:
        assert "access file" in str(error) or "role" in str(error)
        return
    assert isinstance(tree, dict) or tree is None
    assert len(keys) == 0
