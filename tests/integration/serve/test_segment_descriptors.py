"""StorageService.ListSegmentDescriptors over the wire: the registered objects of a topic."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest

from frazil.serve.danube.proto.danube_pb2 import (
    ListSegmentDescriptorsRequest,
    ListSegmentDescriptorsResponse,
)
from tests.integration.serve.consuming_world import Caller, broker

pytestmark = pytest.mark.integration

TOPIC = "/default/t"
METHOD = "/danube.StorageService/ListSegmentDescriptors"


def upload(db, counts):
    """Publish records and upload them, an object for each count."""
    topic = db.create_topic(TOPIC, exist_ok=True)
    for count in counts:
        for number in range(count):
            topic.append(b"record %d" % number)
        db.objects.flush(TOPIC)


def run(path, scene):
    """Run a coroutine function with the engine of a broker and a call of it."""
    objects = {"objects.store": "fs", "objects.root": str(path / "objects")}

    async def main():
        async with broker(path / "data", **objects) as world, Caller(world.port) as caller:

            async def ask(topic, after=0):
                request = ListSegmentDescriptorsRequest(topic=topic, after_offset=after)
                return list(
                    (await caller.ask(METHOD, request, ListSegmentDescriptorsResponse)).segments
                )

            await scene(world.db, ask)

    asyncio.run(main())


def test_registered_objects_are_listed_in_order(tmp_path):
    """Each registered object is listed once, with offsets, size, etag and creation time."""
    before = int(time.time())

    async def scene(db, ask):
        upload(db, [5, 3, 2])
        found = await ask(TOPIC)
        registered = db.objects.catalog.topic(db.topic(TOPIC).runtime.state.id).descriptors
        assert [(each.start_offset, each.end_offset) for each in found] == [(0, 4), (5, 7), (8, 9)]
        for each, descriptor in zip(found, registered, strict=True):
            assert descriptor.key.endswith(f"/{each.segment_id}")
            (stored,) = tmp_path.glob(f"objects/**/{each.segment_id}")
            assert each.size == stored.stat().st_size
            assert each.etag == descriptor.etag
            assert before <= each.created_at <= time.time()

    run(tmp_path, scene)


def test_what_was_read_already_is_left_out(tmp_path):
    """Objects whose end offset is above `after_offset` are listed, and no others."""

    async def scene(db, ask):
        upload(db, [5, 3, 2])
        for after, starts in (
            *((0, [0, 5, 8]), (1, [0, 5, 8]), (3, [0, 5, 8])),
            *((4, [5, 8]), (7, [8]), (8, [8]), (9, []), (2**64 - 1, [])),
        ):
            assert [each.start_offset for each in await ask(TOPIC, after)] == starts

    run(tmp_path, scene)


def test_a_single_first_record_is_not_lost_to_who_has_read_nothing(tmp_path):
    """The object that holds offset 0 alone is listed after offset 0."""

    async def scene(db, ask):
        upload(db, [1])
        assert [(each.start_offset, each.end_offset) for each in await ask(TOPIC)] == [(0, 0)]

    run(tmp_path, scene)


def test_topics_without_objects_have_no_segments(tmp_path):
    """An unknown topic and one that was not uploaded yet answer with an empty list."""

    async def scene(db, ask):
        db.create_topic("/default/fresh")
        assert await ask("/default/fresh") == []
        assert await ask("/default/unknown") == []
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask("no name")
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT

    run(tmp_path, scene)


def test_parts_have_their_segments_and_the_whole_has_none(tmp_path):
    """Offsets are those of a part: a partitioned topic is asked for by its parts."""

    async def scene(db, ask):
        topic = db.create_topic("/default/wide", partitions=2)
        for part in topic.parts:
            for number in range(3):
                part.append(b"record %d" % number)
        db.objects.flush("/default/wide")
        for part in topic.parts:
            found = await ask(part.name)
            assert [(each.start_offset, each.end_offset) for each in found] == [(0, 2)]
        assert await ask("/default/wide") == []

    run(tmp_path, scene)
