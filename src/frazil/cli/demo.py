"""`frazil demo`: the guided run. It publishes, can be killed at any time, and shows nothing lost."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import attrs
import typer

from frazil.cli.demo_changes import CHANGE_COLUMNS, change_of
from frazil.cli.demo_ledger import Ledger
from frazil.cli.demo_records import COLUMNS, encode_message, encode_row
from frazil.cli.demo_verify import MESSAGES, READINGS, STOCK, TOPICS, verify
from frazil.cli.demo_view import (
    Aggregate,
    Shown,
    aggregate,
    lake_facts,
    tier_facts,
    topic_facts,
    view,
)
from frazil.cli.measuring import percentile
from frazil.cli.output import note, size_text
from frazil.cli.session import Session, session_of
from frazil.config import Settings, load_settings, parse_assignments
from frazil.engine import AsyncEngine, open_async
from frazil.errors import CODES, CorruptionError, FrazilError, Overloaded, Unavailable
from frazil.fs import RealFileSystem
from frazil.lake import lake_missing

if TYPE_CHECKING:
    from frazil.model import Ack

__all__ = ["demo"]

WRITERS: Final = {MESSAGES: 16, READINGS: 16, STOCK: 4}
"""Tasks that publish to each topic."""
SHARES: Final = {MESSAGES: 0.7, READINGS: 0.2, STOCK: 0.1}
"""The topics' shares of the stream."""
RETENTION_BYTES: Final = 256 << 20
SEGMENT_BYTES: Final = "16MiB"
SIGNALS: Final = {"flush_offsets": 20_000, "flush_changes": 2_000, "flush_age_s": 10}
"""So low that files appear within seconds."""
LAKE_INTERVAL: Final = "5s"
VIEW_S: Final = 1.0
REFUSED_PAUSE_S: Final = 0.5


def demo(
    context: typer.Context,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0, help="Stop after so long.")
    ] = None,
    rate: Annotated[
        float, typer.Option("--rate", min=1, max=1_000_000, help="Records a second.")
    ] = 2000,
) -> None:
    """Publish a stream and watch it; stop it with Ctrl-C or kill it, then start it again.

    Each start first reads everything back and shows that no acked record is lost.
    """
    session = session_of(context)
    if asyncio.run(_Demo(_settings(session), rate=rate).run(seconds)):
        raise typer.Exit(CODES[CorruptionError].exit)


def _settings(session: Session) -> Settings:
    # Small segments and a short memory, so that all that moves can be watched.
    overrides = {
        "log.segment_bytes_max": SEGMENT_BYTES,
        "log.retention_check_s": 5.0,
        "log.ballast_bytes": 0,
        "memory.retention_s": "30s",
        # Tables where the extra is installed, with a short interval: rows are there in seconds.
        "lake.default": not lake_missing(),
        "lake.writer.flush_interval": LAKE_INTERVAL,
        **parse_assignments(session.assignments),
    }
    if session.data is not None:
        overrides["data_dir"] = session.data
    return load_settings(file=session.config, overrides=overrides)


@attrs.define
class _Second:
    """What happened since the last view."""

    acks: list[float] = attrs.Factory(list)
    refused: int = 0


