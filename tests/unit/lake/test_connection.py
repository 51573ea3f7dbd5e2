"""What failures of a catalog mean: who has to act, and whether it may have happened."""

from __future__ import annotations

import errno

import pytest
import requests
from pyiceberg import exceptions as theirs

from frazil.errors import CommitUnknown, Conflict, InvalidRequest, NotFound, Unavailable
from frazil.lake.connection import CatalogAddress, calls, connect

READING = [
    (theirs.NoSuchTableError("t"), NotFound),
    (theirs.NoSuchNamespaceError("n"), NotFound),
    (theirs.UnauthorizedError("no"), InvalidRequest),
    (theirs.ForbiddenError("no"), InvalidRequest),
    (theirs.CommitFailedException("changed"), Conflict),
    (theirs.CommitStateUnknownException("?"), CommitUnknown),
    (theirs.ServerError("500"), Unavailable),
    (theirs.ServiceUnavailableError("503"), Unavailable),
    (theirs.TooManyRequestsError("429"), Unavailable),
    (theirs.BadRequestError("400"), InvalidRequest),
    (requests.ConnectionError("refused"), Unavailable),
    (requests.ReadTimeout("slow"), Unavailable),
    (PermissionError("no"), Unavailable),
]
WRITING = {
    theirs.ServerError: CommitUnknown,
    theirs.ServiceUnavailableError: CommitUnknown,
    theirs.TooManyRequestsError: CommitUnknown,
    requests.ConnectionError: CommitUnknown,
    requests.ReadTimeout: CommitUnknown,
}


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_reported_as_such(code):
    """The setting is named, and what to do."""
    with (
        pytest.raises(Unavailable, match=r"full, free room.*lake\.warehouse"),
        calls("write to the warehouse", path="w"),
    ):
        raise OSError(code, "full")


@pytest.mark.parametrize(("error", "meaning"), READING, ids=lambda each: str(type(each)))
def test_each_failure_is_one_of_ours(error, meaning):
    """A failure of a read tells the caller what to do, with its reason and facts."""
    with pytest.raises(meaning) as caught, calls("read", table="a.b"):
        raise error
    assert type(caught.value) is meaning
    assert caught.value.details["table"] == "a.b"
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(("error", "meaning"), READING, ids=lambda each: str(type(each)))
def test_a_write_without_an_answer_may_have_happened(error, meaning):
    """A write that got no clear answer is never called failed."""
    with pytest.raises(WRITING.get(type(error), meaning)), calls("write", writes=True):
        raise error


def test_a_connection_that_was_never_made_wrote_nothing():
    """Where no connection came to be, nothing can have happened."""
    with pytest.raises(Unavailable), calls("write", writes=True):
        raise requests.ConnectTimeout


def test_a_bug_of_ours_stays_one():
    """What is not a catalog's failure passes through as it is."""
    with pytest.raises(ZeroDivisionError), calls("read"):
        raise ZeroDivisionError


@pytest.mark.parametrize("uri", ["", "catalog:8181", "ftp://x/", "http://"])
def test_what_is_no_address_is_refused_without_asking(uri):
    """An address that cannot be one is refused."""
    with pytest.raises(InvalidRequest, match="no http address"):
        connect(CatalogAddress(uri=uri))
