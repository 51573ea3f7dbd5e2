"""How many of the last 10,000 records of a table were rejected, over commits and restarts. Pure.

Only the newest rejects are remembered: with that many in the window there are too many already, so
those before them change no verdict.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

__all__ = [
    "REJECTS_MIN",
    "REJECTS_WINDOW",
    "RejectWindow",
    "decode_window",
    "densest",
    "encode_window",
    "spread",
    "too_many",
]

REJECTS_WINDOW: Final = 10_000
REJECTS_MIN: Final = 100
REJECTS_ONE_OF: Final = 100
REMEMBERED_MAX: Final = REJECTS_WINDOW // REJECTS_ONE_OF + 1
"""So many among 10,000 are too many, and so are they among fewer."""


def too_many(records: int, rejects: int) -> bool:
    """Tell whether so many rejects among records stop a table."""
    return rejects >= REJECTS_MIN and rejects * REJECTS_ONE_OF > records


def densest(places: Iterable[int]) -> int:
    """Return how many of some places lie at most within 10,000 in a row."""
    ordered = sorted(places)
    most = first = 0
    for number, place in enumerate(ordered, start=1):
        while ordered[first] <= place - REJECTS_WINDOW:
            first += 1
        most = max(most, number - first)
    return most


class RejectWindow(msgspec.Struct, frozen=True):
    """The newest records of a table, at most 10,000, and which of them were rejected.

    A distance is how many records came behind a reject; the nearest come first.
    """

    records: int = 0
    distances: tuple[int, ...] = ()

    def after(self, records: int, rejected_at: Sequence[int]) -> RejectWindow:
        """Return the window after more records, of which those at these places were rejected."""
        near = sorted(records - 1 - place for place in rejected_at)
        far = (records + distance for distance in self.distances)
        kept = [each for each in (*near, *far) if each < REJECTS_WINDOW]
        return RejectWindow(
            min(self.records + records, REJECTS_WINDOW), tuple(kept[:REMEMBERED_MAX])
        )

    def worst(self, records: int, rejected_at: Sequence[int]) -> tuple[int, int]:
        """Return records and rejects where most lie together, of the window and more records.

        Wherever 10,000 in a row begin; of fewer records in all, those.
        """
        places = [*(-1 - distance for distance in self.distances), *rejected_at]
        return min(self.records + records, REJECTS_WINDOW), densest(places)


def spread(records: int, rejects: int) -> RejectWindow:
    """Return a window of whose rejects only the number is known: they lie evenly."""
    if rejects <= 0 or records <= 0:
        return RejectWindow(min(max(records, 0), REJECTS_WINDOW))
    step = records / rejects
    even = (int(step * number) for number in range(min(rejects, REJECTS_WINDOW)))
    kept = [distance for distance in even if distance < REJECTS_WINDOW]
    return RejectWindow(min(records, REJECTS_WINDOW), tuple(kept[:REMEMBERED_MAX]))


def encode_window(window: RejectWindow) -> str:
    """Return a window as the text that the summary of a snapshot has."""
    return f"{window.records}:{','.join(map(str, window.distances))}"


def decode_window(text: str) -> RejectWindow:
    """Return the window of a text.

    Raises:
        ValueError: if it is none.
    """
    records, _, distances = text.partition(":")
    found = tuple(int(each) for each in distances.split(",") if each)
    return RejectWindow(int(records), found)
