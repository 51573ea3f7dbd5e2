"""Roles: nothing is allowed that no grant allows."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.registry import check_subject
from frazil.serve.auth.roles import (
    ANYTHING,
    CLUSTER,
    Action,
    Grant,
    Principal,
    Resource,
    Roles,
    topic_resource,
)

APP = Principal("service_account", "app")
PRODUCE, CONSUME, ADMIN = Action.PRODUCE, Action.CONSUME, Action.ADMIN


def grant(*actions, namespace="default", topics=("*",), subjects=()):
    return Grant(frozenset(actions), namespace, tuple(topics), tuple(subjects))


def allowed(granted, action, resource):
    return Roles({APP: (granted,)}).authorize(APP, action, resource)


def topic(name):
    return topic_resource(name)


@given(st.sampled_from([*Action, None]))
def test_who_has_no_grant_may_do_nothing(action):
    """Neither a stranger nor a principal without grants is allowed anything anywhere."""
    roles = Roles({APP: ()})
    subject = Resource("subject", name="s")
    for who, what in itertools.product(
        (APP, Principal("user", "app")), (topic("/default/t"), CLUSTER, ANYTHING, subject)
    ):
        assert not roles.authorize(who, action, what)


def test_actions_do_not_imply_each_other():
    """Who may administer may neither produce nor consume, and so on for each of the three."""
    for has, wants in itertools.product(Action, Action):
        assert allowed(grant(has), wants, topic("/default/t")) == (has is wants)


def test_any_action_will_do_where_none_is_named():
    """A lookup needs only that the caller has something to do with the topic."""
    for has in Action:
        assert allowed(grant(has), None, topic("/default/t"))
        assert not allowed(grant(has), None, topic("/other/t"))


@pytest.mark.parametrize(
    ("namespace", "patterns", "name", "fits"),
    [
        ("default", ["orders"], "/default/orders", True),
        ("default", ["orders"], "/default/orders2", False),
        ("default", ["orders"], "/default/my-orders", False),
        ("default", ["orders"], "/default/Orders", False),
        ("default", ["orders-*"], "/default/orders-eu", True),
        ("default", ["orders-*"], "/default/orders", False),
        ("default", ["o?ders"], "/default/orders", True),
        ("default", ["o?ders"], "/default/oorders", False),
        ("default", ["a", "b"], "/default/b", True),
        ("default", [], "/default/b", False),
        ("default", ["*"], "/other/b", False),
        ("team-*", ["*"], "/team-a/b", True),
        ("*", ["b"], "/team-a/b", True),
        ("default", ["orders"], "/default/orders-part-0", True),
        ("default", ["orders"], "/default/orders-part-17", True),
        ("default", ["orders"], "/default/orders-part-x", False),
        ("default", ["orders"], "/default/orders-part-", False),
        ("default", ["orders-part-1"], "/default/orders-part-0", False),
    ],
)
def test_patterns_fit_whole_names(namespace, patterns, name, fits):
    """A pattern stands for whole names, and a topic's name for its parts too."""
    granted = grant(PRODUCE, namespace=namespace, topics=patterns)
    assert allowed(granted, PRODUCE, topic(name)) == fits


def test_a_namespace_needs_all_its_topics():
    """Who has some topics of a namespace does not have the namespace."""
    what = Resource("namespace", namespace="default")
    assert allowed(grant(ADMIN), ADMIN, what)
    assert not allowed(grant(ADMIN, topics=["a*"]), ADMIN, what)
    assert not allowed(grant(ADMIN, namespace="other"), ADMIN, what)


def test_the_cluster_needs_everything():
    """Only all topics of all namespaces are the cluster."""
    assert allowed(grant(ADMIN, namespace="*"), ADMIN, CLUSTER)
    assert not allowed(grant(ADMIN), ADMIN, CLUSTER)
    assert not allowed(grant(ADMIN, namespace="*", topics=["a*"]), ADMIN, CLUSTER)
    assert not allowed(grant(PRODUCE, namespace="*"), ADMIN, CLUSTER)


def test_subjects_are_granted_by_name():
    """All topics give no subject; a pattern of subjects gives those."""
    what = Resource("subject", name="orders-value")
    assert not allowed(grant(PRODUCE, namespace="*"), PRODUCE, what)
    assert allowed(grant(PRODUCE, subjects=["orders-*"]), PRODUCE, what)
    assert not allowed(grant(PRODUCE, subjects=["orders"]), PRODUCE, what)


NAMED = "aZ0_-./:+@é日"
"""One of each kind of character that a subject may have in its name."""


@pytest.mark.parametrize("character", NAMED)
def test_every_subject_can_be_named(character):
    """What is a subject's name is a pattern of exactly this one, and stars stand for any of it."""
    name = f"a{character}b"
    check_subject(name)
    what = Resource("subject", name=name)
    for pattern in (name, f"*{character}*", f"a{character}?", "a?b", "*"):
        assert allowed(grant(PRODUCE, subjects=[pattern]), PRODUCE, what), pattern
    other = Resource("subject", name="axb")
    assert not allowed(grant(PRODUCE, subjects=[name]), PRODUCE, other)
