"""The guard: who is refused with which status, and that every call of the protocol is judged."""

from __future__ import annotations

import random

import pytest

from frazil.serve.auth.guard import client_of
from frazil.serve.auth.roles import ANONYMOUS, Principal
from frazil.serve.danube.proto import danube_admin_pb2 as admin
from frazil.serve.danube.proto import danube_pb2 as data
from frazil.serve.danube.proto import danube_schema_pb2 as schema
from frazil.serve.danube.rpcs import RPCS
from frazil.serve.grpc.codec import Code
from tests.support import rpcs
from tests.unit.serve.auth.world import (
    CONSUMER_ID,
    EARLIER_ID,
    KEY,
    PRODUCER_ID,
    FakeCall,
    credentials,
    make_guard,
    token,
)

TOPIC = "/default/orders"
SEND = "/danube.ProducerService/SendMessage"
CREATE = "/danube.ProducerService/CreateProducer"
ACK = "/danube.ConsumerService/Ack"
RECEIVE = "/danube.ConsumerService/ReceiveMessages"
REGISTER = "/danube_schema.SchemaRegistry/RegisterSchema"
CREATE_NAMESPACE = "/danube_admin.NamespaceAdmin/CreateNamespace"
SET_POLICY = "/danube_admin.TopicAdmin/SetSubscriptionFailurePolicy"


def send(producer_id=PRODUCER_ID, topic=TOPIC):
    msg_id = data.MsgID(producer_id=producer_id, topic_name=topic)
    return data.StreamMessage(msg_id=msg_id, payload=b"x").SerializeToString()


def ask(guard, path, message, header=None, **more):
    """Ask the guard about one call."""
    metadata = {} if header is None else {"authorization": header}
    return guard(FakeCall(path, message, {**metadata, **more}))


def request_for(path, *, topic=TOPIC):
    """Build a good request of a call that names the topic (or its namespace, subject or ids)."""
    rpc = RPCS[path]
    request = rpc.request()
    for target in rpc.targets:
        value = {
            "topic": topic,
            "topic_if_set": topic,
            "namespace": topic.split("/")[1],
            "subject": topic.rpartition("/")[2],
            "producer": PRODUCER_ID,
            "consumer": CONSUMER_ID,
            "client": PRODUCER_ID,
        }.get(target.scope)
        if value is not None:
            *inside, name = target.field.split(".")
            node = request
            for each in inside:
                node = getattr(node, each)
            setattr(node, name, value)
    return request.SerializeToString()


@pytest.fixture
def made():
    """Return a guard with authentication, and its clock."""
    return make_guard()


@pytest.fixture
def guard(made):
    return made[0]


@pytest.fixture
def clock(made):
    return made[1]


# -- every call ----------------------------------------------------------------------------------


def test_the_table_has_every_call_of_the_protocol_and_no_other():
    """The paths and request types are exactly those of the services that are served."""
    served = {path: rpc.request for path, rpc in rpcs.RPCS.items()}
    assert {path: rpc.request for path, rpc in RPCS.items()} == served
    assert len(served) == 41


def allowed_to(name):
    """Return the paths that a principal may call for /default/orders."""
    guard, clock = make_guard()
    header = token(name, clock)
    return {path for path in RPCS if ask(guard, path, request_for(path), header) is None}


READING_SCHEMAS = {
    f"/danube_schema.SchemaRegistry/{name}"
    for name in (
        *("GetSchema", "GetLatestSchema", "ListVersions", "CheckCompatibility", "ListSubjects"),
    )
}
ANYBODY = READING_SCHEMAS | {
    "/danube.Discovery/TopicLookup",
    "/danube.Discovery/TopicPartitions",
    "/danube.HealthCheck/HealthCheck",
    "/danube_schema.SchemaRegistry/GetTopicSchemaConfig",
}


def test_each_role_opens_exactly_its_calls():
    """The whole table, by role: produce, consume and admin share only the lookups."""
    assert allowed_to("writer") == ANYBODY | {
        CREATE,
        SEND,
        "/danube_schema.SchemaRegistry/RegisterSchema",
    }
    assert allowed_to("reader") == ANYBODY | {
        "/danube.ConsumerService/Subscribe",
        RECEIVE,
        ACK,
        "/danube.ConsumerService/Nack",
        "/danube.StorageService/ListSegmentDescriptors",
    }
    # Setting a policy with a dead-letter topic also needs produce there.
    assert allowed_to("admin") == ANYBODY | {
        path for path in RPCS if path.startswith("/danube_admin.") and path != SET_POLICY
    } | {
        f"/danube_schema.SchemaRegistry/{name}"
        for name in (
            "DeleteSchemaVersion",
            "SetCompatibilityMode",
            "ConfigureTopicSchema",
            "UpdateTopicValidationPolicy",
        )
    }
    assert allowed_to("elsewhere") == READING_SCHEMAS
    assert allowed_to("nothing") == set()


