"""Types of the messages in danube.proto; written by scripts/proto.py."""

from collections.abc import Iterable, Mapping, MutableMapping, MutableSequence
from typing import ClassVar, Final, Literal, Self

class _Message:
    @classmethod
    def FromString(cls, data: bytes | memoryview, /) -> Self: ...
    def SerializeToString(self) -> bytes: ...
    def ByteSize(self) -> int: ...
    def CopyFrom(self, other: Self, /) -> None: ...

class _Enum:
    def Name(self, number: int, /) -> str: ...
    def Value(self, name: str, /) -> int: ...
    def keys(self) -> list[str]: ...
    def values(self) -> list[int]: ...

class _ProducerAccessMode(_Enum):
    Shared: int
    Exclusive: int

ProducerAccessMode: Final[_ProducerAccessMode]
Shared: Final[int]
Exclusive: Final[int]

class _DispatchStrategy(_Enum):
    NonReliable: int
    Reliable: int

DispatchStrategy: Final[_DispatchStrategy]
NonReliable: Final[int]
Reliable: Final[int]

class ProducerRequest(_Message):
    request_id: int
    producer_name: str
    topic_name: str
    @property
    def schema_ref(self) -> SchemaReference: ...
    producer_access_mode: int
    dispatch_strategy: int
    def __init__(self, *, request_id: int | None = ..., producer_name: str | None = ..., topic_name: str | None = ..., schema_ref: SchemaReference | None = ..., producer_access_mode: int | None = ..., dispatch_strategy: int | None = ...) -> None: ...
    def HasField(self, name: Literal["schema_ref"], /) -> bool: ...
    def ClearField(self, name: Literal["schema_ref"], /) -> None: ...

class SchemaReference(_Message):
    subject: str
    use_latest: bool
    pinned_version: int
    min_version: int
    def __init__(self, *, subject: str | None = ..., use_latest: bool | None = ..., pinned_version: int | None = ..., min_version: int | None = ...) -> None: ...
    def HasField(self, name: Literal["use_latest", "pinned_version", "min_version"], /) -> bool: ...
    def ClearField(self, name: Literal["use_latest", "pinned_version", "min_version"], /) -> None: ...
    def WhichOneof(self, name: Literal["version_ref"], /) -> Literal["use_latest", "pinned_version", "min_version"] | None: ...

class ProducerResponse(_Message):
    request_id: int
    producer_id: int
    producer_name: str
    def __init__(self, *, request_id: int | None = ..., producer_id: int | None = ..., producer_name: str | None = ...) -> None: ...

class MessageResponse(_Message):
    request_id: int
    def __init__(self, *, request_id: int | None = ...) -> None: ...

class ConsumerRequest(_Message):
    class _SubscriptionType(_Enum):
        Exclusive: int
        Shared: int
        Failover: int
        KeyShared: int
    SubscriptionType: ClassVar[_SubscriptionType]
    Exclusive: ClassVar[int]
    Shared: ClassVar[int]
    Failover: ClassVar[int]
    KeyShared: ClassVar[int]
    request_id: int
    topic_name: str
    consumer_name: str
    subscription: str
    subscription_type: int
    @property
    def key_filters(self) -> MutableSequence[str]: ...
    def __init__(self, *, request_id: int | None = ..., topic_name: str | None = ..., consumer_name: str | None = ..., subscription: str | None = ..., subscription_type: int | None = ..., key_filters: Iterable[str] | None = ...) -> None: ...

class ConsumerResponse(_Message):
    request_id: int
    consumer_id: int
    consumer_name: str
    def __init__(self, *, request_id: int | None = ..., consumer_id: int | None = ..., consumer_name: str | None = ...) -> None: ...

class ReceiveRequest(_Message):
    request_id: int
    consumer_id: int
    def __init__(self, *, request_id: int | None = ..., consumer_id: int | None = ...) -> None: ...

class StreamMessage(_Message):
    request_id: int
    @property
    def msg_id(self) -> MsgID: ...
    payload: bytes
    publish_time: int
    producer_name: str
    subscription_name: str
    @property
    def attributes(self) -> MutableMapping[str, str]: ...
    schema_id: int
    schema_version: int
    routing_key: str
    def __init__(self, *, request_id: int | None = ..., msg_id: MsgID | None = ..., payload: bytes | None = ..., publish_time: int | None = ..., producer_name: str | None = ..., subscription_name: str | None = ..., attributes: Mapping[str, str] | None = ..., schema_id: int | None = ..., schema_version: int | None = ..., routing_key: str | None = ...) -> None: ...
    def HasField(self, name: Literal["msg_id", "schema_id", "schema_version", "routing_key"], /) -> bool: ...
    def ClearField(self, name: Literal["msg_id", "schema_id", "schema_version", "routing_key"], /) -> None: ...

