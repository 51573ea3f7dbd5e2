"""Types of the messages in danube_admin.proto; written by scripts/proto.py."""

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

class _DispatchStrategy(_Enum):
    NonReliable: int
    Reliable: int

DispatchStrategy: Final[_DispatchStrategy]
NonReliable: Final[int]
Reliable: Final[int]

class _BackoffStrategy(_Enum):
    Fixed: int
    Exponential: int

BackoffStrategy: Final[_BackoffStrategy]
Fixed: Final[int]
Exponential: Final[int]

class _PoisonPolicy(_Enum):
    DeadLetter: int
    Block: int
    Drop: int

PoisonPolicy: Final[_PoisonPolicy]
DeadLetter: Final[int]
Block: Final[int]
Drop: Final[int]

class Empty(_Message):
    def __init__(self) -> None: ...

class BrokerInfo(_Message):
    broker_id: str
    broker_addr: str
    broker_role: str
    admin_addr: str
    metrics_addr: str
    broker_status: str
    def __init__(self, *, broker_id: str | None = ..., broker_addr: str | None = ..., broker_role: str | None = ..., admin_addr: str | None = ..., metrics_addr: str | None = ..., broker_status: str | None = ...) -> None: ...

class ListBrokersResponse(_Message):
    @property
    def brokers(self) -> MutableSequence[BrokerInfo]: ...
    def __init__(self, *, brokers: Iterable[BrokerInfo] | None = ...) -> None: ...

class GetLeaderBrokerResponse(_Message):
    leader: str
    def __init__(self, *, leader: str | None = ...) -> None: ...

class ListNamespacesResponse(_Message):
    @property
    def namespaces(self) -> MutableSequence[str]: ...
    def __init__(self, *, namespaces: Iterable[str] | None = ...) -> None: ...

class NamespaceRequest(_Message):
    name: str
    def __init__(self, *, name: str | None = ...) -> None: ...

class NamespaceResponse(_Message):
    success: bool
    def __init__(self, *, success: bool | None = ...) -> None: ...

class GetNamespaceTopicsResponse(_Message):
    @property
    def topics(self) -> MutableSequence[str]: ...
    def __init__(self, *, topics: Iterable[str] | None = ...) -> None: ...

class GetNamespacePoliciesResponse(_Message):
    policies: str
    def __init__(self, *, policies: str | None = ...) -> None: ...

class NewTopicRequest(_Message):
    name: str
    schema_subject: str
    dispatch_strategy: int
    def __init__(self, *, name: str | None = ..., schema_subject: str | None = ..., dispatch_strategy: int | None = ...) -> None: ...
    def HasField(self, name: Literal["schema_subject"], /) -> bool: ...
    def ClearField(self, name: Literal["schema_subject"], /) -> None: ...

class PartitionedTopicRequest(_Message):
    base_name: str
    partitions: int
    schema_subject: str
    dispatch_strategy: int
    def __init__(self, *, base_name: str | None = ..., partitions: int | None = ..., schema_subject: str | None = ..., dispatch_strategy: int | None = ...) -> None: ...
    def HasField(self, name: Literal["schema_subject"], /) -> bool: ...
    def ClearField(self, name: Literal["schema_subject"], /) -> None: ...

class TopicRequest(_Message):
    name: str
    def __init__(self, *, name: str | None = ...) -> None: ...

class TopicResponse(_Message):
    success: bool
    def __init__(self, *, success: bool | None = ...) -> None: ...

class DescribeTopicRequest(_Message):
    name: str
    def __init__(self, *, name: str | None = ...) -> None: ...

class DescribeTopicResponse(_Message):
    name: str
    @property
    def subscriptions(self) -> MutableSequence[str]: ...
    broker_id: str
    delivery: str
    schema_subject: str
    schema_id: int
    schema_version: int
    schema_type: str
    compatibility_mode: str
    def __init__(self, *, name: str | None = ..., subscriptions: Iterable[str] | None = ..., broker_id: str | None = ..., delivery: str | None = ..., schema_subject: str | None = ..., schema_id: int | None = ..., schema_version: int | None = ..., schema_type: str | None = ..., compatibility_mode: str | None = ...) -> None: ...
    def HasField(self, name: Literal["schema_subject", "schema_id", "schema_version", "schema_type", "compatibility_mode"], /) -> bool: ...
    def ClearField(self, name: Literal["schema_subject", "schema_id", "schema_version", "schema_type", "compatibility_mode"], /) -> None: ...