def test_a_call_that_is_not_in_the_table_is_not_served(guard, clock):
    """An rpc that somebody adds without a line in the table stays shut, to admins too."""
    found = ask(guard, "/danube_admin.SecurityAdmin/DropAll", b"", token("admin", clock))
    assert found[0] is Code.UNIMPLEMENTED


# -- the resource is the request's own -----------------------------------------------------------


def test_a_send_is_judged_by_its_producer_and_not_by_the_name_beside_it(guard, clock):
    """Who may produce to one topic cannot use another's producer by writing its own topic."""
    assert ask(guard, SEND, send(), token("writer", clock)) is None
    assert ask(guard, SEND, send(topic="/other/x"), token("writer", clock)) is None
    code, text = ask(guard, SEND, send(topic="/other/x"), token("elsewhere", clock))
    assert code is Code.PERMISSION_DENIED
    assert "produce on topic /default/orders" in text


def test_unknown_ids_get_the_protocols_answer(guard, clock):
    """An id that does not exist is NOT_FOUND with the protocol's text, once the caller is known."""
    header = token("writer", clock)
    assert ask(guard, SEND, send(9), header) == (
        Code.NOT_FOUND,
        "The producer with id 9 does not exist",
    )
    assert ask(guard, SEND, send(9))[0] is Code.UNAUTHENTICATED


def test_an_unknown_consumer_hears_so_from_its_handler(guard, clock):
    """The handler takes its time to say so; who may consume nothing does not get that far."""
    message = data.ReceiveRequest(consumer_id=8).SerializeToString()
    assert ask(guard, RECEIVE, message, token("reader", clock)) is None
    for name in ("writer", "nothing"):
        found = ask(guard, RECEIVE, message, token(name, clock))
        assert found == (Code.PERMISSION_DENIED, "no binding grants consume on anything")
    assert ask(guard, RECEIVE, message)[0] is Code.UNAUTHENTICATED


def test_dead_letters_need_the_right_to_produce_them(guard, clock):
    """An admin cannot let the broker write where the admin may not."""
    policy = admin.SubscriptionFailurePolicy(dead_letter_topic="/default/dead")
    plain = admin.SetSubscriptionFailurePolicyRequest(topic=TOPIC, subscription="s")
    with_letters = admin.SetSubscriptionFailurePolicyRequest(
        topic=TOPIC, subscription="s", failure_policy=policy
    )
    header = token("admin", clock)
    assert ask(guard, SET_POLICY, plain.SerializeToString(), header) is None
    code, text = ask(guard, SET_POLICY, with_letters.SerializeToString(), header)
    assert code is Code.PERMISSION_DENIED
    assert "produce on topic /default/dead" in text


@pytest.mark.parametrize("name", ["", "orders", "/default", "/a/b/c", "/default/a.b"])
def test_a_malformed_name_is_an_invalid_argument(name, guard, clock):
    """It gets the protocol's text and never reaches the handler."""
    message = data.ProducerRequest(topic_name=name).SerializeToString()
    assert ask(guard, CREATE, message, token("admin", clock)) == (
        Code.INVALID_ARGUMENT,
        f"The topic: {name} has an invalid format, should be: /namespace_name/topic_name",
    )


@pytest.mark.parametrize("name", ["", "a b", "x" * 2_000_000, "a\n", "*"])
@pytest.mark.parametrize("who", ["admin", "writer", "nothing"])
def test_what_is_no_name_is_refused_before_the_roles_are_asked(who, name, guard, clock):
    """Subjects and namespaces, as topics: the text is short, and nothing of it is remembered."""
    for path, request in (
        (REGISTER, schema.RegisterSchemaRequest(subject=name)),
        (CREATE_NAMESPACE, admin.NamespaceRequest(name=name)),
    ):
        code, text = ask(guard, path, request.SerializeToString(), token(who, clock))
        assert code is Code.INVALID_ARGUMENT
        assert len(text) <= 1024
    assert not guard._credentials.roles._decided


def test_nothing_is_remembered_of_who_has_no_grant(guard, clock):
    """A token alone, good as it is, takes no room: what is denied is not kept."""
    header = token("nothing", clock)
    for number in range(100):
        request = schema.RegisterSchemaRequest(subject=f"s{number}")
        found = ask(guard, REGISTER, request.SerializeToString(), header)
        assert found[0] is Code.PERMISSION_DENIED
    assert not guard._credentials.roles._decided


