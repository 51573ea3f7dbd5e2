"""What SQL is refused: every way that leads out of the topics is tried here."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest

from frazil.clock import SystemClock
from frazil.errors import FrazilError, InvalidRequest, NotFound
from frazil.query.guard import SCALARS, TABLE_FUNCTIONS, VOLATILE, Parser, check_statement
from frazil.query.pool import Pool, PoolLimits
from tests.unit.query.small_tiers import SmallTiers

SECRET = "the-secret-text"


@pytest.fixture(scope="module")
def tiers(tmp_path_factory):
    """Tiers with one topic, shared: nothing here may change them."""
    tiers = SmallTiers(tmp_path_factory.mktemp("tiers"))
    tiers.create("events", {"id": pa.int64(), "name": pa.string()}).append({"id": 1, "name": "n"})
    return tiers


@pytest.fixture(scope="module")
def engine(tiers):
    engine = tiers.engine()
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def secret(tmp_path_factory, tiers):
    """A file and a variable that no statement may show; one file lies in the tiers' directory."""
    directory = tmp_path_factory.mktemp("outside")
    outside = directory / "outside.csv"
    outside.write_text(f"a,b\n1,{SECRET}\n")
    inside = tiers.directory / "inside.csv"
    inside.write_text(f"a,b\n1,{SECRET}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FRAZIL_SECRET", SECRET)
        yield {"outside": outside, "inside": inside, "out": directory / "out.csv"}


