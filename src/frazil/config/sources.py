"""Sources of settings: a YAML file, the environment, flags. Each value keeps its origin.

Every source becomes a list of `Entry`s: a path of keys, the value as written, and its origin. The
meaning of the values and the valid paths are defined in `frazil.config`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import yaml

from frazil.config.values import references, resolve
from frazil.errors import InvalidRequest, NotFound

__all__ = [
    "ENVIRONMENT_PREFIX",
    "Entry",
    "environment_entries",
    "environment_name",
    "file_entries",
    "parse_assignments",
    "read_bytes",
    "text_of",
    "with_variables",
]

FILE_BYTES_MAX: Final = 1 << 20
ENVIRONMENT_PREFIX: Final = "FRAZIL_"
NESTED_DELIMITER: Final = "__"
LEVELS_MAX: Final = 3
"""A setting's name has at most this many words: `lake.writer.batch_size`."""

ENVIRONMENT_ALLOWED: Final = ("FRAZIL_CONFIG", "FRAZIL_TOKEN")
"""Variables other than settings: the YAML file, a caller's token."""

ENVIRONMENT_ALLOWED_PREFIXES: Final = ("FRAZIL_BENCH_", "FRAZIL_TEST_")
"""Variables of the benchmarks and test suites."""

# The errors of PyYAML's constructors for a scalar that does not fit its tag, e.g. `2026-13-45`.
SCALAR_ERRORS: Final = (yaml.YAMLError, ValueError, KeyError, AttributeError, TypeError)


class Entry(NamedTuple):
    """One value of a source."""

    path: tuple[str, ...]
    value: object
    origin: str

    @property
    def key(self) -> str:
        """The dotted path, for messages and lookups."""
        return ".".join(self.path)


def environment_name(key: str) -> str:
    """Return the variable of a setting: `log.sync` is `FRAZIL_LOG__SYNC`."""
    return ENVIRONMENT_PREFIX + key.replace(".", NESTED_DELIMITER).upper()


def environment_entries(environment: Mapping[str, str]) -> list[Entry]:
    """Return the settings in the environment, in the order of their names."""
    entries = []
    for name in sorted(environment):
        if not name.startswith(ENVIRONMENT_PREFIX) or name in ENVIRONMENT_ALLOWED:
            continue
        if name.startswith(ENVIRONMENT_ALLOWED_PREFIXES):
            continue
        path = tuple(name.removeprefix(ENVIRONMENT_PREFIX).lower().split(NESTED_DELIMITER))
        entry = Entry(path, environment[name], f"environment {name}")
        if environment_name(entry.key) != name:
            raise InvalidRequest(
                "settings in the environment are written in capitals",
                key=entry.key,
                nearest=environment_name(entry.key),
                set_at=entry.origin,
            )
        entries.append(entry)
    return entries


def parse_assignments(assignments: Sequence[str]) -> dict[str, object]:
    """Turn the texts of repeated `--set key=value` flags into overrides.

    Raises:
        InvalidRequest: if one has no `=`, or a key is given twice.
    """
    overrides: dict[str, object] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key.strip():
            raise InvalidRequest("a setting on the command line is key=value", got=assignment)
        if key.strip() in overrides:
            raise InvalidRequest("setting is given twice", key=key.strip(), set_at="flag")
        overrides[key.strip()] = value.strip()
    return overrides


def read_bytes(path: str) -> bytes:
    """Return the bytes of a YAML file, at most one more than the limit.

    Raises:
        NotFound: if there is no such file.
        InvalidRequest: if it cannot be read.
    """
    try:
        with open(path, "rb") as file:
            return file.read(FILE_BYTES_MAX + 1)
    except FileNotFoundError as error:
        raise NotFound("settings file does not exist", file=path) from error
    except (OSError, ValueError) as error:
        raise InvalidRequest("settings file cannot be read", file=path, reason=error) from error


def text_of(data: bytes, *, file: str) -> str:
    """Return the text of a YAML file; `file` is its name in errors."""
    if len(data) > FILE_BYTES_MAX:
        raise InvalidRequest("settings file is too large", file=file, bytes_max=FILE_BYTES_MAX)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidRequest("settings file is not UTF-8", file=file, byte=error.start) from error


