"""Maps of keys that grow while their file is written."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from frazil.schema import KeyMap
from frazil.tiers.keys.growing_keys import PIECE_ROWS, GrowingKeys


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


def test_it_needs_no_thread():
    """At the end of the interpreter, or of the system's threads, the writer sorts by itself."""
    hashes = np.random.default_rng(1).integers(0, 1000, 3 * PIECE_ROWS).astype(np.uint32)
    beside = ThreadPoolExecutor(1)
    growing = GrowingKeys(beside)
    growing.add(hashes[:PIECE_ROWS])
    beside.shutdown()
    growing.add(hashes[PIECE_ROWS : 2 * PIECE_ROWS])
    growing.add(hashes[2 * PIECE_ROWS :])
    growing.end()
    assert growing.file_form() == KeyMap.build(hashes).to_bytes()


def test_a_flush_at_the_end_of_the_interpreter_writes_its_files(tmp_path):
    """Who flushes when a program ends, after which no thread can be started, loses nothing."""
    program = f"""
import atexit
import frazil, numpy, pyarrow
db = frazil.open({str(tmp_path)!r})
topic = db.create_topic("t", {{"id": "long"}}, primary_key="id")
topic.append_arrow(pyarrow.table({{"id": numpy.arange({2 * PIECE_ROWS})}}))
@atexit.register
def end():
    print(db.tiers.flush())
    db.close()
"""
    done = subprocess.run(  # the program is the one above
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert str(2 * PIECE_ROWS) in done.stdout
    assert not done.stderr
