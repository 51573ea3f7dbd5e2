"""Opening stores: roots, endpoints, what is missing; and a directory that is synced."""

from __future__ import annotations

import errno
import sys

import pytest

from frazil.clock import SystemClock
from frazil.config import load_settings
from frazil.errors import Closed, Conflict, InvalidRequest, Unavailable
from frazil.fs import RealFileSystem
from frazil.objects import obstores
from frazil.objects.obstores import (
    DirectoryStore,
    credentials_setting,
    endpoint_of,
    location_of,
    open_store,
)
from tests.support import Fault, FaultyFileSystem


def settings(**changes):
    overrides = {f"objects.{name}": value for name, value in changes.items()}
    return load_settings(environment={}, overrides=overrides).objects


@pytest.mark.parametrize(
    ("store", "root", "place"),
    [
        ("s3", "s3://bucket/a/b", ("bucket", "a/b")),
        ("s3", "bucket", ("bucket", "")),
        ("s3", "s3a://bucket//a//", ("bucket", "a")),
        ("gcs", "gs://bucket/a", ("bucket", "a")),
        ("gcs", "gcs://bucket/a", ("bucket", "a")),
        ("azblob", "container/a", ("container", "a")),
        ("azblob", "azblob://container", ("container", "")),
        ("fs", "file:///var/objects", ("", "/var/objects")),
        ("fs", "/var/x/../objects/", ("", "/var/objects")),
        ("memory", "memory://name", ("", "name")),
        ("memory", "name", ("", "name")),
    ],
)
def test_a_root_is_a_bucket_and_a_prefix(store, root, place):
    """Every kind takes its schemes and none, and slashes too many."""
    assert location_of(settings(store=store, root=root)) == place


@pytest.mark.parametrize(
    ("store", "root"),
    [
        ("s3", "gcs://bucket/a"),
        ("fs", "s3://bucket"),
        ("s3", "s3://"),
        ("s3", "s3:///a"),
        ("gcs", "bucket/../other"),
        ("azblob", "https://account/container"),
    ],
)
def test_a_root_that_is_none_is_refused(store, root):
    """The scheme of another store, no bucket, and steps upwards are refused with the setting."""
    with pytest.raises(InvalidRequest) as caught:
        location_of(settings(store=store, root=root))
    assert caught.value.details["setting"] == "objects.root"


def test_a_relative_directory_is_made_absolute(tmp_path, monkeypatch):
    """A root does not move when the process changes its directory."""
    monkeypatch.chdir(tmp_path)
    assert location_of(settings(store="fs", root="objects")).prefix == str(tmp_path / "objects")


def test_references_in_a_root_are_looked_up(monkeypatch):
    """`${NAME}` in a root is the variable's value."""
    monkeypatch.setenv("UPLOADS_BUCKET", "logs")
    assert location_of(settings(store="s3", root="s3://${UPLOADS_BUCKET}/a")) == ("logs", "a")


@pytest.mark.parametrize(
    "text",
    [
        "host:9000",
        "ftp://host",
        "https://",
        "https://host:99999",
        "https://host:0",
        "https://user:secret@host",
        "https://host/?x=1",
        "https://ho st",
        "::no url",
        "https://host\x00",
    ],
)
def test_an_endpoint_that_is_none_is_refused_without_repeating_it(text):
    """What no client could ask is refused before one is made; a password in it is not shown."""
    with pytest.raises(InvalidRequest) as caught:
        endpoint_of(settings(endpoint=text, allow_http=True))
    assert caught.value.details == {"setting": "objects.endpoint"}


def test_an_endpoint_without_tls_has_to_be_allowed():
    """Http is refused unless it is allowed; a slash at the end is nothing."""
    assert endpoint_of(settings(endpoint="http://host:1/", allow_http=True)) == "http://host:1"
    assert endpoint_of(settings(endpoint="https://host")) == "https://host"
    with pytest.raises(InvalidRequest) as caught:
        endpoint_of(settings(endpoint="http://host:1"))
    assert caught.value.details["setting"] == "objects.allow_http"


@pytest.mark.parametrize(
    ("changes", "setting"),
    [
        ({"store": "s3"}, "objects.access_key"),
        ({"store": "s3", "profile": "p"}, "objects.profile"),
        ({"store": "gcs"}, "objects.credentials"),
        ({"store": "azblob"}, "objects.account_key"),
        ({"store": "fs"}, "objects.root"),
    ],
)
def test_who_is_blamed_is_what_is_used(changes, setting):
    """Refused credentials are traced to the setting that they came from."""
    assert credentials_setting(settings(root="x", **changes)) == setting


def test_without_obstore_it_is_said_what_to_install(monkeypatch):
    """The extra's name is in the message."""
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(InvalidRequest, match=r"frazil\[objects\]"):
        open_store(settings(store="memory", root="m"))


def test_without_boto_it_is_said_what_to_install(monkeypatch):
    """Profiles name boto3 and their setting where it is missing."""
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(InvalidRequest, match="pip install boto3") as caught:
        open_store(settings(store="s3", root="b", profile="x"))
    assert caught.value.details["setting"] == "objects.profile"


def test_a_closed_store_says_so():
    """Every call after close is Closed."""
    store = open_store(settings(store="memory", root="closed"))
    store.close()
    for call in (
        lambda: store.put("k", b""),
        lambda: store.put_stream("k", []),
        lambda: store.get("k", start=0, length=1),
        lambda: store.head("k"),
        lambda: store.list(""),
        lambda: store.delete(["k"]),
    ):
        with pytest.raises(Closed):
            call()


