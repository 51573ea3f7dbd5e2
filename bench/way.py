"""Count the way of one operation: the product's Python calls, files and functions, warm.

`python bench/way.py` counts `append`, `get`, `SELECT count(*)`, SendMessage with its delivery, and
Ack. Calls are counted by `sys.setprofile` in the caller's thread, the journal's and the event
loop's; threads that fold, flush and look after disks work by the clock and are left out. A figure
is the median of the repetitions. Counts do not depend on how fast the machine is.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BACKGROUND = ("frazil-fold", "frazil-move", "frazil-upkeep", "frazil-query-watch", "frazil-lake")
COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>")
"""Frames of their own in Python 3.11 alone."""
TOPIC = "/default/way"
REPEATS = 41
WARM_UP = 30
QUIET_S = 0.005
"""How long after a call to the broker its last steps are waited for; embedded calls end at once."""
BARS = {
    "append": (43, None),
    "get": (31, None),
    "count": (250, 25),
    "send and deliver": (300, 35),
    "ack": (150, None),
}
BEFORE = {
    "append": (48, 14),
    "get": (31, 10),
    "count": (209, 34),
    "send and deliver": (370, 55),
    "ack": (334, 51),
}
"""What this program counted at commit 7bf9929."""


class Counting:
    """Counts calls of functions of the product in all threads that are not in the background."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._calls: Counter[tuple[str, str]] = Counter()
        self._is_on = False
        self._files: dict[str, str | None] = {}

    def install(self) -> None:
        """Count in this thread and in those that are started from now on."""
        threading.setprofile(self._event)
        sys.setprofile(self._event)

    def _event(self, frame, event, _argument) -> None:
        if not self._is_on or event != "call":
            return
        path = frame.f_code.co_filename
        name = self._files.get(path, "")
        if name == "":
            inside = path.startswith(self._source) and "_pb2" not in path
            name = self._files[path] = path[len(self._source) + 1 :] if inside else None
        if name is None or frame.f_code.co_name in COMPREHENSIONS:
            return
        if not threading.current_thread().name.startswith(BACKGROUND):
            self._calls[name, frame.f_code.co_qualname] += 1

    def count(self, operation: Callable[[], None], quiet_s: float) -> Counter[tuple[str, str]]:
        """Return the calls of one operation, by file and function."""
        self._calls = Counter()
        self._is_on = True
        operation()
        time.sleep(quiet_s)
        self._is_on = False
        return self._calls


def ways(
    counting: Counting, operation: Callable[[], None], *, prepare=None, quiet_s: float = 0
) -> list[Counter]:
    """Return the counted calls of each repetition, after a warm-up."""
    found = []
    for number in range(WARM_UP + REPEATS):
        if prepare is not None:
            prepare()
            time.sleep(QUIET_S)
        calls = counting.count(operation, quiet_s)
        if number >= WARM_UP:
            found.append(calls)
    return found


def embedded(counting: Counting, directory: str) -> dict[str, list[Counter]]:
    import frazil

    with frazil.open(directory, **{"log.ballast_bytes": 0}) as db:
        events = db.create_topic("events")
        users = db.create_topic("users", {"id": "long", "name": "string"}, primary_key="id")
        for number in range(100):
            users.upsert({"id": number, "name": f"n{number}"})
        bodies = iter([b"%06d" % number * 40 for number in range(10_000)])
        numbers = iter(range(10_000))
        return {
            "append": ways(counting, lambda: events.append(next(bodies))),
            "get": ways(counting, lambda: users.get(next(numbers) % 100)),
            "count": ways(
                counting,
                lambda: db.query("SELECT count(*) FROM events").rows(),
                prepare=lambda: events.append(next(bodies)),
            ),
        }


class BrokerThread:
    """A broker on free ports whose event loop has a thread of its own."""

    def __init__(self, directory: str) -> None:
        from frazil.config import load_settings

        overrides = {
            "data_dir": directory,
            "log.ballast_bytes": 0,
            "serve.port": 0,
            "serve.admin_port": 0,
            "serve.http_port": 0,
        }
        self._settings = load_settings(environment={}, overrides=overrides)
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="loop")
        self._thread.start()
        self._is_ready.wait()

    async def _run(self) -> None:
        from frazil.serve.broker import Broker

        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        broker = Broker(self._settings)
        self.url = (await broker.start()).facts()["url"]
        self._is_ready.set()
        await self._stop.wait()
        await broker.stop()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


