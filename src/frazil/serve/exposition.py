"""Metrics as text that Prometheus reads: declarations and a tree of facts in, lines out. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final, Literal, NamedTuple

__all__ = [
    "CONTENT_TYPE",
    "Metric",
    "Reader",
    "Sample",
    "at",
    "both",
    "by_key",
    "count_of",
    "one_of",
    "render",
    "share",
    "total",
]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
SAMPLES_MAX: Final = 64
"""No metric has more lines: a label that could have any number of values is a mistake."""
LABEL_CHARACTERS_MAX: Final = 64

Facts = Mapping[str, Any]


class Sample(NamedTuple):
    """One value, with its labels."""

    value: float
    labels: tuple[tuple[str, str], ...] = ()


Reader = Callable[[Facts], Iterable[Sample]]


class Metric(NamedTuple):
    """One metric: its name with unit, what it is, and where its values are."""

    name: str
    kind: Literal["counter", "gauge"]
    text: str
    read: Reader


def _found(facts: Facts, path: str) -> Any:
    """Return what is at a dotted path, None where the tree does not go so far."""
    value: Any = facts
    for step in path.split("."):
        if not isinstance(value, Mapping):
            return None
        value = value.get(step)
    return value


def _number(value: Any) -> float | None:
    if not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def at(path: str, *, scale: float = 1.0, labels: tuple[tuple[str, str], ...] = ()) -> Reader:
    """Read the number at a path, times `scale`; nothing if it is not there."""

    def read(facts: Facts) -> Iterator[Sample]:
        value = _number(_found(facts, path))
        if value is not None:
            yield Sample(value * scale, labels)

    return read


def both(*readers: Reader) -> Reader:
    """Read what all readers read."""

    def read(facts: Facts) -> Iterator[Sample]:
        for each in readers:
            yield from each(facts)

    return read


def by_key(label: str, path: str) -> Reader:
    """Read a mapping of numbers; each key is a value of the label."""

    def read(facts: Facts) -> Iterator[Sample]:
        found = _found(facts, path)
        for key, value in sorted(found.items()) if isinstance(found, Mapping) else ():
            number = _number(value)
            if number is not None:
                yield Sample(number, ((label, str(key)),))

    return read


def total(path: str, inner: str) -> Reader:
    """Read a list or mapping of trees, and add up what each has at `inner`."""

    def read(facts: Facts) -> Iterator[Sample]:
        found = _found(facts, path)
        each = found.values() if isinstance(found, Mapping) else found
        if isinstance(found, Mapping | list | tuple):
            numbers = [_number(_found(tree, inner)) for tree in each]
            yield Sample(sum((number for number in numbers if number is not None), 0.0))

    return read


def count_of(path: str) -> Reader:
    """Read how many entries a list or mapping has."""

    def read(facts: Facts) -> Iterator[Sample]:
        found = _found(facts, path)
        if isinstance(found, Mapping | list | tuple):
            yield Sample(float(len(found)))

    return read


def share(part: str, whole: str) -> Reader:
    """Read one number as a share of another."""

    def read(facts: Facts) -> Iterator[Sample]:
        value, all_of_it = _number(_found(facts, part)), _number(_found(facts, whole))
        if value is not None and all_of_it:
            yield Sample(value / all_of_it)

    return read


def one_of(label: str, path: str, *values: str) -> Reader:
    """Read a text as one line for each text it may be: 1 for what it is, 0 for the others."""

    def read(facts: Facts) -> Iterator[Sample]:
        found = _found(facts, path)
        if isinstance(found, str):
            for value in values:
                yield Sample(float(value == found), ((label, value),))

    return read


def render(metrics: Iterable[Metric], facts: Facts) -> str:
    """Return the text of all metrics that have a value."""
    lines: list[str] = []
    for metric in metrics:
        found = (sample for sample in metric.read(facts) if math.isfinite(sample.value))
        samples = list(islice(found, SAMPLES_MAX))
        if samples:
            lines.append(f"# HELP {metric.name} {_escaped(metric.text, quotes=False)}")
            lines.append(f"# TYPE {metric.name} {metric.kind}")
            lines += [_line(metric.name, sample) for sample in samples]
    return "\n".join([*lines, ""])


def _line(name: str, sample: Sample) -> str:
    labels = ",".join(
        f'{label}="{_escaped(value[:LABEL_CHARACTERS_MAX], quotes=True)}"'
        for label, value in sample.labels
    )
    value = int(sample.value) if sample.value.is_integer() else sample.value
    return f"{name}{{{labels}}} {value}" if labels else f"{name} {value}"


def _escaped(text: str, *, quotes: bool) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text
