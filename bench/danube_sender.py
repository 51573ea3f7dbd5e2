"""One producer of the published client: `python bench/danube_sender.py URL TOPIC COUNT`.

Sends one message after the other and prints the seconds of each as JSON.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import time

PAYLOAD = os.urandom(1024)
WARM_UP = 200


def times(url: str, topic: str, count: int) -> list[float]:
    """Return the seconds that each send took, in a process of its own."""
    command = [sys.executable, os.path.abspath(__file__), url, topic, str(count)]
    ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(ended.stdout)


async def _send(url: str, topic: str, count: int) -> list[float]:
    from danube import DanubeClientBuilder, DispatchStrategy

    client = await DanubeClientBuilder().service_url(url).build()
    builder = client.new_producer().with_topic(topic).with_name("producer-0")
    producer = builder.with_dispatch_strategy(DispatchStrategy.RELIABLE).build()
    await producer.create()
    clock = time.perf_counter
    found: list[float] = []
    for number in range(WARM_UP + count):
        if number == WARM_UP:
            gc.collect()
            gc.freeze()
        begin = clock()
        await producer.send(PAYLOAD)
        found.append(clock() - begin)
    await producer.close()
    return found[WARM_UP:]


if __name__ == "__main__":
    json.dump(asyncio.run(_send(sys.argv[1], sys.argv[2], int(sys.argv[3]))), sys.stdout)
