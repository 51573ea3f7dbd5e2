"""A lake worker without Spark, for tests of the engine: the real protocol over a socket pair.

It runs `frazil.lake.commit` over PyIceberg and a real catalog, so that tables, watermarks and
fences are those of the product; only the engine that reads and writes the files is another one.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from frazil.errors import Closed, Conflict, FrazilError
from frazil.lake import Answer, Launched, Verdict, receive, send
from frazil.lake.commit import commit
from frazil.lake.connection import CatalogAddress, connect
from frazil.lake.table_state import look
from frazil.lake.worker_jobs import CommitRequest


class Tables:
    """The calls of the protocol that append needs, by PyIceberg."""

    def __init__(self, catalog):
        self.catalog = catalog

    def load(self, table):
        return look(self.catalog, table)

    def cas_append(self, table, rows, *, sid, summary):
        loaded = self.catalog.load_table(tuple(table))
        if loaded.metadata.current_snapshot_id != sid:
            raise Conflict("somebody else was first", table=table)
        schema = loaded.schema().as_arrow()
        arrays = [
            rows.column(field.name).cast(field.type)
            if field.name in rows.column_names
            else pa.nulls(rows.num_rows, field.type)
            for field in schema
        ]
        loaded.append(pa.table(arrays, schema=schema), snapshot_properties=dict(summary))
        return loaded.metadata.current_snapshot_id

    def set_property(self, table, properties):
        with self.catalog.load_table(tuple(table)).transaction() as change:
            change.set_properties(dict(properties))


class Stages:
    """Reads staged files; nothing is ever rejected."""

    def verdict(self, plan, from_offsets):
        tables = []
        for part in plan.parts:
            if part.part not in from_offsets:
                continue
            for file in part.files:
                rows = pq.read_table(file.path)
                offsets = rows.column("_offset")
                low = pc.greater_equal(offsets, from_offsets[part.part])
                rows = rows.filter(pc.and_(low, pc.less(offsets, part.hi)))
                if part.part >= 0:
                    numbers = pa.array([part.part] * rows.num_rows, pa.int32())
                    rows = rows.append_column("_part", numbers)
                tables.append(rows)
        found = pa.concat_tables(tables, promote_options="default") if tables else pa.table({})
        count = found.num_rows
        return Verdict(found, None, count, count, 0, 0)

    def rejects_from(self, verdict, from_offsets):
        raise AssertionError((verdict, from_offsets))


class StandIn:
    """Launches workers that are threads. Each knob may be turned while they run.

    Attributes:
        deaf: a worker answers nothing any more.
        die_at: a worker is gone when a commit reaches this step; once.
        refuse: what each commit is answered instead.
        slow_s: what each commit takes longer; `waiting` are those that do.
        answers: what other requests are answered, by operation; `asked` are their bodies.
    """

    def __init__(self):
        self.deaf = False
        self.die_at = ""
        self.slow_s = 0.0
        self.epochs = []
        self.commits = []
        self.steps = []
        self.refuse = None
        self.waiting = 0
        self.answers = {}
        self.asked = []

    def reached(self, step):
        """Take note of a step of a commit."""
        self.steps.append(step)

    def launch(self, epoch):
        ours, theirs = socket.socketpair()
        self.epochs.append(epoch)
        process = Worker(self, ours)
        process.start()
        return Launched(process, theirs)


class Worker(threading.Thread):
    """One worker; it is its own process to the supervisor."""

    def __init__(self, stand_in, connection):
        super().__init__(daemon=True)
        self.stand_in = stand_in
        self.connection = connection
        self.code = None
        self.pid = 0
        self.tables = None
        self.sending = threading.Lock()

    def poll(self):
        return self.code

    def terminate(self):
        self.kill()

    def kill(self):
        self.code = self.code if self.code is not None else -9
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def run(self):
        try:
            while True:
                request = receive(self.connection)
                if self.stand_in.deaf:
                    continue
                if request.op == "commit":
                    threading.Thread(target=self.commit, args=(request,), daemon=True).start()
                    continue
                if request.op == "hello":
                    address = msgspec.convert(request.body["catalog"], CatalogAddress)
                    self.tables = Tables(connect(address))
                self.stand_in.asked.append((request.op, request.body))
                found = self.stand_in.answers.get(request.op, ("done", {"versions": {}}))
                if found == "die":
                    self.kill()
                    continue
                self.answer(Answer(request.id, *found))
        except Closed:
            self.kill()
        finally:
            self.connection.close()

    def answer(self, answer):
        with self.sending, contextlib.suppress(Closed):
            send(self.connection, answer)

    def commit(self, request):
        stand_in = self.stand_in

        def progress(step):
            stand_in.reached(step)
            if step == stand_in.die_at:
                stand_in.die_at = ""
                self.kill()
                raise Closed("killed")
            self.answer(Answer(request.id, "progress", {"step": step}))

        try:
            stand_in.waiting += 1
            time.sleep(stand_in.slow_s)
            stand_in.waiting -= 1
            if stand_in.refuse is not None:
                raise stand_in.refuse
            found = msgspec.convert(request.body, CommitRequest, str_keys=True)
            stand_in.commits.append(found)
            result = commit(self.tables, Stages(), found, pause=time.sleep, progress=progress)
            self.answer(Answer(request.id, "done", msgspec.to_builtins(result, str_keys=True)))
        except FrazilError as error:
            if self.code is None:
                self.answer(Answer(request.id, "failed", {}, error.code, error.message))