STATEMENTS = """
COPY events TO '{out}'
COPY (SELECT 1) TO '{out}'
COPY events FROM '{inside}'
EXPORT DATABASE '{out}'
IMPORT DATABASE '{out}'
ATTACH '{out}' AS other
DETACH memory
USE memory
INSTALL httpfs
LOAD httpfs
FORCE INSTALL httpfs FROM community
SET threads = 1
SET enable_external_access = true
RESET lock_configuration
SET VARIABLE x = 1
PRAGMA version
PRAGMA database_list
PRAGMA enable_profiling
CALL pragma_version()
CHECKPOINT
VACUUM
BEGIN
COMMIT
PREPARE p AS SELECT 1
EXECUTE p
DEALLOCATE p
CREATE TABLE t (i int)
CREATE VIEW v AS SELECT 1
CREATE MACRO f(x) AS x
CREATE TEMP TABLE t AS SELECT * FROM events
CREATE SECRET s (TYPE s3)
DROP TABLE events
ALTER TABLE events ADD COLUMN x int
INSERT INTO events VALUES (1, 'x')
UPDATE events SET id = 1
DELETE FROM events
TRUNCATE events
MERGE INTO events USING events e ON true WHEN MATCHED THEN DELETE
WITH d AS (DELETE FROM events RETURNING *) SELECT * FROM d
EXPLAIN SELECT 1
EXPLAIN ANALYZE SELECT * FROM events
SELECT 1; SELECT 2
SELECT 1; COPY events TO '{out}'
SELECT 1 -- ;
; SELECT 2; SELECT 3
SELECT 1 /* ; */; DROP TABLE events
SELECT * FROM read_csv('{inside}')
SELECT * FROM read_csv_auto('{inside}')
SELECT * FROM read_text('{inside}')
SELECT * FROM read_blob('{inside}')
SELECT * FROM read_json('{inside}')
SELECT * FROM read_json_objects('{inside}')
SELECT * FROM read_ndjson('{inside}')
SELECT * FROM read_parquet('{inside}')
SELECT * FROM parquet_scan('{inside}')
SELECT * FROM parquet_metadata('{inside}')
SELECT * FROM parquet_schema('{inside}')
SELECT * FROM parquet_kv_metadata('{inside}')
SELECT * FROM read_duckdb('{inside}')
SELECT * FROM sniff_csv('{inside}')
SELECT * FROM glob('{inside}')
SELECT * FROM main.read_csv('{inside}')
SELECT * FROM "read_csv"('{inside}')
SELECT * FROM READ_CSV('{inside}')
SELECT (SELECT content FROM read_text('{inside}'))
SELECT 1 WHERE EXISTS (SELECT * FROM read_csv('{inside}'))
SELECT id IN (SELECT a FROM read_csv('{inside}')) FROM events
SELECT * FROM events, read_csv('{inside}')
SELECT * FROM events, LATERAL (SELECT * FROM read_text('{inside}')) l
SELECT * FROM events POSITIONAL JOIN read_csv('{inside}')
SELECT * FROM events UNION ALL SELECT a, b, a, b FROM read_csv('{inside}')
SELECT * FROM (PIVOT read_csv('{inside}') ON a IN (1) USING count(*))
SELECT * FROM (UNPIVOT read_csv('{inside}') ON a, b)
WITH t AS (SELECT * FROM read_csv('{inside}')) SELECT * FROM t
WITH RECURSIVE t AS (SELECT * FROM read_csv('{inside}') UNION ALL SELECT * FROM t) SELECT * FROM t
VALUES ((SELECT content FROM read_text('{inside}')))
FROM read_csv('{inside}')
SELECT * FROM '{inside}'
FROM '{inside}'
SELECT * FROM "{inside}"
SELECT * FROM '{outside}'
SELECT * FROM events, '{inside}'
SELECT * FROM (SELECT * FROM '{inside}')
TABLE "{inside}"
DESCRIBE '{inside}'
DESCRIBE SELECT * FROM '{inside}'
DESCRIBE TABLE '{inside}'
SUMMARIZE '{inside}'
SUMMARIZE SELECT * FROM read_csv('{inside}')
SHOW '{inside}'
SELECT * FROM (DESCRIBE '{inside}')
PIVOT '{inside}' ON a
PIVOT '{inside}' ON a IN (1) USING count(*)
SELECT * FROM (SUMMARIZE '{inside}')
SELECT * FROM query('SELECT * FROM read_csv(''{inside}'')')
SELECT * FROM query_table('{inside}')
SELECT * FROM query_table(['{inside}'])
SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))
SELECT json_serialize_sql('SELECT 1')
SELECT json_serialize_plan('SELECT * FROM read_csv(''{inside}'')')
SELECT json_deserialize_sql('{{}}')
SELECT getenv('FRAZIL_SECRET')
SELECT current_setting('temp_directory')
SELECT getvariable('x')
SELECT current_query()
SELECT pg_sleep(1)
SELECT sleep_ms(10)
SELECT nextval('s')
SELECT write_log('x')
SELECT pg_get_viewdef(1)
SELECT * FROM duckdb_settings()
SELECT * FROM duckdb_secrets()
SELECT * FROM duckdb_tables()
SELECT * FROM duckdb_views()
SELECT * FROM duckdb_functions()
SELECT * FROM duckdb_variables()
SELECT * FROM pragma_table_info('events')
SELECT * FROM pragma_show('events')
SELECT * FROM pragma_database_size()
SELECT * FROM which_secret('s3://x', 's3')
SELECT * FROM arrow_scan(1, 2, 3)
SELECT * FROM pandas_scan(1)
SELECT * FROM python_map_function(1)
SELECT * FROM seq_scan('events')
SELECT * FROM enable_logging()
SELECT * FROM force_checkpoint()
SELECT * FROM test_all_types()
SELECT * FROM summary(TABLE events)
SELECT * FROM histogram(events, id)
SELECT * FROM duckdb_settings
SELECT * FROM sqlite_master
SELECT * FROM pg_catalog.pg_class
SELECT * FROM pg_class
SELECT * FROM information_schema.views
SELECT * FROM memory.main.events
SELECT * FROM temp.events
SELECT * FROM system.main.duckdb_tables
SELECT * FROM secret
SELECT * FROM tiers
SELECT * FROM events AT (VERSION => 1)
SHOW VARIABLES
SHOW secret
WITH "{inside}" AS (SELECT 1) SELECT * FROM "{inside}"
WITH t AS (SELECT * FROM u), u AS (SELECT 1) SELECT * FROM t
SELECT * FROM events WHERE id = (SELECT count(*) FROM glob('{inside}'))
SELECT count(*) OVER (PARTITION BY (SELECT content FROM read_text('{inside}'))) FROM events
SELECT id FROM events GROUP BY id HAVING (SELECT content FROM read_text('{inside}')) IS NULL
SELECT id FROM events ORDER BY (SELECT content FROM read_text('{inside}'))
SELECT id FROM events LIMIT (SELECT count(*) FROM glob('{inside}'))
SELECT id FROM events QUALIFY (SELECT count(*) FROM glob('{inside}')) = 1
SELECT list_transform([1], x -> (SELECT content FROM read_text('{inside}')))
SELECT DISTINCT ON ((SELECT content FROM read_text('{inside}'))) id FROM events
SELECT * REPLACE ((SELECT content FROM read_text('{inside}')) AS id) FROM events
SELECT COLUMNS(c -> c = (SELECT content FROM read_text('{inside}'))) FROM events
SELECT count(*) FILTER (WHERE EXISTS (SELECT * FROM read_text('{inside}'))) FROM events
SELECT string_agg(name ORDER BY (SELECT content FROM read_text('{inside}'))) FROM events
SELECT * FROM range((SELECT count(*) FROM glob('{inside}')))
SELECT * FROM events e JOIN events f ON (SELECT count(*) FROM glob('{inside}')) = 1
SELECT CASE WHEN true THEN (SELECT content FROM read_text('{inside}')) END
""".strip().splitlines()


