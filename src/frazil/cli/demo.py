"""`frazil demo`: the guided run. It publishes, can be killed at any time, and shows nothing lost."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from typing import TYPE_CHECKING, Annotated, Any, Final

import attrs
import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table

from frazil.cli.demo_ledger import Ledger
from frazil.cli.demo_records import COLUMNS, Tally, encode_message, encode_row
from frazil.cli.measuring import percentile
from frazil.cli.output import console, note, size_text
from frazil.cli.session import Session, session_of
from frazil.config import Settings, load_settings
from frazil.config_sources import parse_assignments
from frazil.engine import AsyncEngine, open_async
from frazil.errors import CODES, CorruptionError, FrazilError, Overloaded
from frazil.fs import RealFileSystem

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["demo"]

MESSAGES: Final = "/demo/messages"
READINGS: Final = "/demo/readings"
TOPICS: Final = (MESSAGES, READINGS)
WRITERS: Final = 16
"""Tasks that publish to each topic."""
RETENTION_BYTES: Final = 256 << 20
SEGMENT_BYTES: Final = "16MiB"
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
    # Small segments, so that rotation, sealing and retention can be watched.
    overrides = {
        "log.segment_bytes_max": SEGMENT_BYTES,
        "log.retention_check_s": 5.0,
        "log.ballast_bytes": 0,
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

    # -- what was before -------------------------------------------------------------------------

    async def _verify(self, engine: AsyncEngine, ledger: Ledger) -> bool:
        known = set(engine.topics("demo"))
        if not known and not ledger.ends:
            typer.echo(
                f"first run in {engine.engine.paths.root}: stop it with Ctrl-C, or kill -9 it, "
                "then start it again"
            )
            return False
        typer.echo("reading everything back …")
        problems: list[str] = []
        records = acked = 0
        for name in TOPICS:
            tally = Tally(acked_end=ledger.ends.get(name, 0))
            if name in known:
                await self._read_back(engine, name, tally)
            if self.stop.is_set():
                typer.echo(f"stopped after {records + tally.records:,} records were verified")
                return False
            tally.finish()
            problems += [f"{name}: {problem}" for problem in tally.problems]
            records += tally.records
            acked += tally.acked
            self.ends[name] = tally.offset_next
            for writer, number in tally.last.items():
                self.numbers[name, writer] = number + 1
        if problems:
            for problem in problems:
                note(f"error: {problem}")
            note("error: records were lost; `frazil doctor` says what happened")
            return True
        typer.echo(
            f"nothing lost: {records:,} records verified, "
            f"{acked:,} of them acked before the last stop"
        )
        return False

    async def _read_back(self, engine: AsyncEngine, name: str, tally: Tally) -> None:
        topic = engine.topic(name)
        tally.offset_next = topic.stats()["start"]
        try:
            async for batch in topic.read():
                tally.take(batch.data, batch.offset)
                if self.stop.is_set():
                    return
        except CorruptionError as error:
            tally.problems.append(str(error))

    # -- now -------------------------------------------------------------------------------------

    async def _publish(self, engine: AsyncEngine, ledger: Ledger, seconds: float | None) -> None:
        options: dict[str, Any] = {"exist_ok": True, "retention_bytes": RETENTION_BYTES}
        await engine.create_topic(MESSAGES, **options)
        await engine.create_topic(READINGS, COLUMNS, **options)
        # Four fifths of the stream are messages, the rest rows.
        shares = ((MESSAGES, 0.8), (READINGS, 0.2))
        tasks = [
            asyncio.create_task(self._write(engine, name, writer, self.rate * share / WRITERS))
            for name, share in shares
            for writer in range(WRITERS)
        ]
        begin = time.perf_counter()
        end = None if seconds is None else begin + seconds
        with _view() as show:
            seen = begin
            while not self.stop.is_set():
                left = VIEW_S if end is None else min(VIEW_S, end - time.perf_counter())
                if left <= 0:
                    break
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.stop.wait(), left)
                await asyncio.to_thread(ledger.note, dict(self.ends))
                moment, self.now, past = time.perf_counter(), _Second(), self.now
                show(self._facts(engine, past, moment - seen), self._heads(engine))
                seen = moment
        self.stop.set()
        await asyncio.gather(*tasks)
        await asyncio.to_thread(ledger.note, dict(self.ends))
        typer.echo(
            f"{self.total:,} records acked in {time.perf_counter() - begin:.1f} s: "
            + ", ".join(f"{name} up to offset {end - 1}" for name, end in self.ends.items())
        )
        typer.echo("start it again: it shows that none of them is lost, and goes on")

    async def _write(self, engine: AsyncEngine, name: str, writer: int, rate: float) -> None:
        """Publish one record after another at a rate, each acked as fsynced before the next."""
        topic = engine.topic(name)
        number = self.numbers.get((name, writer), 0)
        due = time.perf_counter() + writer / WRITERS / rate
        while not self.stop.is_set():
            await asyncio.sleep(max(0.0, min(due - time.perf_counter(), 1.0)))
            started = time.perf_counter()
            if started < due:
                continue
            # After a pause the stream goes on at its rate; it does not catch up.
            due = max(due + 1 / rate, started)
            try:
                if name == MESSAGES:
                    ack = await topic.append(encode_message(writer, number), ack="fsynced")
                else:
                    ack = await topic.append(encode_row(writer, number), ack="fsynced")
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

    def _facts(self, engine: AsyncEngine, past: _Second, seconds: float) -> dict[str, str]:
        stats = engine.stats()
        journal = stats["journals"][0]
        return {
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

    def _heads(self, engine: AsyncEngine) -> dict[str, str]:
        found = {name: engine.engine.topic_stats(name) for name in TOPICS}
        return {name: f"{each['start']:,} .. {each['head']:,}" for name, each in found.items()}


@contextlib.contextmanager
def _view() -> Iterator[Any]:
    """Give a function that shows facts: a live table on a terminal, a line each time elsewhere."""
    screen = console()
    if not screen.is_terminal:

        def show_line(facts: dict[str, str], heads: dict[str, str]) -> None:
            typer.echo("  ".join(f"{k}={v}" for k, v in {**facts, **heads}.items()))

        yield show_line
        return
    with Live(console=screen, auto_refresh=False, transient=True) as live:

        def show_table(facts: dict[str, str], heads: dict[str, str]) -> None:
            table = Table(*facts, title="frazil demo - Ctrl-C stops it", title_justify="left")
            table.add_row(*facts.values())
            topics = Table("topic", "offsets")
            for name, text in heads.items():
                topics.add_row(name, text)
            live.update(Group(table, topics), refresh=True)

        yield show_table
