"""Another root in the settings than the one that objects were uploaded to."""

from __future__ import annotations

import shutil

import pytest

from frazil.errors import InvalidRequest, Unavailable
from tests.integration.engine.objects_world import open_with_objects, stored
from tests.integration.engine.opening import payloads_of

pytestmark = pytest.mark.integration


def fill(path):
    """Upload two records to the store that settings name first; return their keys."""
    with open_with_objects(path) as db:
        topic = db.create_topic("t")
        for payload in (b"a", b"b"):
            topic.append(payload, ack="uploaded")
    return sorted(stored(path))


def open_elsewhere(path):
    return open_with_objects(path, objects={"root": str(path / "other")})


def test_another_root_is_refused_before_anything_is_uploaded_there(tmp_path):
    """A slip in the settings does not divide a history; set back, all is as it was."""
    keys = fill(tmp_path)
    with pytest.raises(InvalidRequest, match=r"objects\.root back") as caught:
        open_elsewhere(tmp_path)
    assert caught.value.details["key"] in keys
    assert str(tmp_path / "store") in caught.value.details["location_before"]
    assert not list(tmp_path.glob("other/**/*.frz"))
    with open_with_objects(tmp_path) as db:
        assert db.topic("t").append(b"c", ack="uploaded").offset == 2
        assert payloads_of(db.topic("t")) == [b"a", b"b", b"c"]


def test_objects_that_were_copied_are_taken_from_their_new_place(tmp_path):
    """Who moves the store says so by the setting alone, and may not go back by accident."""
    fill(tmp_path)
    shutil.copytree(tmp_path / "store", tmp_path / "other")
    with open_elsewhere(tmp_path) as db:
        assert db.topic("t").append(b"c", ack="uploaded").offset == 2
    with pytest.raises(InvalidRequest, match=r"objects\.root back"):
        open_with_objects(tmp_path)
    with open_elsewhere(tmp_path) as db:
        assert payloads_of(db.topic("t")) == [b"a", b"b", b"c"]


NOBODY = {
    "store": "s3",
    "root": "s3://bucket/root",
    "endpoint": "http://127.0.0.1:1",
    "allow_http": True,
    "access_key": "a",
    "secret_key": "b",
}
"""A store that does not answer."""


def test_a_changed_place_waits_for_its_store(tmp_path):
    """Nothing is uploaded to another place before it was looked at."""
    fill(tmp_path)
    with pytest.raises(Unavailable):
        open_with_objects(tmp_path, objects=NOBODY)
