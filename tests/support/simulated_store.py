"""An object store in memory and virtual time that misbehaves as real ones do, by a seed.

The store is another machine: it outlives every crash of the broker that a test simulates, so one
`SimulatedStore` serves all lives. What may go wrong with a call is a `FaultKind`:

| kind | what happens |
|---|---|
| partial | the connection breaks amid the bytes: nothing is there, outcome unknown |
| truncated | an object without its last bytes is there, and the store says all is well |
| error_in_200 | a good status with an error in its body: seen or not, done or not |
| own_412 | the write happens, then a repeat of it inside the client finds it there |
| conflict_409 | another write of the key is under way: nothing happens, try again |
| lost_answer | the write happens, its answer does not arrive: outcome unknown |
| throttled | a storm of 503s: this call and those of the next seconds are refused |
| stall | 30 seconds pass, then the call times out; a write happened or not |
| missing | a read does not find what is there |
| stale_list | a list is as it was some time ago |
| flipped | a read returns a wrong bit |
| short | a read breaks off |
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, get_args

from frazil.errors import Conflict, InvalidRequest, NotFound, Unavailable
from frazil.objects import LIST_KEYS_MAX, PIECE_BYTES_MAX, ObjectMeta

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from tests.support.simulated_clock import SimulatedClock

__all__ = ["FAULTS", "FaultKind", "SimulatedStore", "StoreVerb", "StoredObject"]

StoreVerb = Literal["put", "put_stream", "get", "head", "list", "delete"]
FaultKind = Literal[
    "partial",
    "truncated",
    "error_in_200",
    "own_412",
    "conflict_409",
    "lost_answer",
    "throttled",
    "stall",
    "missing",
    "stale_list",
    "flipped",
    "short",
]

FAULTS: Final[dict[StoreVerb, tuple[FaultKind, ...]]] = {
    "put": (
        *("partial", "truncated", "error_in_200", "own_412", "conflict_409", "lost_answer"),
        *("throttled", "stall"),
    ),
    "put_stream": ("partial", "truncated", "error_in_200", "lost_answer", "throttled", "stall"),
    "get": ("throttled", "stall", "missing", "flipped", "short"),
    "head": ("throttled", "stall", "missing"),
    "list": ("throttled", "stall", "stale_list"),
    "delete": ("partial", "lost_answer", "throttled", "stall"),
}
"""What can go wrong with each call."""

STALL_S: Final = 30.0
STORM_S: Final = 5.0
STALE_US: Final = 60_000_000
"""A stale list lacks what was written, and has what was deleted, within this time."""


class StoredObject(NamedTuple):
    """What lies under a key."""

    data: bytes
    etag: str
    modified_us: int


class SimulatedStore:
    """An `ObjectStore` with faults by chance (`rates`) or by plan (`fail`).

    Attributes:
        objects: what is stored, by key.
        written: key and size of every write that happened, in order, repeats included.
        calls: how often each verb was called.
        fired: how often each fault happened.
        piece_bytes_max: the largest piece that was handed over at once.
    """

    def __init__(
        self,
        clock: SimulatedClock,
        *,
        seed: int = 0,
        rates: Mapping[FaultKind, float] | None = None,
        latency_s: float = 0.002,
        on_step: Callable[[str], None] | None = None,
    ) -> None:
        """Make an empty store.

        Args:
            clock: passes by `latency_s` with each call.
            seed: of everything that is left to chance.
            rates: how likely each fault is in a call that can have it.
            latency_s: what a call takes.
            on_step: called with `"<verb> <moment>"` at every moment at which a broker may die:
                `asked`, `sent` (a piece), `done` (the store has it), `answered`. It may raise.
        """
        self.objects: dict[str, StoredObject] = {}
        self.written: list[tuple[str, int]] = []
        self.calls: Counter[StoreVerb] = Counter()
        self.fired: Counter[FaultKind] = Counter()
        self.piece_bytes_max = 0
        self.rates: dict[FaultKind, float] = dict(rates or {})
        self.on_step = on_step
        self._clock = clock
        self._random = Random(seed)
        self._latency_s = latency_s
        self._mutex = threading.RLock()
        self._deleted: dict[str, StoredObject] = {}
        self._deleted_us: dict[str, int] = {}
        self._planned: dict[tuple[StoreVerb, int], FaultKind] = {}
        self._storm_until = float("-inf")

    # -- what a test arranges ---------------------------------------------------------------------

    def fail(self, verb: StoreVerb, kind: FaultKind, *, nth: int = 1) -> None:
        """Let the `nth` call of `verb` from now on (1 is the next) go wrong."""
        if kind not in FAULTS[verb]:
            raise ValueError(f"{verb} has no fault {kind}")
        self._planned[verb, self.calls[verb] + nth] = kind

    def heal(self) -> None:
        """Let nothing go wrong from now on."""
        self.rates.clear()
        self._planned.clear()
        self._storm_until = float("-inf")

    def plant(self, key: str, data: bytes) -> None:
        """Put an object there behind everybody's back, over what is there."""
        with self._mutex:
            self._land(key, data)

    # -- the protocol -----------------------------------------------------------------------------

    def put(self, key: str, data: Buffer) -> ObjectMeta:
        content = bytes(data)
        if len(content) > PIECE_BYTES_MAX:
            raise InvalidRequest("object is too large for one request", key=key, size=len(content))
        with self._mutex:
            fault = self._enter("put")
            self._sent("put", len(content))
            if fault == "conflict_409":
                raise Unavailable("another write of this key is under way", key=key)
            if fault is None and key in self.objects:
                raise Conflict("object exists", key=key)
            return self._write("put", key, content, fault)

    def put_stream(self, key: str, pieces: Iterable[Buffer]) -> ObjectMeta:
        with self._mutex:
            fault = self._enter("put_stream")
        found = bytearray()
        for piece in pieces:
            part = bytes(piece)
            if len(part) > PIECE_BYTES_MAX:
                raise InvalidRequest("piece is too large", key=key, size=len(part))
            with self._mutex:
                self._sent("put_stream", len(part))
            found += part
        with self._mutex:
            return self._write("put_stream", key, bytes(found), fault)

    def get(self, key: str, *, start: int, length: int) -> bytes:
        with self._mutex:
            fault = self._enter("get")
            found = self.objects.get(key)
            if found is None or fault == "missing" or start + length > len(found.data):
                raise NotFound("object is not there or ends before", key=key, start=start)
            data = found.data[start : start + length]
            if fault == "short":
                raise Unavailable("the connection broke amid the bytes", key=key)
            if fault == "flipped" and data:
                wrong = bytearray(data)
                wrong[self._random.randrange(length)] ^= 1 << self._random.randrange(8)
                data = bytes(wrong)
            self._step("get answered")
            return data

    def head(self, key: str) -> ObjectMeta | None:
        with self._mutex:
            fault = self._enter("head")
            found = None if fault == "missing" else self.objects.get(key)
            self._step("head answered")
            return None if found is None else _meta(key, found)

    def list(self, prefix: str, *, after: str = "", limit: int = LIST_KEYS_MAX) -> list[ObjectMeta]:
        with self._mutex:
            fault = self._enter("list")
            shown = dict(self.objects)
            if fault == "stale_list":
                since = self._clock.now_us() - STALE_US
                for key, when in self._deleted_us.items():
                    if when > since:
                        shown[key] = self._deleted[key]
                shown = {key: found for key, found in shown.items() if found.modified_us <= since}
            keys = sorted(key for key in shown if key.startswith(prefix) and key > after)
            self._step("list answered")
            return [_meta(key, shown[key]) for key in keys[: min(limit, LIST_KEYS_MAX)]]

    def delete(self, keys: Sequence[str]) -> None:
        with self._mutex:
            fault = self._enter("delete")
            reached = len(keys) if fault is None else self._random.randrange(len(keys) + 1)
            for key in keys[:reached]:
                gone = self.objects.pop(key, None)
                if gone is not None:
                    self._deleted[key] = gone
                    self._deleted_us[key] = self._clock.now_us()
                self._step("delete done")
            if fault is not None:
                raise Unavailable("the connection broke", keys=len(keys), outcome="unknown")
            self._step("delete answered")

    def close(self) -> None:
        """Nothing is open."""

    # -- what happens inside ----------------------------------------------------------------------

    def _enter(self, verb: StoreVerb) -> FaultKind | None:
        """Count a call, let its time pass, and say what goes wrong; refusals are raised here."""
        self.calls[verb] += 1
        self._clock.advance(self._latency_s)
        self._step(f"{verb} asked")
        fault = self._planned.pop((verb, self.calls[verb]), None)
        if fault is None and self.rates:
            fault = self._chance(verb)
        if fault == "throttled":
            self._storm_until = self._clock.monotonic() + STORM_S
        if self._clock.monotonic() < self._storm_until:
            self.fired["throttled"] += 1
            raise Unavailable("store asks for patience", status=503, retry_after_ms=1_000)
        if fault is not None:
            self.fired[fault] += 1
        if fault == "stall":
            self._clock.advance(STALL_S)
            if verb in {"get", "head", "list"}:
                raise Unavailable("request timed out", verb=verb)
        return fault

    def _chance(self, verb: StoreVerb) -> FaultKind | None:
        draw = self._random.random()
        for kind in FAULTS[verb]:
            draw -= self.rates.get(kind, 0.0)
            if draw < 0:
                return kind
        return None

    def _sent(self, verb: StoreVerb, size: int) -> None:
        self.piece_bytes_max = max(self.piece_bytes_max, size)
        self._step(f"{verb} sent")

    def _write(self, verb: StoreVerb, key: str, data: bytes, fault: FaultKind | None) -> ObjectMeta:
        """Do what the fault leaves of a write, and answer as it lets the store answer."""
        happens = fault in {None, "truncated", "own_412", "lost_answer"}
        if fault in {"error_in_200", "stall"}:
            happens = self._random.random() < 0.5
        kept = data[: self._random.randrange(len(data))] if fault == "truncated" and data else data
        if happens and verb == "put" and key in self.objects:
            # Whatever else goes wrong, nothing is replaced.
            raise Conflict("object exists", key=key)
        if happens:
            self._land(key, kept)
            self._step(f"{verb} done")
        if fault == "own_412":
            raise Conflict("object exists", key=key)
        unseen = fault == "error_in_200" and self._random.random() < 0.5
        if fault in {None, "truncated"} or unseen:
            self._step(f"{verb} answered")
            return ObjectMeta(key, len(data), _etag(data), self._clock.now_us())
        raise Unavailable("the answer did not come", key=key, fault=fault, outcome="unknown")

    def _land(self, key: str, data: bytes) -> None:
        self.objects[key] = StoredObject(data, _etag(data), self._clock.now_us())
        self.written.append((key, len(data)))

    def _step(self, name: str) -> None:
        if self.on_step is not None:
            self.on_step(name)


def _etag(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _meta(key: str, found: StoredObject) -> ObjectMeta:
    return ObjectMeta(key, len(found.data), found.etag, found.modified_us)


assert set(get_args(FaultKind)) == {kind for kinds in FAULTS.values() for kind in kinds}
