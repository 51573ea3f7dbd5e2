"""Uploads while a journal is written to, rotated, sealed and freed, with a thread for each."""

from __future__ import annotations

import threading

from tests.unit.objects.objects_world import ObjectsWorld

TOPICS = (1, 2, 3)
RECORDS = 1_500


def write(world, published):
    """Append to all topics, rotate now and then, and free what is uploaded."""
    for number in range(RECORDS):
        for topic in TOPICS:
            payload = b"%d-%d" % (topic, number) + b"x" * (number % 50)
            world.log.plain(topic, payload)
            published[topic].append(payload)
        if number % 200 == 199:
            world.log.journal.rotate()
            while world.log.journal.seal_one():
                pass
            wait_and_free(world)


def wait_and_free(world):
    """Free the segment before the last one as soon as everything before the last is uploaded."""
    before, last = world.log.journal.segments[-2:]
    pause = threading.Event()
    for _ in range(60_000):
        ends = {topic: (before.summary(topic) or (0, 0))[1] for topic in TOPICS}
        if all(world.catalog.topic(topic).uploaded >= end for topic, end in ends.items()):
            world.log.free(last.id)
            return
        pause.wait(0.001)
    raise AssertionError(f"uploads do not come forward: {world.uploader.troubles}")


def test_uploads_run_next_to_the_journal():
    """Every record is in objects once, with a thread a topic, while segments come and go."""
    world = ObjectsWorld(object_bytes_max=20_000, index_bytes=1_000)
    for topic in TOPICS:
        world.log.create(topic, f"/default/t{topic}")
    published = {topic: [] for topic in TOPICS}
    done = threading.Event()
    failures = []

    def uploading(topic):
        try:
            while not done.is_set():
                world.uploader.cycle(topic)
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=uploading, args=(topic,)) for topic in TOPICS]
    for thread in threads:
        thread.start()
    try:
        write(world, published)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert not failures
    assert world.uploader.troubles == {}
    for topic in TOPICS:
        while world.uploader.cycle(topic):
            pass
        assert world.records(topic) == dict(enumerate(published[topic]))
        picture = world.catalog.topic(topic)
        ends = [0, *[found.end for found in picture.descriptors]]
        assert ends[:-1] == [found.first for found in picture.descriptors]
    assert world.uploader.objects_uploaded >= RECORDS // 200
    assert world.log.journal.segments[0].id > 1, "segments were freed meanwhile"
