"""The published client as producer and consumer: `danube_way.py URL TOPIC MODE COUNT`.

In mode `way` 200 records a second are sent and each ack is awaited; in `busy` 16 sends and 16 acks
are in flight; in `turns` 16 sends are, and each ack is awaited before the next record is taken.
Prints the p50 and p99 of publish to receive in ms, the seconds from the producer's last answer to
the last record's ack, and the p50 of a send in ms.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

PER_SECOND = 200
IN_FLIGHT = 16


async def _produce(url: str, topic: str, mode: str, count: int) -> None:
    from danube import DanubeClientBuilder, DispatchStrategy

    client = await DanubeClientBuilder().service_url(url).build()
    builder = client.new_producer().with_topic(topic).with_name("producer-0")
    producer = builder.with_dispatch_strategy(DispatchStrategy.RELIABLE).build()
    await producer.create()
    print("made", flush=True)
    await asyncio.to_thread(sys.stdin.readline)

    times: list[float] = []

    async def send(number: int) -> None:
        payload = os.urandom(1016)
        begun = time.monotonic_ns()
        await producer.send(begun.to_bytes(8, "big") + payload, {"number": str(number)})
        times.append(time.monotonic_ns() - begun)

    begun = time.monotonic()
    if mode == "way":
        for number in range(count):
            await asyncio.sleep(max(0, begun + number / PER_SECOND - time.monotonic()))
            await send(number)
    else:
        numbers = iter(range(count))

        async def work() -> None:
            for number in numbers:
                await send(number)

        await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
    print(time.monotonic(), sorted(times)[count // 2] / 1e6, flush=True)


async def _consume(
    url: str, topic: str, mode: str, count: int, child: subprocess.Popen[str]
) -> None:
    from danube import DanubeClientBuilder, SubType

    client = await DanubeClientBuilder().service_url(url).build()
    builder = client.new_consumer().with_topic(topic).with_consumer_name("consumer-0")
    consumer = builder.with_subscription("s").with_subscription_type(SubType.EXCLUSIVE).build()
    await consumer.subscribe()
    queue = await consumer.receive()
    child.stdin.write("go\n")
    child.stdin.flush()
    times: list[float] = []
    numbers = iter(range(count))

    async def work() -> None:
        for _ in numbers:
            message = await asyncio.wait_for(queue.get(), 60)
            times.append(time.monotonic_ns() - int.from_bytes(message.payload[:8], "big"))
            await consumer.ack(message)

    await asyncio.gather(*(work() for _ in range(IN_FLIGHT if mode == "busy" else 1)))
    last = time.monotonic()
    answered, sent_ms = map(float, (await asyncio.to_thread(child.stdout.readline)).split())
    times.sort()
    p50, p99 = times[count // 2] / 1e6, times[count * 99 // 100] / 1e6
    print(p50, p99, max(0.0, last - answered), sent_ms)
    await consumer.close()


def main(url: str, topic: str, mode: str, count: int) -> None:
    if len(sys.argv) > 5:
        asyncio.run(_produce(url, topic, mode, count))
        return
    command = [sys.executable, os.path.abspath(__file__), *sys.argv[1:], "produce"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()
        asyncio.run(_consume(url, topic, mode, count, child))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
