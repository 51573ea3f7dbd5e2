"""API keys: only the hash is kept, and only the whole key is taken."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.serve.auth.credentials import BadCredential, Keyring, StoredKey, new_key
from frazil.serve.auth.roles import Principal

APP = Principal("service_account", "app")
KEY = new_key("app-1", random=bytes(range(32)))
RING = Keyring([StoredKey("app-1", KEY.digest, APP, 1000.0)])


def test_a_key_is_its_holders():
    """The whole key gives the principal and the end."""
    assert RING.verify(KEY.text, now_s=1.0) == (APP, 1000.0)


def test_only_the_hash_is_kept():
    """What is stored is SHA-256 of the key, and neither it nor the key is printed."""
    assert KEY.digest == hashlib.sha256(KEY.text.encode()).hexdigest()
    secret = KEY.text.rpartition("_")[2]
    stored = StoredKey("app-1", KEY.digest, APP)
    for shown in (repr(stored), repr(RING), str(vars(RING))):
        assert secret not in shown
        assert KEY.digest not in shown


def test_a_key_ends():
    """At its end it is refused."""
    assert RING.verify(KEY.text, now_s=999.9)
    with pytest.raises(BadCredential, match="expired"):
        RING.verify(KEY.text, now_s=1000.0)


def test_the_hash_itself_is_no_key():
    """The stored hash is no credential."""
    for text in (KEY.digest, f"frazil_app-1_{KEY.digest}"):
        with pytest.raises(BadCredential):
            RING.verify(text, now_s=1.0)


def test_a_key_under_another_id_is_refused():
    """The id is a part of what is hashed."""
    secret = KEY.text.rpartition("_")[2]
    ring = Keyring([StoredKey("app-2", KEY.digest, APP)])
    with pytest.raises(BadCredential, match="unknown"):
        ring.verify(f"frazil_app-2_{secret}", now_s=1.0)
    with pytest.raises(BadCredential, match="unknown"):
        ring.verify(KEY.text, now_s=1.0)


@given(st.integers(0, 200), st.sampled_from("0123456789abcdef"))
def test_one_wrong_digit_is_refused(position, digit):
    """Any other digit at any place makes another key."""
    start = len("frazil_app-1_")
    at = start + position % 64
    text = KEY.text[:at] + digit + KEY.text[at + 1 :]
    if text == KEY.text:
        return
    with pytest.raises(BadCredential):
        RING.verify(text, now_s=1.0)


@given(st.text(max_size=120))
def test_junk_is_refused(text):
    """What is no key is refused without an error of another kind."""
    for each in (text, f"frazil_{text}", f"{KEY.text}{text or ' '}"):
        with pytest.raises(BadCredential):
            RING.verify(each, now_s=1.0)
