"""Types of the messages in danube_schema.proto; written by scripts/proto.py."""

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

class RegisterSchemaRequest(_Message):
    subject: str
    schema_type: str
    schema_definition: bytes
    description: str
    created_by: str
    @property
    def tags(self) -> MutableSequence[str]: ...
    def __init__(self, *, subject: str | None = ..., schema_type: str | None = ..., schema_definition: bytes | None = ..., description: str | None = ..., created_by: str | None = ..., tags: Iterable[str] | None = ...) -> None: ...

class RegisterSchemaResponse(_Message):
    schema_id: int
    version: int
    is_new_version: bool
    fingerprint: str
    def __init__(self, *, schema_id: int | None = ..., version: int | None = ..., is_new_version: bool | None = ..., fingerprint: str | None = ...) -> None: ...

class GetSchemaRequest(_Message):
    schema_id: int
    version: int
    def __init__(self, *, schema_id: int | None = ..., version: int | None = ...) -> None: ...
    def HasField(self, name: Literal["version"], /) -> bool: ...
    def ClearField(self, name: Literal["version"], /) -> None: ...

class GetSchemaResponse(_Message):
    schema_id: int
    version: int
    subject: str
    schema_type: str
    schema_definition: bytes
    description: str
    created_at: int
    created_by: str
    @property
    def tags(self) -> MutableSequence[str]: ...
    fingerprint: str
    compatibility_mode: str
    def __init__(self, *, schema_id: int | None = ..., version: int | None = ..., subject: str | None = ..., schema_type: str | None = ..., schema_definition: bytes | None = ..., description: str | None = ..., created_at: int | None = ..., created_by: str | None = ..., tags: Iterable[str] | None = ..., fingerprint: str | None = ..., compatibility_mode: str | None = ...) -> None: ...

class GetLatestSchemaRequest(_Message):
    subject: str
    def __init__(self, *, subject: str | None = ...) -> None: ...

class ListVersionsRequest(_Message):
    subject: str
    def __init__(self, *, subject: str | None = ...) -> None: ...

class ListVersionsResponse(_Message):
    @property
    def versions(self) -> MutableSequence[SchemaVersionInfo]: ...
    def __init__(self, *, versions: Iterable[SchemaVersionInfo] | None = ...) -> None: ...

class SchemaVersionInfo(_Message):
    version: int
    created_at: int
    created_by: str
    description: str
    fingerprint: str
    schema_id: int
    def __init__(self, *, version: int | None = ..., created_at: int | None = ..., created_by: str | None = ..., description: str | None = ..., fingerprint: str | None = ..., schema_id: int | None = ...) -> None: ...

class CheckCompatibilityRequest(_Message):
    subject: str
    new_schema_definition: bytes
    schema_type: str
    compatibility_mode: str
    def __init__(self, *, subject: str | None = ..., new_schema_definition: bytes | None = ..., schema_type: str | None = ..., compatibility_mode: str | None = ...) -> None: ...
    def HasField(self, name: Literal["compatibility_mode"], /) -> bool: ...
    def ClearField(self, name: Literal["compatibility_mode"], /) -> None: ...

class CheckCompatibilityResponse(_Message):
    is_compatible: bool
    @property
    def errors(self) -> MutableSequence[str]: ...
    def __init__(self, *, is_compatible: bool | None = ..., errors: Iterable[str] | None = ...) -> None: ...

class DeleteSchemaVersionRequest(_Message):
    subject: str
    version: int
    def __init__(self, *, subject: str | None = ..., version: int | None = ...) -> None: ...

class DeleteSchemaVersionResponse(_Message):
    success: bool
    message: str
    def __init__(self, *, success: bool | None = ..., message: str | None = ...) -> None: ...

class SetCompatibilityModeRequest(_Message):
    subject: str
    compatibility_mode: str
    def __init__(self, *, subject: str | None = ..., compatibility_mode: str | None = ...) -> None: ...

class SetCompatibilityModeResponse(_Message):
    success: bool
    message: str
    def __init__(self, *, success: bool | None = ..., message: str | None = ...) -> None: ...

class ConfigureTopicSchemaRequest(_Message):
    topic_name: str
    schema_subject: str
    validation_policy: str
    enable_payload_validation: bool
    def __init__(self, *, topic_name: str | None = ..., schema_subject: str | None = ..., validation_policy: str | None = ..., enable_payload_validation: bool | None = ...) -> None: ...

class ConfigureTopicSchemaResponse(_Message):
    success: bool
    message: str
    def __init__(self, *, success: bool | None = ..., message: str | None = ...) -> None: ...

class UpdateTopicValidationPolicyRequest(_Message):
    topic_name: str
    validation_policy: str
    enable_payload_validation: bool
    def __init__(self, *, topic_name: str | None = ..., validation_policy: str | None = ..., enable_payload_validation: bool | None = ...) -> None: ...

class UpdateTopicValidationPolicyResponse(_Message):
    success: bool
    message: str
    def __init__(self, *, success: bool | None = ..., message: str | None = ...) -> None: ...

class GetTopicSchemaConfigRequest(_Message):
    topic_name: str
    def __init__(self, *, topic_name: str | None = ...) -> None: ...

class GetTopicSchemaConfigResponse(_Message):
    schema_subject: str
    validation_policy: str
    enable_payload_validation: bool
    schema_id: int
    def __init__(self, *, schema_subject: str | None = ..., validation_policy: str | None = ..., enable_payload_validation: bool | None = ..., schema_id: int | None = ...) -> None: ...

class ListSubjectsRequest(_Message):
    def __init__(self) -> None: ...

class ListSubjectsResponse(_Message):
    @property
    def subjects(self) -> MutableSequence[SubjectSummary]: ...
    def __init__(self, *, subjects: Iterable[SubjectSummary] | None = ...) -> None: ...

class SubjectSummary(_Message):
    subject: str
    schema_type: str
    latest_version: int
    compatibility_mode: str
    schema_id: int
    @property
    def tags(self) -> MutableSequence[str]: ...
    def __init__(self, *, subject: str | None = ..., schema_type: str | None = ..., latest_version: int | None = ..., compatibility_mode: str | None = ..., schema_id: int | None = ..., tags: Iterable[str] | None = ...) -> None: ...
