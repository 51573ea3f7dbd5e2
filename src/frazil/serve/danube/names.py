"""Names on the wire: topics, namespaces, and the parts of a partitioned topic.

A topic's name has three parts between slashes, the first of them empty: `/namespace/topic`.
Part `i` of a partitioned topic is a separate topic, `/namespace/topic-part-i`. Clients create each
part through a producer, and send the name of the part with every ack.
"""

from __future__ import annotations

import re
from typing import Final

from frazil.errors import InvalidRequest
from frazil.model import full_topic_name
from frazil.serve.danube.statuses import Refused, status

__all__ = [
    "check_namespace",
    "checked_topic",
    "namespace_of",
    "part_of",
]

_PART: Final = re.compile(r"(?P<whole>/[^/]+/[^/]+)-part-(?P<index>0|[1-9][0-9]{0,8})\Z")


def checked_topic(name: str) -> str:
    """Return a topic's name as the engine has it.

    Raises:
        Refused: if it is not `/namespace/topic` of letters, digits, `_` and `-`, or is too long.
    """
    # The engine takes a bare name, too, as one in the default namespace; the protocol does not.
    if not name.startswith("/"):
        raise Refused(status("topic_name_invalid", topic=name))
    try:
        return full_topic_name(name)
    except InvalidRequest as error:
        raise Refused(status("topic_name_invalid", topic=name)) from error


def check_namespace(name: str) -> None:
    """Refuse a name that no namespace may have.

    Raises:
        InvalidRequest: if it is one.
    """
    try:
        is_fine = full_topic_name(f"/{name}/topic") == f"/{name}/topic"
    except InvalidRequest:
        is_fine = False
    if not is_fine:
        raise InvalidRequest(
            "a namespace has letters, digits, '_' and '-' only, and at least one", namespace=name
        )


def namespace_of(topic: str) -> str:
    """Return the namespace of a checked topic name."""
    return topic.split("/", 2)[1]


def part_of(topic: str) -> tuple[str, int] | None:
    """Return the whole topic and the index, if this is the name of a part; else None."""
    found = _PART.match(topic)
    return (found["whole"], int(found["index"])) if found else None
