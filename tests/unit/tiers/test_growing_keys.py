"""Maps of keys that grow while their file is written."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from frazil.tiers.growing_keys import PIECE_ROWS, GrowingKeys
from frazil.tiers.keys import KeyMap


@pytest.mark.parametrize(
    "counts",
    [[1], [PIECE_ROWS - 1], [PIECE_ROWS], [10, PIECE_ROWS, 10], [PIECE_ROWS // 3] * 10],
    ids=str,
)
@pytest.mark.parametrize("early", [False, True])
def test_it_is_the_map_that_all_keys_give_at_once(counts, early):
    """However the rows come, each hash leads to its rows, in the form of one sort."""
    draw = np.random.default_rng(1)
    pieces = [draw.integers(0, 1000, count).astype(np.uint32) for count in counts]
    with ThreadPoolExecutor(1) as beside:
        growing = GrowingKeys(beside)
        for piece in pieces:
            growing.add(piece)
        if early:
            growing.end()
        found = growing.file_form()
    assert found == KeyMap.build(np.concatenate(pieces)).to_bytes()