@pytest.mark.parametrize("sql", STATEMENTS)
def test_ways_out_of_the_topics_are_refused(engine, secret, sql):
    """No statement but a read of topics passes, and no answer or error tells a file's content."""
    text = sql.format(**secret)
    if text == "SELECT 1 -- ;":
        text += "\n; SELECT 2"
    with pytest.raises((InvalidRequest, NotFound)) as raised:
        engine.query(text)
    assert SECRET not in str(raised.value)
    assert not secret["out"].exists()
    with pytest.raises(FrazilError):
        engine.explain(text)


def test_empty_statements_are_refused(engine):
    """Nothing, blanks and comments alone are no statement."""
    for text in ("", "   ", "-- nothing", "/* nothing */", ";"):
        with pytest.raises(InvalidRequest, match="exactly one statement"):
            engine.query(text)


def test_text_of_any_kind_never_breaks_the_parser(engine):
    """Broken, huge and strange texts are refused as requests."""
    for text in ("SELECT '\x00", "SELECT '\ud800'", "(" * 5_000, "SELECT 1e999", "x" * 1_000_001):
        with pytest.raises(InvalidRequest):
            engine.query(text)
    with pytest.raises(InvalidRequest, match="must be text"):
        engine.query(["SELECT 1"])


def test_deep_expressions_are_answered_or_refused(engine):
    """A deeply nested expression is an answer or a refusal, never a crash."""
    assert engine.query("SELECT " + "1 + " * 300 + "1").rows() == [(301,)]
    with pytest.raises(FrazilError):
        engine.query("SELECT " + "1 + " * 50_000 + "1")


def test_variables_of_the_program_are_not_tables(engine, secret):
    """A table of the caller's frame cannot be named in SQL."""
    mine = pa.table({"a": [SECRET]})
    assert mine.num_rows == 1
    with pytest.raises(NotFound, match="no such topic"):
        engine.query("SELECT * FROM mine")


def test_texts_with_a_placeholder_are_refused(engine):
    """A statement that guessed the planner's own names cannot smuggle a relation in."""
    name = f"{engine._prefix}u0_"
    for sql in (f"SELECT '{name}' FROM events", f"SELECT id AS {name} FROM events"):
        with pytest.raises(InvalidRequest, match="cannot be rewritten"):
            engine.query(sql)
    with pytest.raises(InvalidRequest, match="cannot be rewritten"):
        engine.query(f"SELECT * FROM {name}")