class Client:
    """One producer and one consumer by grpcio, whose threads run no Python."""

    def __init__(self, url: str) -> None:
        import grpc

        from frazil.serve.danube.proto import danube_pb2 as pb

        self._pb, self._url = pb, url
        self._channel = grpc.insecure_channel(url.removeprefix("http://"))
        producer = pb.ProducerRequest(
            request_id=1,
            producer_name="p",
            topic_name=TOPIC,
            dispatch_strategy=pb.DispatchStrategy.Reliable,
        )
        consumer = pb.ConsumerRequest(
            request_id=2, topic_name=TOPIC, consumer_name="c", subscription="s"
        )
        create = self._method("ProducerService/CreateProducer", pb.ProducerResponse)
        subscribe = self._method("ConsumerService/Subscribe", pb.ConsumerResponse)
        self._producer = create(producer, timeout=30).producer_id
        self._send = self._method("ProducerService/SendMessage", pb.MessageResponse)
        self._ack = self._method("ConsumerService/Ack", pb.AckResponse)
        receive = self._method(
            "ConsumerService/ReceiveMessages", pb.StreamMessage, kind=self._channel.unary_stream
        )
        consumer_id = subscribe(consumer, timeout=30).consumer_id
        self._stream = receive(pb.ReceiveRequest(request_id=3, consumer_id=consumer_id))
        self._numbers = iter(range(10, 1_000_000))
        self.delivered: list = []

    def _method(self, name, reply, *, kind=None):
        return (kind or self._channel.unary_unary)(
            f"/danube.{name}",
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=reply.FromString,
        )

    def publish(self) -> None:
        """Send one message and receive it."""
        number = next(self._numbers)
        address = {"topic_name": TOPIC, "broker_addr": self._url, "producer_id": self._producer}
        request = self._pb.StreamMessage(
            request_id=number,
            msg_id=self._pb.MsgID(**address),
            payload=b"%08d" % number * 16,
            publish_time=time.time_ns() // 1_000_000,
            producer_name="p",
            attributes={"number": str(number)},
        )
        sent = self._send.future(request, timeout=30)
        self.delivered.append(next(self._stream))
        sent.result()

    def ack(self) -> None:
        """Ack the message received last."""
        message = self.delivered.pop()
        request = self._pb.AckRequest(
            request_id=message.request_id, msg_id=message.msg_id, subscription_name="s"
        )
        self._ack(request, timeout=30)

    def close(self) -> None:
        self._stream.cancel()
        self._channel.close()


def served(counting: Counting, directory: str) -> dict[str, list[Counter]]:
    with (
        contextlib.closing(BrokerThread(directory)) as broker,
        contextlib.closing(Client(broker.url)) as client,
    ):
        # The ack of one record belongs to no other count.
        sends = ways(
            counting,
            client.publish,
            prepare=lambda: client.delivered and client.ack(),
            quiet_s=QUIET_S,
        )
        acks = ways(
            counting,
            client.ack,
            prepare=lambda: client.delivered or client.publish(),
            quiet_s=QUIET_S,
        )
    return {"send and deliver": sends, "ack": acks}


def rows_of(found: dict[str, list[Counter]]) -> list:
    from bench.harness import Row

    rows = []
    for name, each in found.items():
        calls = statistics.median(sum(one.values()) for one in each)
        files = statistics.median(len({file for file, _ in one}) for one in each)
        functions = statistics.median(len(one) for one in each)
        for what, value, before, bar in (
            ("calls", calls, BEFORE[name][0], BARS[name][0]),
            ("files", files, BEFORE[name][1], BARS[name][1]),
            ("functions", functions, None, None),
        ):
            rows.append(
                Row(
                    measure=f"{name}: {what}",
                    value=value,
                    unit=what,
                    baseline=before,
                    ratio=None if before is None else value / before,
                    bar="" if bar is None else f"<= {bar}",
                    holds=None if bar is None else value <= bar,
                )
            )
    return rows


def show(name: str, each: list[Counter]) -> None:
    """Print where the calls of a middling repetition go, most first."""
    one = sorted(each, key=lambda counter: sum(counter.values()))[len(each) // 2]
    print(f"\n== {name}: {sum(one.values())} calls")
    for (file, function), count in one.most_common():
        print(f"{count:5} {file}:{function}")


def main() -> int:
    sys.path[0] = ROOT
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["embedded", "served"])
    parser.add_argument("--show", action="store_true", help="list the functions of each way")
    parser.add_argument("--output", default=os.path.join(ROOT, "bench", "results", "way.json"))
    arguments = parser.parse_args()
    import frazil
    from bench import harness

    counting = Counting(os.path.dirname(os.path.abspath(frazil.__file__)))
    counting.install()
    found: dict[str, list[Counter]] = {}
    with harness.scratch(os.path.join(ROOT, "data-bench")) as directory:
        if arguments.only != "served":
            found |= embedded(counting, os.path.join(directory, "embedded"))
        if arguments.only != "embedded":
            found |= served(counting, os.path.join(directory, "served"))
        facts = harness.machine(directory)
    rows = rows_of(found)
    if arguments.show:
        for name, each in found.items():
            show(name, each)
    print(harness.table(rows))
    data = harness.document(
        rows,
        machine=facts,
        commit=harness.commit(),
        time=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        quick=False,
        loads=[os.getloadavg()[0]],
        failed=[],
    )
    harness.write_json(arguments.output, data)
    return 0


if __name__ == "__main__":
    sys.exit(main())
