"""The values of settings: parsers, human units, and the facts about each setting.

Sizes and durations take human units (`frazil.units`). Texts from the environment or a flag have the
same parsers as values of a YAML file; nothing else is converted.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, Secret

from frazil.errors import InvalidRequest
from frazil.units import format_bytes, format_duration, parse_bytes, parse_duration_s

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

__all__ = [
    "DAY",
    "GIB",
    "HIDDEN",
    "HOUR",
    "KIB",
    "MIB",
    "MINUTE",
    "TIB",
    "Bytes",
    "BytesOrNone",
    "Count",
    "Ratio",
    "Seconds",
    "SecondsOrNone",
    "SecretText",
    "Section",
    "SettingInfo",
    "Switch",
    "Texts",
    "is_reference",
    "parse_mapping",
    "resolve",
    "setting",
    "setting_info",
    "show",
]

HIDDEN: Final = "********"
"""The displayed form of a secret, independent of its length."""

_REFERENCE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_REFERENCES_ALONE: Final = re.compile(r"(?:\$\{[A-Za-z_][A-Za-z0-9_]*\})+\Z")


class SecretText(Secret[str]):
    """A text displayed only if it consists of references; `resolve` returns its value."""

    def _display(self) -> str:
        return show(self.get_secret_value())

    def __bool__(self) -> bool:
        return bool(self.get_secret_value())


def show(secret: object) -> str:
    """Return the displayable form of a secret, or of a wrong value for one."""
    if isinstance(secret, str) and (not secret or is_reference(secret)):
        return secret
    return HIDDEN


def is_reference(text: str) -> bool:
    """Tell whether a text consists only of references to the environment."""
    return _REFERENCES_ALONE.match(text) is not None


def references(value: object) -> list[str]:
    """Return the names of the variables in a text or in the texts of a mapping."""
    texts = list(value.values()) if isinstance(value, Mapping) else [value]
    found = (name for text in texts if isinstance(text, str) for name in _REFERENCE.findall(text))
    return list(dict.fromkeys(found))


def resolve(
    value: str | SecretText, *, setting: str, environment: Mapping[str, str] | None = None
) -> str:
    """Return a setting's text with the values of its variables in place of references.

    Args:
        value: the setting's value in the tree.
        setting: its dotted path, for messages.
        environment: the variables; the process's own without it.

    Raises:
        InvalidRequest: if a variable is not set.
    """
    variables = os.environ if environment is None else environment
    text = value.get_secret_value() if isinstance(value, SecretText) else value

    def found(match: re.Match[str]) -> str:
        name = match[1]
        if name not in variables:
            raise InvalidRequest(
                "setting refers to a variable that is not set", setting=setting, variable=name
            )
        return variables[name]

    return _REFERENCE.sub(found, text)


KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
TIB: Final = 1 << 40
MINUTE: Final = 60.0
HOUR: Final = 3600.0
DAY: Final = 86400.0

_TRUE: Final = ("true", "yes", "on", "1")
_FALSE: Final = ("false", "no", "off", "0")

MAPPING_KEYS_MAX: Final = 1000

Kind = Literal[
    "size", "duration", "count", "ratio", "switch", "choice", "text", "mapping", "secret"
]


def _read_with(parse: Callable[[object], object]) -> BeforeValidator:
    def read(value: object) -> object:
        try:
            return parse(value)
        except InvalidRequest as error:
            raise ValueError(error.message) from error

    return BeforeValidator(read)


def _parse_count(value: object) -> int:
    if isinstance(value, str):
        text = value.strip().replace("_", "")
        if text.isascii() and text.isdigit() and len(text) <= 20:
            return int(text)
    elif isinstance(value, int) and not isinstance(value, bool):
        return value
    raise InvalidRequest("must be a whole number")


def _parse_ratio(value: object) -> float:
    try:
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            return float(value)
    except (ValueError, OverflowError):
        pass
    raise InvalidRequest("must be a number between 0 and 1")


def _parse_switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) else ""
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise InvalidRequest("must be true or false")


def parse_mapping(value: object) -> dict[str, str]:
    """Parse names with values: a mapping, or the JSON text of one. Values become texts.

    Raises:
        InvalidRequest: if it is neither.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise InvalidRequest('must be a mapping, in one text as {"name": "value"}') from error
    if not isinstance(value, Mapping) or len(value) > MAPPING_KEYS_MAX:
        raise InvalidRequest(f"must be a mapping with at most {MAPPING_KEYS_MAX} names")
    return {_mapping_text(name): _mapping_text(each) for name, each in value.items()}