class MsgID(_Message):
    producer_id: int
    topic_name: str
    broker_addr: str
    topic_offset: int
    def __init__(self, *, producer_id: int | None = ..., topic_name: str | None = ..., broker_addr: str | None = ..., topic_offset: int | None = ...) -> None: ...

class AckRequest(_Message):
    request_id: int
    @property
    def msg_id(self) -> MsgID: ...
    subscription_name: str
    def __init__(self, *, request_id: int | None = ..., msg_id: MsgID | None = ..., subscription_name: str | None = ...) -> None: ...
    def HasField(self, name: Literal["msg_id"], /) -> bool: ...
    def ClearField(self, name: Literal["msg_id"], /) -> None: ...

class AckResponse(_Message):
    request_id: int
    def __init__(self, *, request_id: int | None = ...) -> None: ...

class NackRequest(_Message):
    request_id: int
    @property
    def msg_id(self) -> MsgID: ...
    subscription_name: str
    delay_ms: int
    reason: str
    def __init__(self, *, request_id: int | None = ..., msg_id: MsgID | None = ..., subscription_name: str | None = ..., delay_ms: int | None = ..., reason: str | None = ...) -> None: ...
    def HasField(self, name: Literal["msg_id", "delay_ms", "reason"], /) -> bool: ...
    def ClearField(self, name: Literal["msg_id", "delay_ms", "reason"], /) -> None: ...

class NackResponse(_Message):
    request_id: int
    def __init__(self, *, request_id: int | None = ...) -> None: ...

class TopicLookupRequest(_Message):
    request_id: int
    topic: str
    def __init__(self, *, request_id: int | None = ..., topic: str | None = ...) -> None: ...

class TopicLookupResponse(_Message):
    class _LookupType(_Enum):
        Redirect: int
        Connect: int
        Failed: int
    LookupType: ClassVar[_LookupType]
    Redirect: ClassVar[int]
    Connect: ClassVar[int]
    Failed: ClassVar[int]
    request_id: int
    response_type: int
    connect_url: str
    broker_url: str
    proxy: bool
    def __init__(self, *, request_id: int | None = ..., response_type: int | None = ..., connect_url: str | None = ..., broker_url: str | None = ..., proxy: bool | None = ...) -> None: ...

class TopicPartitionsResponse(_Message):
    request_id: int
    @property
    def partitions(self) -> MutableSequence[str]: ...
    def __init__(self, *, request_id: int | None = ..., partitions: Iterable[str] | None = ...) -> None: ...

class HealthCheckRequest(_Message):
    class _ClientType(_Enum):
        Producer: int
        Consumer: int
    ClientType: ClassVar[_ClientType]
    Producer: ClassVar[int]
    Consumer: ClassVar[int]
    request_id: int
    client: int
    id: int
    def __init__(self, *, request_id: int | None = ..., client: int | None = ..., id: int | None = ...) -> None: ...

class HealthCheckResponse(_Message):
    class _ClientStatus(_Enum):
        OK: int
        CLOSE: int
    ClientStatus: ClassVar[_ClientStatus]
    OK: ClassVar[int]
    CLOSE: ClassVar[int]
    status: int
    def __init__(self, *, status: int | None = ...) -> None: ...

class ListSegmentDescriptorsRequest(_Message):
    topic: str
    after_offset: int
    def __init__(self, *, topic: str | None = ..., after_offset: int | None = ...) -> None: ...

class ListSegmentDescriptorsResponse(_Message):
    @property
    def segments(self) -> MutableSequence[SegmentDescriptorProto]: ...
    def __init__(self, *, segments: Iterable[SegmentDescriptorProto] | None = ...) -> None: ...

class SegmentDescriptorProto(_Message):
    segment_id: str
    start_offset: int
    end_offset: int
    size: int
    etag: str
    created_at: int
    def __init__(self, *, segment_id: str | None = ..., start_offset: int | None = ..., end_offset: int | None = ..., size: int | None = ..., etag: str | None = ..., created_at: int | None = ...) -> None: ...
