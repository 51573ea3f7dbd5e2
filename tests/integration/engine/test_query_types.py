"""SQL finds keys and values of every type, whichever way a statement is answered."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal

import pyarrow as pa
import pytest

from tests.integration.engine.opening import open_small

COUNT = 40
DAY = dt.datetime(2020, 1, 1)  # noqa: DTZ001 - columns without a zone take this
DAY_UTC = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
NUMBERS = range(COUNT)


def _random_bytes(size):
    source = random.Random(size)
    return [source.randbytes(size) for _ in NUMBERS]


def _days(first):
    return [first + dt.timedelta(days=number) for number in NUMBERS]


KEYS = {
    "int8": (pa.int8(), [number - 20 for number in NUMBERS]),
    "int16": (pa.int16(), [number - 20 for number in NUMBERS]),
    "int32": (pa.int32(), [number - 20 for number in NUMBERS]),
    "int64": (pa.int64(), [(number - 20) << 55 for number in NUMBERS]),
    "uint8": (pa.uint8(), [255 - number for number in NUMBERS]),
    "uint16": (pa.uint16(), [65_535 - number for number in NUMBERS]),
    "uint32": (pa.uint32(), [(1 << 32) - 1 - number for number in NUMBERS]),
    "string": (pa.string(), [f"{number}" * (number % 9 + 1) for number in NUMBERS]),
    "binary": (pa.binary(), _random_bytes(11)),
    "binary1": (pa.binary(1), [bytes([number]) for number in NUMBERS]),
    "binary4": (pa.binary(4), _random_bytes(4)),
    "binary16": (pa.binary(16), _random_bytes(16)),
    "decimal5": (pa.decimal128(5, 2), [Decimal(number) / 100 for number in NUMBERS]),
    "decimal10": (pa.decimal128(10, 2), [Decimal(number) / 100 for number in NUMBERS]),
    "decimal38": (pa.decimal128(38, 2), [Decimal(number) / 100 for number in NUMBERS]),
    "date": (pa.date32(), [day.date() for day in _days(DAY)]),
    "time": (pa.time64("us"), [dt.time(1, number) for number in NUMBERS]),
    **{f"timestamp_{u}": (pa.timestamp(u), _days(DAY)) for u in ("s", "ms", "us", "ns")},
    **{f"zoned_{u}": (pa.timestamp(u, "UTC"), _days(DAY_UTC)) for u in ("s", "ms", "us", "ns")},
}


@pytest.fixture
def db(tmp_path):
    with open_small(tmp_path) as engine:
        yield engine


def keyed(db, name, data_type, values):
    """Make a topic whose rows are in files alone."""
    topic = db.create_topic(name, {"k": data_type, "v": pa.int64()}, primary_key="k")
    topic.append_arrow(
        pa.table({"k": pa.array(values, data_type), "v": pa.array(range(len(values)), pa.int64())})
    )
    db.tiers.flush(name)
    db.tiers.evict(name)
    return topic


@pytest.mark.parametrize("kind", KEYS)
def test_equality_finds_keys_in_files(db, kind):
    """Each key in a file is found by equality, by DuckDB's own scan and by any other way."""
    data_type, values = KEYS[kind]
    keyed(db, "t", data_type, values)
    assert db.query('SELECT count(*) FROM "t$log"').rows() == [(COUNT,)]
    for statement in ('SELECT v FROM "t$log" WHERE k = ?', "SELECT v FROM t WHERE k = ?"):
        found = [db.query(statement, [value]).rows() for value in values]
        assert found == [[(number,)] for number in NUMBERS]


def test_fixed_binary_takes_the_index(db):
    """A key of fixed size is looked up in the index; one of another size is not there."""
    keyed(db, "t", pa.binary(4), _random_bytes(4))
    assert db.explain("SELECT v FROM t WHERE k = ?", [b"abcd"])["path"] == "index"
    assert db.query("SELECT v FROM t WHERE k = ?", [b"abc"]).rows() == []


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("ns", [1_001, -1_001, 1_999, 2_000])
def test_nanoseconds_with_zone_are_pruned_as_shown(db, ns, moved):
    """What is left out does not change what a condition on nanoseconds with a zone finds."""
    zoned = pa.timestamp("ns", "UTC")
    topic = db.create_topic("o", {"id": pa.int64(), "t": zoned}, primary_key="id")
    topic.append_arrow(pa.table({"id": pa.array([1]), "t": pa.array([ns], zoned)}))
    if moved:
        db.tiers.flush()
        db.tiers.evict()
    for us in (-2, -1, 0, 1, 2):
        moment = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=us)
        for sign in ("=", "<", "<=", ">", ">="):
            pruned = db.query(f"SELECT id FROM o WHERE t {sign} ?", [moment]).rows()
            whole = db.query(
                f"SELECT id FROM (SELECT id, t FROM o OFFSET 0) WHERE t {sign} ?", [moment]
            ).rows()
            assert pruned == whole, (sign, us)


@pytest.mark.parametrize("moved", [False, True])
def test_keys_of_nanoseconds_with_zone_are_found_as_shown(db, moved):
    """Equality finds every key that shows as the microsecond that it is compared with."""
    zoned = pa.timestamp("ns", "UTC")
    topic = db.create_topic("kn", {"k": zoned, "v": pa.int64()}, primary_key="k")
    topic.append_arrow(
        pa.table({"k": pa.array([1_001, 1_002, 2_000], zoned), "v": pa.array([1, 2, 3])})
    )
    if moved:
        db.tiers.flush()
        db.tiers.evict()
    moment = dt.datetime(1970, 1, 1, microsecond=1, tzinfo=dt.UTC)
    found = db.query("SELECT v FROM kn WHERE k = ? ORDER BY v", [moment]).rows()
    assert found == [(1,), (2,)]
