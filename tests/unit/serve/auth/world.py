"""What the guard's tests share: a caller, owners of ids, and a guard with a few principals."""

from __future__ import annotations

import json
from functools import partial

import attrs
import jwt

from frazil.serve.auth.access_file import parse_access
from frazil.serve.auth.credentials import Authenticator, TokenRules, new_key
from frazil.serve.auth.guard import Credentials, Guard, RateLimiter
from frazil.serve.danube.rpcs import needs_of
from tests.support import SimulatedClock

SECRET = "a-secret-of-tokens-that-nobody-may-see-0001"
ISSUER = "frazil-tests"
KEY = new_key("app-key", random=bytes(range(100, 132)))
PRODUCER_ID, CONSUMER_ID, EARLIER_ID = 11, 22, 33
ACCESS = f"""
roles:
  writer: [{{actions: [produce], namespace: default, topics: [orders], subjects: [orders]}}]
  reader: [{{actions: [consume], namespace: default, topics: [orders]}}]
  admin: [{{actions: [admin], namespace: "*", topics: ["*"], subjects: ["*"]}}]
  elsewhere: [{{actions: [produce, consume, admin], namespace: other, topics: ["*"]}}]
principals:
  user:writer: [writer]
  user:reader: [reader]
  user:admin: [admin]
  user:elsewhere: [elsewhere]
  user:nothing: []
  service_account:app: [writer]
keys:
  app-key: {{sha256: {KEY.digest}, principal: "service_account:app"}}
"""


@attrs.define
class FakeCall:
    """What the guard sees of a call."""

    path: str
    message: bytes = b""
    metadata: dict[str, str] = attrs.Factory(dict)
    peer: str = "192.0.2.7:4711"


class KnownIds:
    """The services of a broker with two producers, one of an earlier life, and a consumer."""

    def __init__(self):
        self.producers = self.consumers = self

    def producer_topic(self, producer_id):
        return "/default/orders" if producer_id == PRODUCER_ID else None

    def recognise(self, producer_id, *, topic, producer):
        known = (EARLIER_ID, "/default/orders", "earlier")
        return topic if (producer_id, topic, producer) == known else None

    def consumer_topic(self, consumer_id):
        return "/default/orders" if consumer_id == CONSUMER_ID else None


NEEDS = partial(needs_of, services=KnownIds())


def token(name, clock, *, kind="user", lives_s=3600, secret=SECRET, issuer=ISSUER):
    """Return a bearer header."""
    claims = {
        "iss": issuer,
        "sub": name,
        "exp": clock.now_us() / 1e6 + lives_s,
        "principal_type": kind,
        "principal_name": name,
    }
    return "Bearer " + jwt.PyJWS().encode(json.dumps(claims).encode(), secret.encode(), "HS256")


def credentials(access=ACCESS):
    """Return who is known and what is granted to them."""
    roles, keys = parse_access(access)
    rules = TokenRules((SECRET.encode(),), ISSUER, skew_s=0.0)
    return Credentials(Authenticator(rules, keys), roles)


def make_guard(*, enabled=True, rate_s=1_000_000, clients_max=100, clock=None):
    """Return a guard and its clock, which stands still unless it is advanced."""
    clock = clock or SimulatedClock(step_us=0)
    limiter = RateLimiter(rate_s=rate_s, clients_max=clients_max)
    guard = Guard(
        credentials() if enabled else None,
        needs=NEEDS,
        limiter=limiter,
        clock=clock,
    )
    return guard, clock
