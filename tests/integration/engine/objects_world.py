"""An engine with an object store on files, and an independent look at what lies in the store."""

from __future__ import annotations

import shutil
from pathlib import Path

from frazil.clock import SystemClock
from frazil.config.objects import ObjectsSettings
from frazil.engine import Engine
from frazil.fs import RealFileSystem
from frazil.log import format as frame_format
from frazil.objects import format as object_format
from tests.integration.engine.opening import WAIT_S, rotate, small_settings, wait_until
from tests.support.objects_limits import set_objects_limits


def open_with_objects(path, *, objects=None, retry_s=0.5, ack_s=WAIT_S, **settings):
    """Open an engine in `path/data` whose objects go to `path/store`."""
    set_objects_limits(retry_s=retry_s, ack_s=ack_s)
    own = {
        "store": "fs",
        "root": str(path / "store"),
        "interval_s": 0.05,
        **(objects or {}),
    }
    whole = small_settings(path / "data", **settings)
    engine = Engine(
        whole.model_copy(update={"objects": ObjectsSettings(**own)}),
        file_system=RealFileSystem(),
        clock=SystemClock(),
    )
    # Tests publish many records one by one and wait for each.
    engine.objects.waiting_interval_s = 0.01
    return engine


def stored(path):
    """Return the objects of a store on files, by their keys."""
    root = Path(path) / "store"
    return {
        str(each.relative_to(root)): each.read_bytes()
        for each in sorted(root.rglob("*.frz"))
        if each.is_file()
    }


def registered(db, topic_id):
    """Return the descriptors of a topic, after checking that they follow one on the other."""
    picture = db.objects.catalog.topic(topic_id)
    at = picture.start
    for each in picture.descriptors:
        assert each.first == at
        at = each.end
    assert at == picture.uploaded
    return picture.descriptors


def frames_in(data, topic_id):
    """Return head and runs of a topic's frames in one object, each checked."""
    trailer = object_format.decode_trailer(data[-object_format.TRAILER_BYTES :], size=len(data))
    encoded = data[trailer.position : trailer.position + trailer.length]
    assert object_format.read_footer(encoded, trailer).topic == topic_id
    view = memoryview(data)
    at, end = object_format.HEADER_BYTES, trailer.position
    found = []
    while at < end:
        head = frame_format.read_head(view, at)
        assert frame_format.frame_fault(view, at, head) == ""
        runs = frame_format.decode_runs(view[at + 16 :], head.runs)
        found.append((head, runs))
        at += 16 + head.length
    return found


def uploaded_rows(db, topic):
    """Return a topic's records as its objects alone give them."""
    topic_id = topic.runtime.state.id
    source = db.objects.source
    held = source.range(topic_id)
    offset, rows = held.first, []
    while offset < held.end:
        piece = source.read(topic_id, offset=offset, bytes_max=1 << 20)
        for batch in piece.batches:
            assert batch.offset == offset + sum(gap.end - gap.first for gap in batch.gaps)
            rows += batch.records()
            offset = batch.offset_next
        assert piece.offset_next >= offset
        offset = piece.offset_next
    return rows


def take_away(tmp_path):
    """Put a file where the store should be."""
    shutil.move(tmp_path / "store", tmp_path / "aside")
    (tmp_path / "store").write_bytes(b"no directory")


def give_back(tmp_path):
    """Let the store work."""
    (tmp_path / "store").unlink()
    shutil.move(tmp_path / "aside", tmp_path / "store")


def forget_log(db, topics):
    """Flush everything and free the log behind it, so that files alone have it."""
    for topic in topics:
        topic.runtime.tiers.flush()
    rotate(db)
    db.tiers.release()
    db.upkeep.free()
    wait_until(lambda: all(topic.runtime.state.start > 0 for topic in topics))
