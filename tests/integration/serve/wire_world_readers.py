"""A process of many plain readers: one connection, a stream and acks for each subscription.

Arguments: port, topic, the subscriptions' first name, how many, how many records each gets, and
whether they are acked. `ready` says that all streams are open; then a line of JSON says what came.
The published client has a connection and tasks for each; a hundred of them would be the load.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import grpc

from frazil.serve.danube.proto.danube_pb2 import (
    AckRequest,
    AckResponse,
    ConsumerRequest,
    ConsumerResponse,
    ReceiveRequest,
    StreamMessage,
)

SERVICE = "/danube.ConsumerService"
OPTIONS = [("grpc.max_receive_message_length", -1)]


def number_of(payload):
    """Return the number that a payload begins with."""
    return int.from_bytes(payload[:8], "big")


def payload_of(number, size):
    """Return a payload of so many bytes that begins with a number."""
    return number.to_bytes(8, "big") * (size // 8)


def is_whole(found, count, *, acks):
    """Whether offsets and numbers are those of so many records, each once, by rising offset.

    Records that are not acked come without offsets.
    """
    offsets = [offset for offset, _ in found]
    numbers = sorted(number for _, number in found)
    return numbers == list(range(count)) and (offsets == list(range(count)) or not acks)


class Methods:
    """The consumer's calls on a channel, of either kind."""

    def __init__(self, channel):
        def unary(name, request, reply):
            return channel.unary_unary(
                f"{SERVICE}/{name}", request.SerializeToString, reply.FromString
            )

        self.subscribe = unary("Subscribe", ConsumerRequest, ConsumerResponse)
        self.ack = unary("Ack", AckRequest, AckResponse)
        self.receive = channel.unary_stream(
            f"{SERVICE}/ReceiveMessages", ReceiveRequest.SerializeToString, StreamMessage.FromString
        )


async def read(methods, opened, *, topic, subscription, count, acks):
    """Subscribe, read and ack `count` records; return their offsets and numbers."""
    request = ConsumerRequest(topic_name=topic, consumer_name="c", subscription=subscription)
    made = await methods.subscribe(request)
    stream = methods.receive(ReceiveRequest(consumer_id=made.consumer_id))
    await stream.initial_metadata()
    opened.release()
    found = []
    async for message in stream:
        found.append((message.msg_id.topic_offset, number_of(message.payload)))
        if acks:
            await methods.ack(AckRequest(msg_id=message.msg_id, subscription_name=subscription))
        if len(found) == count:
            break
    stream.cancel()
    return found


async def run(port, topic, name, subscriptions, count, *, acks):
    """Read with all of them at once."""
    opened = asyncio.Semaphore(0)
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel:
        methods = Methods(channel)
        readers = [
            asyncio.create_task(
                read(
                    methods,
                    opened,
                    topic=topic,
                    subscription=f"{name}-{each}",
                    count=count,
                    acks=acks,
                )
            )
            for each in range(subscriptions)
        ]
        ready = asyncio.gather(*(opened.acquire() for _ in readers))
        await asyncio.wait([ready, *readers], return_when=asyncio.FIRST_COMPLETED)
        print("ready", flush=True)
        began = time.monotonic()
        results = await asyncio.gather(*readers)
    wrong = [found for found in results if not is_whole(found, count, acks=acks)]
    answer = {
        "readers": len(results),
        "whole": len(results) - len(wrong),
        "first_wrong": wrong[0][:20] if wrong else None,
        "seconds": time.monotonic() - began,
    }
    print(json.dumps(answer), flush=True)


def main():
    """Read as the arguments say."""
    port, topic, name, subscriptions, count, acks = sys.argv[1:]
    work = run(int(port), topic, name, int(subscriptions), int(count), acks=acks == "acks")
    asyncio.run(work)


if __name__ == "__main__":
    main()