def test_stores_in_memory_are_distinguished_by_name():
    """The same name is the same store in a process; another name is another one."""
    one, again, other = (
        open_store(settings(store="memory", root=name)) for name in ("n1", "n1", "n2")
    )
    one.put("only in n1", b"x")
    assert again.head("only in n1") is not None
    assert other.head("only in n1") is None


# -- a directory as a store ----------------------------------------------------------------------


@pytest.fixture
def opened(tmp_path):
    """A store in a directory, with the calls it makes and the faults that are planned."""
    from obstore.store import LocalStore

    def make(*faults):
        files = FaultyFileSystem(RealFileSystem(), faults)
        directory = str(tmp_path / "objects")
        client = LocalStore(directory, mkdir=True)
        return DirectoryStore(client, directory, clock=SystemClock(), files=files), files

    return make


@pytest.mark.parametrize("way", ["put", "put_stream", "again"])
def test_an_object_and_its_directories_are_synced(opened, tmp_path, way):
    """When a put returns, or finds an object, file and directories are on the disk."""
    store, files = opened()
    if way == "put_stream":
        store.put_stream("a/b/k", [b"12", b"34"])
    else:
        store.put("a/b/k", b"1234")
    if way == "again":
        files.trace.clear()
        with pytest.raises(Conflict):
            store.put("a/b/k", b"1234")
    calls = [(call.verb, call.path.removeprefix(str(tmp_path))) for call in files.trace]
    assert ("sync", "/objects/a/b/k") in calls
    synced = [path for verb, path in calls if verb == "sync_directory"]
    assert synced == ["/objects/a/b", "/objects/a", "/objects", ""]
    assert calls.index(("sync", "/objects/a/b/k")) < calls.index(("sync_directory", "/objects/a/b"))


@pytest.mark.parametrize("instead", [False, True])
def test_a_directory_that_was_taken_away_is_not_made_anew(opened, tmp_path, instead):
    """A share that is not mounted makes the store unavailable; nothing is written beside it."""
    store, _files = opened()
    store.put("a/k", b"1234")
    (tmp_path / "objects").rename(tmp_path / "elsewhere")
    if instead:
        (tmp_path / "objects").mkdir()
    for call in (
        lambda: store.put("a/l", b"5678"),
        lambda: store.put_stream("a/l", [b"56", b"78"]),
        lambda: store.get("a/k", start=0, length=4),
        lambda: store.head("a/k"),
        lambda: store.list(""),
        lambda: store.delete(["a/k"]),
    ):
        with pytest.raises(Unavailable, match="not the one that it was"):
            call()
    assert not list(tmp_path.glob("objects/*"))
    if instead:
        (tmp_path / "objects").rmdir()
    (tmp_path / "elsewhere").rename(tmp_path / "objects")
    assert store.get("a/k", start=0, length=4) == b"1234"


@pytest.mark.parametrize("verb", ["sync", "sync_directory"])
def test_a_failed_sync_is_unknown(opened, verb):
    """An object that may not be durable is never said to be there."""
    store, files = opened(Fault(verb, error=errno.EIO))
    with pytest.raises(Unavailable) as caught:
        store.put("a/k", b"1234")
    assert caught.value.details["outcome"] == "unknown"
    assert files.fired == 1


@pytest.mark.parametrize(
    "name",
    [
        *("access_key", "secret_key", "region"),
        *("account_name", "account_key"),
    ],
)
@pytest.mark.parametrize("end", ["\n", " ", "\0", "é"])
def test_a_word_that_no_request_can_have_is_refused(name, end, monkeypatch):
    """A secret with the end of its line is refused at once, with its setting and without its value."""
    monkeypatch.setenv("OF_A_FILE", f"hidden-{end}" if end != "\0" else "hidden-\x7f")
    given = {"access_key": "key", "secret_key": "key", name: "${OF_A_FILE}"}
    store = "azblob" if name.startswith("account") else "s3"
    with pytest.raises(InvalidRequest) as caught:
        open_store(settings(store=store, root="bucket", **given))
    assert caught.value.details["setting"] == f"objects.{name}"
    assert "hidden" not in f"{caught.value} {caught.value.details}"


def test_a_panic_of_the_client_is_trouble_like_any_other(monkeypatch):
    """A bug of the client must not end a thread: a panic is no `Exception`."""
    monkeypatch.setattr(obstores, "_is_word", lambda _text: True)
    own = {"endpoint": "http://127.0.0.1:1", "allow_http": True}
    keys = {"access_key": "a\n", "secret_key": "b"}
    store = open_store(settings(store="s3", root="bucket", **own, **keys))
    large = [b"x" * (8 << 20), b"y"]
    for call in (
        lambda: store.put("k", b"x"),
        lambda: store.put_stream("k", large),
        lambda: store.get("k", start=0, length=1),
        lambda: store.head("k"),
        lambda: store.list(""),
        lambda: store.delete(["k"]),
    ):
        with pytest.raises(Unavailable, match="bug"):
            call()


def test_a_key_of_an_account_that_is_none_is_blamed():
    """What is wrong inside the JSON of a service account is the fault of its setting."""
    wrong = '{"private_key": "hidden", "client_email": "x", "private_key_id": "y"}'
    with pytest.raises(InvalidRequest) as caught:
        open_store(settings(store="gcs", root="bucket", credentials=wrong))
    assert caught.value.details["setting"] == "objects.credentials"
    assert "hidden" not in str(caught.value)
