"""Places in JSON: of a payload's value, or of a schema in a definition.

A place is put into words only when it is told: a name may be as long as the definition, and there
may be thousands of places below it.
"""

from __future__ import annotations

__all__ = ["Place", "told_place"]

Place = tuple["Place", str | int] | None
"""Where something is: where that is which has it, and its name or position there.

The whole is at `None`.
"""


def told_place(place: Place) -> str:
    """Return a place in words, as `$.items[2].price`."""
    parts: list[str] = []
    while place is not None:
        place, part = place
        parts.append(f"[{part}]" if isinstance(part, int) else f".{part}")
    return "$" + "".join(reversed(parts))