@pytest.mark.parametrize("path", [SEND, ACK, CREATE])
def test_a_request_that_cannot_be_read_is_an_invalid_argument(path, guard, clock):
    """Neither garbage nor a missing msg_id is passed on."""
    for message in (b"\xff\xff\xff", b"\x0a\x05a", b""):
        found = ask(guard, path, message, token("writer", clock))
        assert found[0] is Code.INVALID_ARGUMENT


@pytest.mark.parametrize("path", sorted(RPCS))
def test_random_bytes_have_a_status_of_the_protocol(path, guard, clock):
    """Behind good credentials no request is a bug of the guard."""
    draw = random.Random(20_261_116)
    codes = {None, Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.PERMISSION_DENIED}
    for size in (1, 3, 17, 200):
        found = ask(guard, path, draw.randbytes(size), token("elsewhere", clock))
        assert (found and found[0]) in codes


def test_a_long_text_is_cut(guard, clock):
    """A refusal does not give a flood of text back."""
    message = data.ProducerRequest(topic_name="/default/" + "x" * 100_000).SerializeToString()
    assert len(ask(guard, CREATE, message, token("reader", clock))[1]) <= 512
    message = data.ProducerRequest(topic_name="x" * 100_000).SerializeToString()
    assert len(ask(guard, CREATE, message, token("reader", clock))[1]) <= 512


def test_two_writings_of_one_name_are_one_topic(guard, clock):
    """A name written with combining marks is judged as the engine will read it."""
    guard.replace(
        credentials(
            'roles: {r: [{actions: [produce], topics: ["caf\u00e9"]}]}\nprincipals: {"user:w": [r]}'
        )
    )
    for name in ("/default/caf\u00e9", "/default/cafe\u0301"):
        message = data.ProducerRequest(topic_name=name).SerializeToString()
        assert ask(guard, CREATE, message, token("w", clock)) is None
        assert ask(guard, CREATE, message, token("x", clock))[0] is Code.PERMISSION_DENIED


# -- time and change -----------------------------------------------------------------------------


def test_a_token_ends_although_it_is_remembered(guard, clock):
    """A token that was taken a moment ago is refused when its time is over; a stream notices."""
    call = FakeCall(SEND, send(), {"authorization": token("writer", clock, lives_s=10)})
    assert guard(call) is None
    clock.advance(9.0)
    assert guard(call) is None
    assert guard.check(call) is None
    clock.advance(1.0)
    assert guard.check(call) == (Code.UNAUTHENTICATED, "Invalid token")
    assert guard(call) == (Code.UNAUTHENTICATED, "Invalid token")


def test_replaced_credentials_count_at_once(guard):
    """A key that is taken out of the file is refused with the next call."""
    header = f"Bearer {KEY.text}"
    assert ask(guard, SEND, send(), header) is None
    guard.replace(credentials("roles: {}"))
    assert ask(guard, SEND, send(), header) == (Code.UNAUTHENTICATED, "Invalid token")


def test_the_caller_is_known_to_handlers(guard, clock):
    """`principal_of` returns the caller's principal."""
    call = FakeCall(SEND, send(), {"authorization": token("writer", clock)})
    assert guard.principal_of(call) == Principal("user", "writer")
    assert guard.principal_of(FakeCall(SEND)) is None
    assert make_guard(enabled=False)[0].principal_of(call) == ANONYMOUS


def test_a_caller_is_admitted_before_the_message_is_read(guard, clock):
    """`admit` counts and asks who it is, whatever is in the message; grants are `check`ed later."""
    call = FakeCall("/somewhere", b"\xff", {"authorization": token("nothing", clock)})
    assert guard.admit(call) is None
    assert guard.admit(FakeCall("/somewhere"))[0] is Code.UNAUTHENTICATED
    call.path, call.message = SEND, send()
    assert guard.check(call)[0] is Code.PERMISSION_DENIED
    limited = make_guard(rate_s=1)[0]
    header = {"authorization": token("writer", clock)}
    refusals = [limited.admit(FakeCall("/somewhere", b"", header)) for _ in range(50)]
    assert refusals[-1][0] is Code.RESOURCE_EXHAUSTED
    assert make_guard(enabled=False)[0].admit(FakeCall("/somewhere")) is None


