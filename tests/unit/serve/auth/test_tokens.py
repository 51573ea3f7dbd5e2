"""Tokens: only what our issuer signed with HS256 is taken, and only in its time."""

from __future__ import annotations

import base64
import json

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.serve.auth.credentials import BadCredential, TokenRules, verify_token
from frazil.serve.auth.roles import Principal

SECRET = b"0123456789abcdef0123456789abcdef"
OTHER = b"fedcba9876543210fedcba9876543210"
NOW = 1_800_000_000.0
RULES = TokenRules((SECRET,), "frazil-tests", skew_s=30.0)
CLAIMS = {
    "iss": "frazil-tests",
    "sub": "orders-app",
    "exp": NOW + 100,
    "principal_type": "service_account",
    "principal_name": "orders-app",
}


def token(*, secret=SECRET, algorithm="HS256", without=(), headers=None, **claims):
    """Sign the usual claims, with some changed or left out."""
    kept = {name: value for name, value in {**CLAIMS, **claims}.items() if name not in without}
    # The library's own encoder of claims refuses some of those that a forger would try.
    return jwt.PyJWS().encode(json.dumps(kept).encode(), secret, algorithm, headers)


def unsigned(header, claims=CLAIMS, signature=b""):
    """Put a token together by hand."""
    parts = [json.dumps(header).encode(), json.dumps(claims).encode(), signature]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def verify(text, rules=RULES, now_s=NOW):
    return verify_token(text, rules, now_s=now_s)


def test_a_good_token_names_its_principal_and_its_end():
    """Kind and name are the claims'; the end is that of the token and the skew."""
    found = verify(token())
    assert found.principal == Principal("service_account", "orders-app")
    assert found.expires_s == NOW + 130


def test_the_subject_stands_in_for_a_name():
    """Without the protocol's own claims a token is of the user it is about."""
    text = token(without=("principal_type", "principal_name"))
    assert verify(text).principal == Principal("user", "orders-app")


@pytest.mark.parametrize("name", ["exp", "iss", "sub"])
def test_a_token_without_a_required_claim_is_refused(name):
    """End, issuer and subject must be there."""
    with pytest.raises(BadCredential):
        verify(token(without=(name,)))


@pytest.mark.parametrize("header", [{"alg": "none"}, {"alg": "None", "typ": "JWT"}, {"alg": ""}])
def test_an_unsigned_token_is_refused(header):
    """The algorithm `none`, in any writing, signs nothing."""
    with pytest.raises(BadCredential):
        verify(unsigned(header))


@pytest.mark.parametrize("algorithm", ["HS384", "HS512"])
def test_another_algorithm_is_refused_even_with_our_secret(algorithm):
    """HS256 is the only one, whatever the header of the token asks for."""
    secret = SECRET * 2
    rules = TokenRules((secret,), "frazil-tests")
    assert verify(token(secret=secret), rules)
    with pytest.raises(BadCredential):
        verify(token(secret=secret, algorithm=algorithm), rules)


def test_a_header_that_says_another_algorithm_than_the_signature_is_refused():
    """Changing the header breaks the token, with the same signature behind it."""
    _, claims, signature = token().split(".")
    for name in ("none", "HS512", "RS256", "ES256"):
        head = base64.urlsafe_b64encode(json.dumps({"alg": name}).encode()).rstrip(b"=").decode()
        with pytest.raises(BadCredential):
            verify(f"{head}.{claims}.{signature}")


def test_another_secret_is_refused_and_any_of_ours_is_taken():
    """While secrets are changed the old and the new one sign."""
    with pytest.raises(BadCredential, match="not signed"):
        verify(token(secret=OTHER))
    both = TokenRules((SECRET, OTHER), "frazil-tests")
    assert verify(token(secret=OTHER), both) == verify(token(secret=SECRET), both)


def test_a_token_of_another_issuer_is_refused():
    """The issuer is checked."""
    with pytest.raises(BadCredential):
        verify(token(iss="somebody"))
    with pytest.raises(BadCredential):
        verify(token(iss=["frazil-tests"]))


def test_the_audience_is_checked_where_one_is_set():
    """Tokens for others, or for nobody, are refused then; without one set it is not looked at."""
    rules = TokenRules((SECRET,), "frazil-tests", "broker-1")
    assert verify(token(aud="broker-1"), rules)
    assert verify(token(aud=["x", "broker-1"]), rules)
    for claims in ({}, {"aud": "broker-2"}, {"aud": 7}):
        with pytest.raises(BadCredential):
            verify(token(**claims), rules)
    assert verify(token(aud="broker-2"))


def test_a_token_ends():
    """It is good until its end and the skew, not one moment longer."""
    text = token()
    assert verify(text, now_s=NOW + 129.9)
    with pytest.raises(BadCredential, match="expired"):
        verify(text, now_s=NOW + 130)


@pytest.mark.parametrize("name", ["nbf", "iat"])
def test_a_token_of_the_future_is_refused(name):
    """Not before its time, give or take the skew."""
    assert verify(token(**{name: NOW + 29}))
    with pytest.raises(BadCredential, match="not valid yet"):
        verify(token(**{name: NOW + 31}))


@pytest.mark.parametrize(
    "value",
    ["soon", None, True, [NOW], 1e300, -1, float("inf"), float("nan"), 10**400, -(10**400), {}],
)
def test_an_end_that_is_no_time_is_refused(value):
    """Neither a text nor a switch nor a number without end is an end."""
    with pytest.raises(BadCredential):
        verify(token(exp=value))


@pytest.mark.parametrize(
    "claims",
    [
        {"principal_type": "admin"},
        {"principal_type": 3},
        {"principal_type": ["user"]},
        {"principal_name": ""},
        {"principal_name": 5},
        {"principal_name": "a\nb"},
        {"principal_name": "x" * 256},
        {"sub": 5},
    ],
)
def test_a_token_of_nobody_is_refused(claims):
    """The kind is one of the protocol's, the name a printable text of sensible length."""
    with pytest.raises(BadCredential):
        verify(token(**claims))


def test_an_unknown_critical_header_is_refused():
    """What a token calls critical and we do not know is not passed over."""
    with pytest.raises(BadCredential):
        verify(token(headers={"crit": ["frobnicate"], "frobnicate": 1}))


@given(st.text(max_size=200) | st.from_regex(r"[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*\.[A-Za-z0-9_-]*"))
def test_junk_is_refused_and_nothing_else(text):
    """Whatever the text is, the answer is a refusal that does not quote it."""
    with pytest.raises(BadCredential) as caught:
        verify(text)
    assert len(text) < 8 or text not in str(caught.value)


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_no_changed_token_is_taken(position, mask):
    """A token with one byte changed is refused, or says the very same."""
    good = token()
    data = bytearray(good.encode())
    data[position % len(data)] ^= mask
    try:
        changed = data.decode("ascii")
    except UnicodeDecodeError:
        return
    try:
        found = verify(changed)
    except BadCredential:
        return
    # The last digit of base64 has bits that mean nothing.
    assert found == verify(good)
    assert changed[:-1] == good[:-1]


def test_a_short_secret_is_a_bug():
    """The loader refuses secrets below 32 bytes; the rules never see one."""
    with pytest.raises(AssertionError):
        TokenRules((b"short",), "frazil-tests")


def test_the_secret_is_not_shown():
    """A printed rule has no secret."""
    assert "0123456789abcdef" not in repr(RULES)
