"""Lives that end with damaged bytes, a full rewind of the log, or other harm from outside."""

from __future__ import annotations

from frazil.log import Sender
from frazil.log import format as fmt
from tests.crash.checker import require
from tests.crash.simulation import Simulation
from tests.crash.workload import Waiter

DATA_KINDS = (fmt.KIND_ARROW, fmt.KIND_ROWS)
HEAD_BITS = fmt.FRAME_HEAD_BYTES * 8


class DamagedSimulation(Simulation):
    """Work, let everything be synced and marked, lose power, flip a bit of a frame, recover.

    `where` is "anywhere" in the data frames, "length" (the length field of one), or "last" (the
    last data frame).
    """

    where = "anywhere"

    def run(self):
        self.disk.crash_at = None
        self.open()
        self.operate(self.random.randint(4, 14))
        self.settle()
        self.cache_lives = False
        self.disk = self.disk.crash_clone(self.random.getrandbits(48))
        self.file_system = self.disk
        if not self.flip():
            return
        for _ in range(2):
            self.open_journal()
            self.check(damaged=True)

    def settle(self):
        """Have everything synced, and proven by the marker of an idle journal."""
        work = self.work
        for model in work.models.values():
            payload = work._payload(model) or b"settle"
            waiter = Waiter("append", model=model, payloads=[payload], sync=True)
            sender = Sender(sync=True)
            work.commit([work._tuple(waiter, [payload], sender=sender, many=False)])
        self.clock.advance(0.1)
        work.journal.tick()
        for model in work.models.values():
            model.kept_end = model.exposed

    def flip(self):
        """Flip one bit of a data frame; return whether there was one."""
        journal = self.work.journal
        frames = []
        for segment in journal.segments:
            data = self.disk.read_bytes(segment.path)
            position = fmt.SEGMENT_HEADER_BYTES
            while position < segment.body_end:
                head = fmt.read_head(data, position)
                whole = fmt.FRAME_PREFIX_BYTES + head.length
                if head.kind in DATA_KINDS:
                    frames.append((segment.path, position, whole))
                position += whole
        if not frames:
            return False
        path, position, whole = frames[-1] if self.where == "last" else self.random.choice(frames)
        bit = self.random.randrange(whole * 8)
        if self.where == "length":
            bit = 64 + self.random.randint(6, 18)
        elif self.random.random() < 0.3:
            bit = self.random.randrange(HEAD_BITS)

        def damage(content):
            content[position + bit // 8] ^= 1 << bit % 8

        self.disk.corrupt(path, damage)
        return True


class LengthDamage(DamagedSimulation):
    where = "length"


class LastFrameDamage(DamagedSimulation):
    where = "last"


class RewoundSimulation(Simulation):
    """The log comes back from an older copy, while something else remembers newer offsets."""

    def run(self):
        self.disk.crash_at = None
        self.open()
        work = self.work
        self.operate(self.random.randint(3, 8))
        self.restart()
        copy = self.disk.kill_clone()
        ends = {model: model.kept_end for model in work.models.values()}
        self.operate(self.random.randint(3, 8))
        self.disk = self.file_system = copy
        self.open_journal(
            watermarks={model.spec.id: model.exposed for model in work.models.values()}
        )
        work.lsn_acked = work.journal.state.lsn
        for model in list(work.models.values()):
            state = work.journal.state.topics.get(model.spec.id)
            if state is None or model not in ends:
                del work.models[model.spec.id]
                continue
            require(
                state.next >= model.exposed,
                "head is below a remembered end",
                topic=state.id,
                head=state.next,
                remembered=model.exposed,
            )
            work.commit([work._entry(model)])
