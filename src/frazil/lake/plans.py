"""Running plans: persisted before they are sent, with their files pinned until the outcome."""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final

import msgspec

from frazil.errors import InvalidRequest
from frazil.lake.plan import decode_plan, encode_plan, planned_files
from frazil.lake.table import Ends
from frazil.lake.watermark import Choice
from frazil.metadata import Transaction
from frazil.struct_types import learnt
from frazil.telemetry import warn

if TYPE_CHECKING:
    from frazil.lake.plan import Plan
    from frazil.metadata import MetadataStore
    from frazil.tiers import DiskFile, DiskTier, FilesPin

__all__ = ["LakePlans", "OperatorOverrides"]

PLANS: Final = "/lake/plans/"
OVERRIDES: Final = "/lake/overrides/"
LAST: Final = "/lake/last/"
EPOCH: Final = "/lake/epoch"


class OperatorOverrides(msgspec.Struct, frozen=True):
    """The persisted operator decisions, and the end of the lineage.

    `chosen` are the table's watermarks at the time of the choice. `lineage_ends` are the log's ends
    when it was opened, kept until a look at the table succeeds: if the log is an older copy,
    records published since then have offsets that the table has for other records.
    """

    paused: bool = False
    choice: Choice = ""
    chosen: Ends = {}
    rejects_allowed: bool = False
    lineage_ends: Ends = {}


class LakePlans:
    """The lake's rows in the metadata, and the pins of the plans' files.

    If the metadata is lost with a plan in it, another plan is made; the table's fence admits only
    one of the two.
    """

    def __init__(self, store: MetadataStore, disk: DiskTier) -> None:
        self._store = store
        self._disk = disk
        self._pins: dict[str, FilesPin] = {}

    # -- plans -------------------------------------------------------------------------------------

    def load(self, uid: str) -> Plan | None:
        """Return a topic's persisted plan with its files pinned; None without one that can run.

        A plan with missing files is dropped: it could not be read.
        """
        entry = self._store.get(f"{PLANS}{uid}")
        if entry is None:
            return None
        try:
            plan = decode_plan(zlib.decompress(entry.value))
        except (InvalidRequest, zlib.error) as error:
            warn("lake_plan_unreadable", uid=uid, error=error)
            self.drop(uid)
            return None
        if not self.keep(uid, plan):
            warn("lake_plan_dropped", topic=plan.topic, plan=plan.id)
            self.drop(uid)
            return None
        return plan

    def keep(self, uid: str, plan: Plan) -> bool:
        """Pin a plan's files against merges; False if one of them is missing."""
        files = self._files(plan)
        if files is None:
            return False
        pin = self._disk.pins.pin(files)
        # Pinned first: a file that is still registered now stays.
        if self._files(plan) is None:
            pin.close()
            return False
        self.release(uid)
        self._pins[uid] = pin
        for file in files:
            self._disk.planned.setdefault(file.topic, {})[file.name] = uid
        return True

    def _files(self, plan: Plan) -> list[DiskFile] | None:
        """Return the files of a plan, None if one of them is missing."""
        topics = sorted({each.topic for each in plan.parts})
        found = [planned_files(self._disk.picture(topic), plan.parts) for topic in topics]
        return None if None in found else [file for some in found for file in some or ()]

    def persist(self, uid: str, plan: Plan) -> None:
        """Make a plan durable; before it is sent for the first time."""
        self._store.commit(Transaction(puts={f"{PLANS}{uid}": zlib.compress(encode_plan(plan))}))

    def drop(self, uid: str, *, committed_us: int | None = None) -> None:
        """Delete a plan whose outcome is known, unpin its files, and record the time."""
        last = {} if committed_us is None else {f"{LAST}{uid}": committed_us.to_bytes(8, "big")}
        self._store.commit(Transaction(puts=last, deletes=(f"{PLANS}{uid}",)))
        self.release(uid)

    def last_commit_us(self, uid: str) -> int | None:
        """Return when a plan of a topic was last committed, for people."""
        entry = self._store.get(f"{LAST}{uid}")
        return None if entry is None else int.from_bytes(entry.value, "big")

    def release(self, uid: str) -> None:
        """Let the files of a plan go."""
        pin = self._pins.pop(uid, None)
        if pin is not None:
            for file in pin.files:
                self._disk.planned.get(file.topic, {}).pop(file.name, None)
            pin.close()

    # -- overrides and lineage ---------------------------------------------------------------------

    def overrides(self, uid: str) -> OperatorOverrides:
        """Return the operator's decisions about a topic's table."""
        entry = self._store.get(f"{OVERRIDES}{uid}")
        if entry is None:
            return OperatorOverrides()
        try:
            return msgspec.msgpack.decode(entry.value, type=learnt(OperatorOverrides))
        except msgspec.MsgspecError as error:
            warn("lake_overrides_unreadable", uid=uid, error=error)
            return OperatorOverrides(paused=True)

    def set_overrides(self, uid: str, overrides: OperatorOverrides) -> None:
        """Store the operator's decisions; durable on return."""
        key = f"{OVERRIDES}{uid}"
        if overrides == OperatorOverrides():
            self._store.commit(Transaction(deletes=(key,)))
        else:
            self._store.commit(Transaction(puts={key: msgspec.msgpack.encode(overrides)}))

    def forget(self, uid: str) -> None:
        """Delete all rows of a deleted topic."""
        keys = tuple(f"{prefix}{uid}" for prefix in (PLANS, OVERRIDES, LAST))
        self._store.commit(Transaction(deletes=keys))
        self.release(uid)

    def put_aside(self, uid: str, lineage_ends: Ends) -> None:
        """Delete the rows that a topic without a lake does not need.

        The end of its lineage stays, as the topic may get its lake back.
        """
        key = f"{OVERRIDES}{uid}"
        left = (
            {key: msgspec.msgpack.encode(OperatorOverrides(lineage_ends=lineage_ends))}
            if lineage_ends
            else {}
        )
        gone = (f"{PLANS}{uid}",) if lineage_ends else (f"{PLANS}{uid}", key)
        self._store.commit(Transaction(puts=left, deletes=gone))
        self.release(uid)

    def next_epoch(self) -> int:
        """Return a number higher than all before; durable on return."""
        entry = self._store.get(EPOCH)
        epoch = 1 if entry is None else int.from_bytes(entry.value, "big") + 1
        self._store.commit(Transaction(puts={EPOCH: epoch.to_bytes(8, "big")}))
        return epoch
