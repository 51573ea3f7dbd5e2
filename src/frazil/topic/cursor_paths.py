"""Under which key the metadata has the copy of a subscription's progress.

`/persistent_storage/iceberg/subscriptions/{subscription}/{namespace}/{topic}`: a path that other
programs look for. A name may be any text, a part of a path may not, so what does not fit is
written differently; the row itself has the name and the topic's id.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

__all__ = ["SUBSCRIPTIONS", "cursor_path"]

SUBSCRIPTIONS: Final = "/persistent_storage/iceberg/subscriptions/"
PART_BYTES_MAX: Final = 250
# A digest has a letter behind the percent sign that no escaped character has there.
_DIGEST: Final = "%sha256-"
_ESCAPED: Final = re.compile(r"[/%\x00-\x1f\x7f]")


def cursor_path(subscription: str, topic: str) -> str:
    """Return the key for a subscription of a topic given as `/namespace/topic`."""
    parts = [subscription, *topic.removeprefix("/").split("/", 1)]
    return SUBSCRIPTIONS + "/".join(map(_part, parts))


def _part(text: str) -> str:
    escaped = _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)
    if len(escaped.encode()) <= PART_BYTES_MAX:
        return escaped
    return _DIGEST + hashlib.sha256(text.encode()).hexdigest()
