"""What streams cost beside the bytes of their messages, as measured on CPython 3.11.

The sums of the whole server count it: a peer can have many streams with next to nothing in them.
"""

from __future__ import annotations

from typing import Final

REQUEST_COST_BYTES: Final = 320
"""An open stream whose headers others have, too: 170 bytes, or 270 if the first streams of the
process came to have all their attributes, for which CPython then keeps room in every one."""
BODY_COST_BYTES: Final = 256
"""More, once a part of its body is here."""
HEADERS_COST_TIMES: Final = 3
"""More, so many times the size of headers that no other stream has."""
ANSWER_COST_BYTES: Final = 1_280
"""More, for an answer that is whole and waits for the peer's window."""