class BrokerRequest(_Message):
    broker_id: str
    def __init__(self, *, broker_id: str | None = ...) -> None: ...

class TopicInfo(_Message):
    name: str
    broker_id: str
    delivery: str
    def __init__(self, *, name: str | None = ..., broker_id: str | None = ..., delivery: str | None = ...) -> None: ...

class TopicInfoListResponse(_Message):
    @property
    def topics(self) -> MutableSequence[TopicInfo]: ...
    def __init__(self, *, topics: Iterable[TopicInfo] | None = ...) -> None: ...

class SubscriptionListResponse(_Message):
    @property
    def subscriptions(self) -> MutableSequence[str]: ...
    def __init__(self, *, subscriptions: Iterable[str] | None = ...) -> None: ...

class SubscriptionRequest(_Message):
    topic: str
    subscription: str
    def __init__(self, *, topic: str | None = ..., subscription: str | None = ...) -> None: ...

class SubscriptionResponse(_Message):
    success: bool
    def __init__(self, *, success: bool | None = ...) -> None: ...

class SubscriptionFailurePolicy(_Message):
    max_redelivery_count: int
    ack_timeout_ms: int
    base_redelivery_delay_ms: int
    max_redelivery_delay_ms: int
    backoff_strategy: int
    dead_letter_topic: str
    poison_policy: int
    def __init__(self, *, max_redelivery_count: int | None = ..., ack_timeout_ms: int | None = ..., base_redelivery_delay_ms: int | None = ..., max_redelivery_delay_ms: int | None = ..., backoff_strategy: int | None = ..., dead_letter_topic: str | None = ..., poison_policy: int | None = ...) -> None: ...
    def HasField(self, name: Literal["dead_letter_topic"], /) -> bool: ...
    def ClearField(self, name: Literal["dead_letter_topic"], /) -> None: ...

class SetSubscriptionFailurePolicyRequest(_Message):
    topic: str
    subscription: str
    @property
    def failure_policy(self) -> SubscriptionFailurePolicy: ...
    def __init__(self, *, topic: str | None = ..., subscription: str | None = ..., failure_policy: SubscriptionFailurePolicy | None = ...) -> None: ...
    def HasField(self, name: Literal["failure_policy"], /) -> bool: ...
    def ClearField(self, name: Literal["failure_policy"], /) -> None: ...

class GetSubscriptionFailurePolicyRequest(_Message):
    topic: str
    subscription: str
    def __init__(self, *, topic: str | None = ..., subscription: str | None = ...) -> None: ...

class GetSubscriptionFailurePolicyResponse(_Message):
    @property
    def failure_policy(self) -> SubscriptionFailurePolicy: ...
    subscription_type: int
    def __init__(self, *, failure_policy: SubscriptionFailurePolicy | None = ..., subscription_type: int | None = ...) -> None: ...
    def HasField(self, name: Literal["failure_policy"], /) -> bool: ...
    def ClearField(self, name: Literal["failure_policy"], /) -> None: ...

class SubscriptionDispatchConfig(_Message):
    max_unacked_messages: int
    def __init__(self, *, max_unacked_messages: int | None = ...) -> None: ...

class SetSubscriptionDispatchConfigRequest(_Message):
    topic: str
    subscription: str
    @property
    def dispatch_config(self) -> SubscriptionDispatchConfig: ...
    def __init__(self, *, topic: str | None = ..., subscription: str | None = ..., dispatch_config: SubscriptionDispatchConfig | None = ...) -> None: ...
    def HasField(self, name: Literal["dispatch_config"], /) -> bool: ...
    def ClearField(self, name: Literal["dispatch_config"], /) -> None: ...

class GetSubscriptionDispatchConfigRequest(_Message):
    topic: str
    subscription: str
    def __init__(self, *, topic: str | None = ..., subscription: str | None = ...) -> None: ...

class GetSubscriptionDispatchConfigResponse(_Message):
    @property
    def dispatch_config(self) -> SubscriptionDispatchConfig: ...
    def __init__(self, *, dispatch_config: SubscriptionDispatchConfig | None = ...) -> None: ...
    def HasField(self, name: Literal["dispatch_config"], /) -> bool: ...
    def ClearField(self, name: Literal["dispatch_config"], /) -> None: ...