def file_entries(data: bytes, *, file: str) -> list[Entry]:
    """Return the settings in the bytes of a YAML file; each origin is `file:line`.

    Raises:
        InvalidRequest: if it is larger than 1 MiB, or is not plain YAML.
    """
    text = text_of(data, file=file)
    try:
        loader = yaml.SafeLoader(text)
        root = loader.get_single_node()
    except yaml.YAMLError as error:
        raise _yaml_error(error, file=file) from error
    except RecursionError as error:
        raise InvalidRequest("settings file is nested too deeply", file=file) from error
    if root is None:
        return []
    if not isinstance(root, yaml.MappingNode):
        raise InvalidRequest("settings file is not a mapping", set_at=_mark(root, file=file))
    return list(_walk(loader, root, (), file))


def with_variables(entry: Entry, variables: Mapping[str, str]) -> Entry:
    """Return an entry with the values of variables in place of their `${NAME}` references.

    Its origin names the variables.

    Raises:
        InvalidRequest: if one is not set.
    """

    def read(value: object) -> object:
        if not isinstance(value, str):
            return value
        return resolve(value, setting=entry.key, environment=variables)

    names = references(entry.value)
    if not names:
        return entry
    try:
        if isinstance(entry.value, Mapping):
            found: object = {name: read(value) for name, value in entry.value.items()}
        else:
            found = read(entry.value)
    except InvalidRequest as error:
        raise InvalidRequest(error.message, **error.details, set_at=entry.origin) from None
    named = ", ".join(f"${{{name}}}" for name in names)
    return Entry(entry.path, found, f"{entry.origin} {named}")


def _walk(
    loader: yaml.SafeLoader, node: yaml.MappingNode, above: tuple[str, ...], file: str
) -> Iterator[Entry]:
    for key, value_node, origin in _pairs(loader, node, file):
        if not isinstance(key, str):
            raise InvalidRequest("key of a setting is not a text", key=key, set_at=origin)
        path = (*above, key)
        if not isinstance(value_node, yaml.MappingNode):
            yield Entry(path, _scalar(loader, value_node, origin), origin)
        elif len(path) == LEVELS_MAX:
            # The value of a setting that is a mapping. Descending further would follow an alias
            # that contains itself.
            pairs = _pairs(loader, value_node, file)
            yield Entry(path, {name: _scalar(loader, each, at) for name, each, at in pairs}, origin)
        else:
            yield from _walk(loader, value_node, path, file)


def _pairs(
    loader: yaml.SafeLoader, node: yaml.MappingNode, file: str
) -> Iterator[tuple[object, yaml.Node, str]]:
    """Yield each key of a mapping with the node of its value and its line."""
    seen: set[object] = set()
    for key_node, value_node in node.value:
        origin = _mark(key_node, file=file)
        key = _scalar(loader, key_node, origin)
        if key in seen:
            raise InvalidRequest("setting is given twice", key=key, set_at=origin)
        seen.add(key)
        yield key, value_node, origin


def _scalar(loader: yaml.SafeLoader, node: yaml.Node, origin: str) -> object:
    if not isinstance(node, yaml.ScalarNode):
        raise InvalidRequest("setting must be one value, not a list or mapping", set_at=origin)
    try:
        value: object = loader.construct_object(node)
    except SCALAR_ERRORS as error:
        raise InvalidRequest("value is not plain YAML", tag=node.tag, set_at=origin) from error
    return value


def _mark(node: yaml.Node, *, file: str) -> str:
    return f"{file}:{node.start_mark.line + 1}"


def _yaml_error(error: yaml.YAMLError, *, file: str) -> InvalidRequest:
    mark = getattr(error, "problem_mark", None)
    reason = getattr(error, "problem", None) or str(error)
    origin = file if mark is None else f"{file}:{mark.line + 1}"
    return InvalidRequest("settings file is not valid YAML", reason=reason, set_at=origin)
