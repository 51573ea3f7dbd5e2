"""A small fuzzer in plain Python, for where atheris has no wheel: seeds, mutated at random."""

from __future__ import annotations

import time
from random import Random

INPUT_BYTES_MAX = 4096
NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1)


def mutated(random, seeds):
    """Return a seed after a few random changes."""
    data = bytearray(random.choice(seeds)) if seeds else bytearray()
    for _ in range(random.randrange(1, 6)):
        at = random.randrange(len(data) + 1)
        kind = random.randrange(6)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << random.randrange(8)
        elif kind == 1:
            data[at:at] = random.randbytes(random.randrange(1, 9))
        elif kind == 2:
            del data[at : at + random.randrange(1, 9)]
        elif kind == 3:
            size = random.choice((1, 2, 4, 8))
            number = random.choice(NUMBERS) & ((1 << 8 * size) - 1)
            data[at : at + size] = number.to_bytes(size, "little")
        elif kind == 4 and seeds:
            other = random.choice(seeds)
            cut = random.randrange(len(other) + 1)
            data[at:] = other[cut:]
        else:
            data[at:at] = data[at : at + random.randrange(1, 33)]
    return bytes(data[:INPUT_BYTES_MAX])


def fuzz(target, seeds, *, seconds, seed):
    """Run a target on mutated seeds for some time; return how often.

    An exception of the target comes out with the input in a note.
    """
    random = Random(seed)
    pool = list(seeds)
    deadline = time.monotonic() + seconds
    count = 0
    while time.monotonic() < deadline:
        data = mutated(random, pool) if count >= len(seeds) else seeds[count]
        try:
            target(data)
        except BaseException as error:
            error.add_note(f"input: bytes.fromhex({data.hex()!r})")
            raise
        count += 1
        if count % 50 == 0 and len(pool) < 500:
            pool.append(data)
    return count
