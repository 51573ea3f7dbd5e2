"""Names of topics and parts are taken and refused as the protocol says."""

from __future__ import annotations

import pytest

from frazil.errors import InvalidRequest
from frazil.model import NAME_PART_CHARACTERS_MAX
from frazil.serve.danube import names
from frazil.serve.danube.statuses import Refused


@pytest.mark.parametrize("name", ["/default/t", "/n-1/a_b-C9", "/größe/日本", "/default/t-part-0"])
def test_names_of_two_parts_are_taken_as_they_are(name):
    """Letters and digits of any script, `_` and `-` are taken unchanged."""
    assert names.checked_topic(name) == name


REFUSED = [
    *("", "/", "//", "t", "default/t", "/t", "//t", "/default/", "/default/t/", "/a/b/c", "a/b/c"),
    *(
        "/default/a.b",
        "/default/a b",
        "/default/a\n",
        "/default/a\0",
        "/de fault/t",
        "/default/%41",
    ),
    "/default/" + "x" * (NAME_PART_CHARACTERS_MAX + 1),
]


@pytest.mark.parametrize("name", REFUSED)
def test_other_names_are_refused_with_the_protocols_text(name):
    """A name of another shape is INVALID_ARGUMENT, and the text says what it should be."""
    with pytest.raises(Refused) as caught:
        names.checked_topic(name)
    status = caught.value.status
    assert status.code.name == "INVALID_ARGUMENT"
    assert status.text.startswith("The topic: ")
    assert status.text.endswith(" has an invalid format, should be: /namespace_name/topic_name")
    assert status.text.isprintable()


def test_a_refused_name_is_shown_cut():
    """A name of a megabyte does not come back as a megabyte."""
    with pytest.raises(Refused) as caught:
        names.checked_topic("x" * 1_000_000)
    assert len(caught.value.status.text) < 400


def test_the_namespace_is_the_first_part():
    """The namespace of a name is what stands between its first two slashes."""
    assert names.namespace_of("/default/t") == "default"
    assert names.namespace_of("/größe/x-part-1") == "größe"


@pytest.mark.parametrize("name", ["default", "system", "a_b-1", "ä"])
def test_namespaces_have_plain_names(name):
    """One part of letters, digits, `_` and `-` may name a namespace."""
    names.check_namespace(name)


@pytest.mark.parametrize("name", ["", "a/b", "a.b", "a b", "/a", "x" * 201, "a\u0308"])
def test_other_names_are_no_namespaces(name):
    """What could not stand in a topic's name as it is cannot name a namespace."""
    with pytest.raises(InvalidRequest, match="a namespace has letters"):
        names.check_namespace(name)


@pytest.mark.parametrize(
    ("topic", "part"),
    [
        ("/n/t-part-0", ("/n/t", 0)),
        ("/n/t-part-17", ("/n/t", 17)),
        ("/n/t-part-1-part-2", ("/n/t-part-1", 2)),
        ("/n/t", None),
        ("/n/t-part-", None),
        ("/n/t-part-x", None),
        ("/n/t-part-01", None),
        ("/n/t-part-\u0661", None),
        ("/n/t-part-9999999999", None),
        ("/n/-part-0", None),
        ("/n/t-part-0\n", None),
        ("/n-part-0/t", None),
    ],
)
def test_a_part_is_known_by_its_exact_name(topic, part):
    """Only `-part-` and a number as it is written make a part."""
    assert names.part_of(topic) == part