@attrs.define
class _Demo:
    """One guided run."""

    settings: Settings
    rate: float
    ends: dict[str, int] = attrs.Factory(dict)
    """The offset behind the last acked record of each topic."""
    numbers: dict[tuple[str, int], int] = attrs.Factory(dict)
    """The next number of each writer."""
    now: _Second = attrs.Factory(_Second)
    total: int = 0
    failed: FrazilError | None = None
    stop: asyncio.Event = attrs.Factory(asyncio.Event)

    async def run(self, seconds: float | None) -> bool:
        """Run until stopped; return whether something was lost."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop_by_signal, number)
        async with open_async(self.settings) as engine:
            ledger = Ledger(RealFileSystem(), f"{engine.engine.paths.root}/demo-ledger.txt")
            try:
                for warning in engine.engine.warnings:
                    note(f"warning: {warning}")
                if await self._verify(engine, ledger):
                    return True
                if not self.stop.is_set():
                    await self._publish(engine, ledger, seconds)
            finally:
                ledger.close()
        if self.failed is not None:
            raise self.failed
        return False

    def _stop_by_signal(self, number: int) -> None:
        # The next signal ends the process at once: that is safe at any time, too.
        asyncio.get_running_loop().remove_signal_handler(number)
        self.stop.set()

    async def _verify(self, engine: AsyncEngine, ledger: Ledger) -> bool:
        """Show that what was acked before is there; return whether something is lost."""
        if not engine.topics("demo") and not ledger.ends:
            typer.echo(
                f"first run in {engine.engine.paths.root}: stop it with Ctrl-C, or kill -9 it, "
                "then start it again"
            )
            return False
        typer.echo("reading everything back …")
        found = await verify(engine, ledger.ends, self.stop)
        if found.stopped:
            typer.echo(f"stopped after {found.records:,} records were verified")
            return False
        self.ends, self.numbers = found.ends, found.numbers
        if found.problems:
            for problem in found.problems:
                note(f"error: {problem}")
            note("error: records were lost; `frazil doctor` says what happened")
            return True
        typer.echo(
            f"nothing lost: {found.records:,} records verified, "
            f"{found.acked:,} of them acked before the last stop; "
            f"{found.keys:,} keys have the rows that their changes make"
        )
        return False

    # -- now -------------------------------------------------------------------------------------

    async def _publish(self, engine: AsyncEngine, ledger: Ledger, seconds: float | None) -> None:
        await self._create_topics(engine)
        # The first query loads DuckDB; those that are shown do not.
        await asyncio.to_thread(_ask, engine)
        tasks = [
            asyncio.create_task(self._write(engine, name, writer, self.rate * share / count))
            for (name, share), count in zip(SHARES.items(), WRITERS.values(), strict=True)
            for writer in range(count)
        ]
        begin = time.perf_counter()
        end = None if seconds is None else begin + seconds
        with view() as show:
            seen = begin
            while not self.stop.is_set():
                left = VIEW_S if end is None else min(VIEW_S, end - time.perf_counter())
                if left <= 0:
                    break
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.stop.wait(), left)
                await asyncio.to_thread(ledger.note, dict(self.ends))
                try:
                    answer = await asyncio.to_thread(_ask, engine)
                except FrazilError as error:
                    self.failed = error
                    break
                moment, self.now, past = time.perf_counter(), _Second(), self.now
                show(self._shown(engine, past, moment - seen, answer))
                seen = moment
        self.stop.set()
        await asyncio.gather(*tasks)
        await asyncio.to_thread(ledger.note, dict(self.ends))
        typer.echo(
            f"{self.total:,} records acked in {time.perf_counter() - begin:.1f} s: "
            + ", ".join(f"{name} up to offset {end - 1}" for name, end in self.ends.items())
        )
        typer.echo("start it again: it shows that none of them is lost, and goes on")

    async def _create_topics(self, engine: AsyncEngine) -> None:
        options: dict[str, Any] = {"exist_ok": True, "retention_bytes": RETENTION_BYTES}
        options["signals"] = SIGNALS
        await engine.create_topic(MESSAGES, **options)
        await engine.create_topic(READINGS, COLUMNS, **options)
        await engine.create_topic(STOCK, CHANGE_COLUMNS, primary_key="id", **options)
        if self.settings.lake.default:
            for name in TOPICS:
                # A run before the extra was installed made them without.
                if not engine.describe(name)["lake"]:
                    await engine.alter_topic(name, lake=True)
            engine.lake.start()

    async def _write(self, engine: AsyncEngine, name: str, writer: int, rate: float) -> None:
        """Publish one record after another at a rate, each acked as fsynced before the next."""
        number = self.numbers.get((name, writer), 0)
        due = time.perf_counter() + writer / WRITERS[name] / rate
        while not self.stop.is_set():
            await asyncio.sleep(max(0.0, min(due - time.perf_counter(), 1.0)))
            started = time.perf_counter()
            if started < due:
                continue
            # After a pause the stream goes on at its rate; it does not catch up.
            due = max(due + 1 / rate, started)
            try:
                ack = await _send(engine, name, writer, number)
            except Overloaded:
                self.now.refused += 1
                await asyncio.sleep(REFUSED_PAUSE_S)
                continue
            except FrazilError as error:
                self.failed = error
                self.stop.set()
                return
            number += 1
            self.total += 1
            self.ends[name] = max(self.ends.get(name, 0), ack.offset + 1)
            self.now.acks.append(time.perf_counter() - started)

    def _shown(
        self, engine: AsyncEngine, past: _Second, seconds: float, answer: Aggregate | None
    ) -> Shown:
        stats = engine.stats()
        journal = stats["journals"][0]
        facts = {
            "records/s": f"{len(past.acks) / seconds:,.0f}",
            "ack p50": f"{percentile(past.acks, 0.5) * 1e3:.2f} ms",
            "ack p99": f"{percentile(past.acks, 0.99) * 1e3:.2f} ms",
            "acked": f"{self.total:,}",
            "fsyncs": f"{journal['syncs']:,}",
            "segment": f"{journal['segment']} ({journal['segments']} in all)",
            "stored": size_text(stats["bytes_stored"]),
            **({"refused": str(past.refused)} if past.refused else {}),
            **({} if stats["health"] == "ok" else {"health": stats["health"]}),
        }
        topics = [topic_facts(name, stats["per_topic"][name]) for name in TOPICS]
        return Shown(facts, {**tier_facts(stats), **lake_facts(stats)}, topics, answer)


async def _send(engine: AsyncEngine, name: str, writer: int, number: int) -> Ack:
    """Publish the record or the change of this number."""
    ack: Ack
    if name == MESSAGES:
        ack = await engine.topic(name).append(encode_message(writer, number), ack="fsynced")
    elif name == READINGS:
        ack = await engine.topic(name).append(encode_row(writer, number), ack="fsynced")
    else:
        change = change_of(writer, number)
        topic: Any = engine.engine.topic(name)
        if change.op == "upsert":
            ack = await asyncio.to_thread(topic.upsert, change.columns, ack="fsynced")
        elif change.op == "update":
            ack = await asyncio.to_thread(topic.update, change.key, change.columns, ack="fsynced")
        else:
            ack = await asyncio.to_thread(topic.delete, change.key, ack="fsynced")
    return ack


def _ask(engine: AsyncEngine) -> Aggregate | None:
    """Ask SQL; if it is refused or cancelled for want of memory, this look goes without."""
    try:
        return aggregate(engine.engine)
    except (Overloaded, Unavailable):
        return None
