"""The published client as producer and consumer: `danube_way.py URL TOPIC way|busy COUNT`.

`way` sends 200 records a second, `busy` has 16 in flight; the consumer acks each record. Prints p50
and p99 of publish to receive in ms, and the seconds between the last answer and the last record.
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

    async def send(number: int) -> None:
        stamp = time.monotonic_ns().to_bytes(8, "big")
        await producer.send(stamp + os.urandom(1016), {"number": str(number)})

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
    print(time.monotonic(), flush=True)


async def _consume(url: str, topic: str, count: int, child: subprocess.Popen[str]) -> None:
    from danube import DanubeClientBuilder, SubType

    client = await DanubeClientBuilder().service_url(url).build()
    builder = client.new_consumer().with_topic(topic).with_consumer_name("consumer-0")
    consumer = builder.with_subscription("s").with_subscription_type(SubType.EXCLUSIVE).build()
    await consumer.subscribe()
    queue = await consumer.receive()
    child.stdin.write("go\n")
    child.stdin.flush()
    times = []
    for _ in range(count):
        message = await asyncio.wait_for(queue.get(), 60)
        times.append(time.monotonic_ns() - int.from_bytes(message.payload[:8], "big"))
        await consumer.ack(message)
    last = time.monotonic()
    answered = float(await asyncio.to_thread(child.stdout.readline))
    times.sort()
    p50, p99 = times[count // 2] / 1e6, times[count * 99 // 100] / 1e6
    print(p50, p99, max(0.0, last - answered))
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
        asyncio.run(_consume(url, topic, count, child))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