def _mapping_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | float) or (isinstance(value, int) and value.bit_length() <= 128):
        return str(value)
    raise InvalidRequest("names and values of a mapping must be texts, numbers or switches")


def _or_none(parse: Callable[[object], object]) -> Callable[[object], object]:
    def read(value: object) -> object:
        is_none = value is None or (isinstance(value, str) and value.strip().lower() == "none")
        return None if is_none else parse(value)

    return read


Bytes = Annotated[int, _read_with(parse_bytes)]
Seconds = Annotated[float, _read_with(parse_duration_s)]
BytesOrNone = Annotated[int | None, _read_with(_or_none(parse_bytes))]
SecondsOrNone = Annotated[float | None, _read_with(_or_none(parse_duration_s))]
Count = Annotated[int, _read_with(_parse_count)]
Ratio = Annotated[float, _read_with(_parse_ratio)]
Switch = Annotated[bool, _read_with(_parse_switch)]
Texts = Annotated[dict[str, str], _read_with(parse_mapping)]


def setting(
    default: object, text: str, *, low: float | None = None, high: float | None = None
) -> Any:
    """Declare one setting; `text` is its sentence, `low` and `high` are allowed values."""
    limits: dict[str, Any] = {} if low is None else {"ge": low, "le": high}
    if isinstance(default, float):
        limits["allow_inf_nan"] = False
    return Field(default=default, description=text, **limits)


class Section(BaseModel):
    """The base of all sections: frozen, no unknown keys, no silent conversion."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True)


class SettingInfo(NamedTuple):
    """The facts about one setting."""

    path: str
    kind: Kind
    default: object
    minimum: float | None
    maximum: float | None
    choices: tuple[str, ...]
    description: str

    def shown(self, value: object) -> str:
        """Format a value of this setting with its unit, in a form that can be parsed again."""
        if self.kind == "secret":
            return str(value) if isinstance(value, SecretText) else show(value)
        if value is None and self.default is None:
            return "none"
        if isinstance(value, int) and value.bit_length() > 128:
            return f"an integer of {value.bit_length()} bits"
        kind, form = _FORMS.get(self.kind, (str, str))
        return form(value) if type(value) is kind else str(value)

    def limits(self) -> str:
        """Format the allowed range, empty without one."""
        if self.minimum is None or self.maximum is None:
            return ""
        number = float if self.kind in {"duration", "ratio"} else int
        return f"{self.shown(number(self.minimum))}..{self.shown(number(self.maximum))}"


def _duration_text(seconds: float) -> str:
    return format_duration(seconds) if math.isfinite(seconds) else str(seconds)


_FORMS: Final[dict[Kind, tuple[type, Callable[[Any], str]]]] = {
    "size": (int, format_bytes),
    "duration": (float, _duration_text),
    "switch": (bool, lambda value: str(value).lower()),
    "mapping": (dict, partial(json.dumps, default=str)),
}
"""The format of each kind's values, if they are of its type."""


def setting_info(path: str, field: FieldInfo) -> SettingInfo:
    """Read the facts about the setting at `path` from the model."""
    limits = {
        name: getattr(item, name)
        for item in field.metadata
        for name in ("ge", "le")
        if hasattr(item, name)
    }
    choices = tuple(get_args(field.annotation)) if get_origin(field.annotation) is Literal else ()
    kind: Kind = "choice" if choices else "text"
    if field.annotation is SecretText:
        kind = "secret"
    for item in field.metadata:
        if isinstance(item, BeforeValidator):
            kind = _KINDS[item]
    return SettingInfo(
        path=path,
        kind=kind,
        default=field.default,
        minimum=limits.get("ge"),
        maximum=limits.get("le"),
        choices=choices,
        description=field.description or "",
    )


_KINDS: Final[dict[BeforeValidator, Kind]] = {
    get_args(Bytes)[1]: "size",
    get_args(BytesOrNone)[1]: "size",
    get_args(Seconds)[1]: "duration",
    get_args(SecondsOrNone)[1]: "duration",
    get_args(Count)[1]: "count",
    get_args(Ratio)[1]: "ratio",
    get_args(Switch)[1]: "switch",
    get_args(Texts)[1]: "mapping",
}