def test_unknown_kinds_of_nodes_are_refused():
    """A node that a later parser might have is refused, wherever it stands."""
    parser = Parser()
    statement = parser.parse("SELECT id FROM events WHERE id = 1")
    check_statement(statement)
    statement["node"]["from_table"]["type"] = "COLUMN_DATA"
    with pytest.raises(InvalidRequest, match="COLUMN_DATA"):
        check_statement(statement)
    statement = parser.parse("SELECT id FROM events WHERE id = 1")
    statement["node"]["where_clause"]["left"]["class"] = "BOUND_REF"
    with pytest.raises(InvalidRequest, match="BOUND_REF"):
        check_statement(statement)
    parser.close()


REFUSED = """
can_cast_implicitly cast_to_type col_description combine constant_or_null create_sort_key
current_connection_id current_query current_query_id current_schemas current_setting
current_transaction_id currval finalize format_pg_type format_type get_block_size get_type
getvariable icu_sort_key in_search_path is_histogram_other_bin json_deserialize_sql
json_serialize_plan json_serialize_sql make_type map_to_pg_oid nextval obj_description
parse_duckdb_log_message remap_struct replace_type setseed shobj_description sleep_ms stats switch
timetz_byte_comparable txid_current unpivot_list variant_bytes_to_variant variant_normalize
variant_to_parquet_variant vector_type write_log
"""
REFUSED_PREFIXES = ("__internal_", "icu_collate_", "has_", "inet_", "pg_")
"""What of DuckDB's functions was looked at and not listed."""


def test_every_function_of_this_duckdb_was_looked_at():
    """The lists know every function of the installed version, and none that it does not have."""
    rows = duckdb.connect().execute(
        "SELECT DISTINCT lower(function_name), function_type, stability FROM duckdb_functions()"
    )
    kinds = {}
    for name, kind, stability in rows.fetchall():
        kinds.setdefault(kind, set()).add(name)
        if stability == "VOLATILE" and name in SCALARS:
            assert name in VOLATILE
    names = kinds["scalar"] | kinds["aggregate"] | kinds["macro"]
    refused = set(REFUSED.split())
    assert refused <= names
    assert not refused & SCALARS
    unknown = {name for name in names - SCALARS - refused if not name.startswith(REFUSED_PREFIXES)}
    assert not unknown
    assert SCALARS - names == {"unnest"}
    assert kinds["table"] >= TABLE_FUNCTIONS


@pytest.fixture(scope="module")
def locked(tiers):
    pool = Pool(PoolLimits(directories=(str(tiers.directory),), threads=1), SystemClock())
    yield pool
    pool.close()


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('{outside}')",
        "SELECT * FROM '{outside}'",
        "COPY (SELECT 1) TO '{out}'",
        "ATTACH '{out}'",
        "SET threads = 1",
        "SET enable_external_access = true",
        "RESET lock_configuration",
        "SET allowed_directories = ['/']",
        "INSTALL httpfs",
        "LOAD httpfs",
        "SELECT * FROM glob('/*')",
        "CREATE PERSISTENT SECRET s (TYPE http, BEARER_TOKEN 'x')",
        "SELECT * FROM here",
    ],
)
def test_the_instance_is_locked_even_without_the_guard(secret, locked, sql):
    """What reaches DuckDB unchecked still reads nothing outside of the given directories."""
    here = pa.table({"a": [1]})
    assert here.num_rows == 1
    lease = locked.enter("unchecked")
    locked.admit(lease)
    try:
        with pytest.raises(duckdb.Error):
            lease.connection.execute(sql.format(**secret)).fetchall()
        inside = lease.connection.execute(f"SELECT b FROM '{secret['inside']}'").fetchall()
        assert inside == [(SECRET,)]
    finally:
        locked.release(lease)
    assert not secret["out"].exists()