def test_who_will_be_refused_is_known_before_the_message_is_here():
    """Strangers are counted and refused; the known are neither, they come again with all of it."""
    guard, clock = make_guard(rate_s=4)
    header = {"authorization": token("writer", clock)}
    assert guard(FakeCall(SEND, send(), header)) is None
    assert [guard.foresee(FakeCall(SEND, b"", header)) for _ in range(20)] == [None] * 20
    assert guard(FakeCall(SEND, send(), header)) is None
    fresh = {"authorization": token("reader", clock)}
    assert guard.foresee(FakeCall(SEND, b"", fresh)) is None
    guess = {"authorization": "Bearer guess"}
    codes = [guard.foresee(FakeCall(SEND, b"", guess))[0] for _ in range(10)]
    assert codes[0] is Code.UNAUTHENTICATED
    assert codes[-1] is Code.RESOURCE_EXHAUSTED
    assert guard.foresee(FakeCall(SEND, b"", header)) is None
    ended = {"authorization": token("writer", clock, lives_s=-1)}
    assert guard.foresee(FakeCall(SEND, b"", ended)) is not None
    assert make_guard(enabled=False)[0].foresee(FakeCall(SEND)) is None


# -- without authentication, and rates -----------------------------------------------------------


@pytest.mark.parametrize("path", sorted(RPCS))
def test_without_authentication_everybody_may_do_everything(path):
    """Until it is switched on no call is refused, with or without a header."""
    guard, _ = make_guard(enabled=False)
    assert not guard.enabled
    assert ask(guard, path, b"\xff") is None
    assert ask(guard, path, b"", "Bearer nonsense") is None


def test_a_client_is_held_to_its_rate():
    """The call beyond is RESOURCE_EXHAUSTED, which clients retry; another address goes on."""
    guard, clock = make_guard(enabled=False, rate_s=3)
    call = FakeCall(SEND)
    assert [guard(call) for _ in range(3)] == [None] * 3
    assert guard(call)[0] is Code.RESOURCE_EXHAUSTED
    assert guard(FakeCall(SEND, peer="192.0.2.8:1")) is None
    clock.advance(0.5)
    assert guard(call) is None
    assert guard.stats() == {"unauthenticated": 0, "denied": 0, "limited": 1, "clients": 2}


def test_calls_together_are_free_only_without_authentication():
    """Without it they are held to the rate of their address; with it each is looked at."""
    guard, _ = make_guard(enabled=False, rate_s=10)
    assert guard.free_calls("10.0.0.1:1", 8) == 8
    assert guard.free_calls("10.0.0.1:2", 8) == 2
    assert guard.free_calls("10.0.0.2:1", 8) == 8
    guarded, _ = make_guard(rate_s=10)
    assert guarded.free_calls("10.0.0.1:1", 8) == 0


def test_principals_behind_one_address_have_rates_of_their_own():
    """Known callers count by name; a guess counts for the address, and is slowed there."""
    guard, clock = make_guard(rate_s=4)
    writer, reader = (token(name, clock) for name in ("writer", "reader"))
    assert ask(guard, SEND, send(), writer) is None
    assert ask(guard, SEND, send(), reader)[0] is Code.PERMISSION_DENIED
    codes = [ask(guard, SEND, send(), "Bearer guess")[0] for _ in range(10)]
    assert codes.count(Code.UNAUTHENTICATED) <= 4
    assert codes[-1] is Code.RESOURCE_EXHAUSTED
    assert ask(guard, SEND, send(), writer) is None


@pytest.mark.parametrize(
    ("peer", "client"),
    [
        ("192.0.2.7:4711", "192.0.2.7"),
        ("192.0.2.7", "192.0.2.7"),
        ("[2001:db8:1:2:3:4:5:6]:80", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("[::ffff:192.0.2.7]:80", "192.0.2.7"),
        ("[fe80::1%eth0]:80", "fe80::/64"),
        ("local", "local"),
        ("", ""),
    ],
)
def test_clients_are_addresses_without_ports(peer, client):
    """A host of IPv6 is its network: it can take any number of addresses in it."""
    assert client_of(peer) == client


def test_a_producer_of_an_earlier_life_is_judged_by_its_own_topic(guard, clock):
    """The id proves the topic beside it; with another name or topic it is nobody's."""

    def sent(name="earlier", topic=TOPIC):
        msg_id = data.MsgID(producer_id=EARLIER_ID, topic_name=topic)
        message = data.StreamMessage(msg_id=msg_id, payload=b"x", producer_name=name)
        return message.SerializeToString()

    assert ask(guard, SEND, sent(), token("writer", clock)) is None
    assert ask(guard, SEND, sent(), token("elsewhere", clock))[0] is Code.PERMISSION_DENIED
    for other in (sent(name="later"), sent(topic="/other/orders")):
        assert ask(guard, SEND, other, token("elsewhere", clock))[0] is Code.NOT_FOUND
