"""Texts that nobody should see, and `${NAME}` references to the environment.

A reference stays a reference in the settings: it is shown as it was written, and looked up by
`resolve` when the value is used, so that no dump of the settings has what it stands for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

from pydantic import Secret

from frazil.errors import InvalidRequest

__all__ = ["HIDDEN", "SecretText", "is_reference", "resolve", "show"]

HIDDEN: Final = "********"
"""What is shown of a secret, whatever its length."""

_REFERENCE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_REFERENCES_ALONE: Final = re.compile(r"(?:\$\{[A-Za-z_][A-Za-z0-9_]*\})+\Z")


class SecretText(Secret[str]):
    """A text that shows itself only if it is nothing but references; `resolve` has its value."""

    def _display(self) -> str:
        return show(self.get_secret_value())

    def __bool__(self) -> bool:
        return bool(self.get_secret_value())


def show(secret: object) -> str:
    """Return what may be shown of a secret, or of a wrong value for one."""
    if isinstance(secret, str) and (not secret or is_reference(secret)):
        return secret
    return HIDDEN


def is_reference(text: str) -> bool:
    """Tell whether a text is nothing but references to the environment."""
    return _REFERENCES_ALONE.match(text) is not None


def references(value: object) -> list[str]:
    """Return the names of the variables that a text, or the texts of a mapping, refer to."""
    texts = list(value.values()) if isinstance(value, Mapping) else [value]
    found = (name for text in texts if isinstance(text, str) for name in _REFERENCE.findall(text))
    return list(dict.fromkeys(found))


def resolve(
    value: str | SecretText, *, setting: str, environment: Mapping[str, str] | None = None
) -> str:
    """Return a setting's text with the values of the variables that it refers to.

    Args:
        value: the setting as it is in the tree.
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
