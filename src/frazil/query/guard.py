"""The guard of statements: every node of the syntax tree must be of an allowed kind.

The guard refuses all unknown nodes and functions. It does not check table names: `tables.py`
replaces each of them by a placeholder and refuses unknown ones.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from frazil.errors import InvalidRequest
from frazil.query.pool import connect_locked

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

TABLE_FUNCTIONS: Final = frozenset(
    {"generate_series", "json_each", "json_tree", "range", "repeat", "repeat_row", "unnest"}
)

VOLATILE: Final = frozenset({"error", "gen_random_uuid", "random", "uuid", "uuidv4", "uuidv7"})
"""Functions whose value differs at each call; they are never evaluated before the query runs."""

_NAMES: Final = """
!__postfix !~~ !~~* % & && * ** + - ->> / // <-> << <=> <@ >> @ @> ^ ^@ | || ~ ~~ ~~* ~~~
abs acos acosh add age aggregate ago alias any_value apply approx_count_distinct approx_quantile
approx_top_k arbitrary arg_max arg_max_null arg_max_nulls_last arg_min arg_min_null
arg_min_nulls_last argmax argmin array_agg array_aggr array_aggregate array_append array_apply
array_cat array_concat array_contains array_cosine_distance array_cosine_similarity
array_cross_product array_distance array_distinct array_dot_product array_extract array_filter
array_grade_up array_has array_has_all array_has_any array_indexof array_inner_product
array_intersect array_length array_negative_dot_product array_negative_inner_product array_pop_back
array_pop_front array_position array_prepend array_push_back array_push_front array_reduce
array_resize array_reverse array_reverse_sort array_select array_slice array_sort array_to_json
array_to_string array_to_string_comma_default array_transform array_unique array_value array_where
array_zip ascii asin asinh atan atan2 atanh avg bar base64 bin bit_and bit_count bit_length bit_or
bit_position bit_xor bitstring bitstring_agg bool_and bool_or cardinality cbrt ceil ceiling century
char_length character_length chr concat concat_ws contains corr cos cosh cot count count_if
count_star countif covar_pop covar_samp cume_dist current_catalog current_database current_date
current_localtime current_localtimestamp current_role current_schema current_user
damerau_levenshtein date_add date_diff date_part date_sub date_trunc datediff datepart datesub
datetrunc day dayname dayofmonth dayofweek dayofyear days_in_month decade decode degrees dense_rank
divide editdist3 element_at encode ends_with entropy enum_code enum_first enum_last enum_range
enum_range_boundary epoch epoch_ms epoch_ns epoch_us equi_width_bins era error even exp factorial
favg fdiv fill filter first first_value flatten floor fmod format format_bytes
formatreadabledecimalsize formatreadablesize from_base64 from_binary from_hex from_json
from_json_strict fsum gamma gcd gen_random_uuid generate_series generate_subscripts geomean
geometric_mean get_bit get_current_time get_current_timestamp grade_up greatest
greatest_common_divisor group_concat hamming hash hex histogram histogram_exact hour ilike_escape
instr isfinite isinf isnan isodow isoyear jaccard jaro_similarity jaro_winkler_similarity json
json_array json_array_length json_contains json_exists json_extract json_extract_path
json_extract_path_text json_extract_string json_group_array json_group_object json_group_structure
json_keys json_merge_patch json_object json_pretty json_quote json_structure json_transform
json_transform_strict json_type json_valid json_value julian kahan_sum kurtosis kurtosis_pop lag
last last_day last_value lcase lcm lead least least_common_multiple left left_grapheme len length
length_grapheme levenshtein lgamma like_escape list list_aggr list_aggregate list_any_value
list_append list_apply list_approx_count_distinct list_avg list_bit_and list_bit_or list_bit_xor
list_bool_and list_bool_or list_cat list_concat list_contains list_cosine_distance
list_cosine_similarity list_count list_distance list_distinct list_dot_product list_element
list_entropy list_extract list_filter list_first list_grade_up list_has list_has_all list_has_any
list_histogram list_indexof list_inner_product list_intersect list_kurtosis list_kurtosis_pop
list_last list_mad list_max list_median list_min list_mode list_negative_dot_product
list_negative_inner_product list_pack list_position list_prepend list_product list_reduce
list_resize list_reverse list_reverse_sort list_select list_sem list_skewness list_slice list_sort
list_stddev_pop list_stddev_samp list_string_agg list_sum list_transform list_unique list_value
list_var_pop list_var_samp list_where list_zip listagg ln log log10 log2 lower lpad ltrim mad
make_date make_time make_timestamp make_timestamp_ms make_timestamp_ns make_timestamptz map
map_concat map_contains map_contains_entry map_contains_value map_entries map_extract
map_extract_value map_from_entries map_keys map_values max max_by md5 md5_number md5_number_lower
md5_number_upper mean median microsecond millennium millisecond min min_by minute mismatches mod
mode month monthname multiply nanosecond nextafter nfc_normalize normalized_interval
not_ilike_escape not_like_escape now nth_value ntile nullif octet_length ord parse_dirname
parse_dirpath parse_filename parse_formatted_bytes parse_path percent_rank pg_size_pretty pg_typeof
pi position pow power prefix printf product quantile quantile_cont quantile_disc quarter radians
random range rank rank_dense reduce regexp_escape regexp_extract regexp_extract_all
regexp_full_match regexp_matches regexp_replace regexp_split_to_array regexp_split_to_table
regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy repeat
replace reservoir_quantile reverse right right_grapheme round round_even roundbankers row row_number
row_to_json rpad rtrim second sem session_user set_bit sha1 sha256 sign signbit sin sinh skewness
split split_part sqrt st_asbinary st_astext st_aswkb st_aswkt st_crs st_geomfromwkb
st_intersects_extent st_setcrs starts_with stddev stddev_pop stddev_samp str_split str_split_regex
strftime string_agg string_split string_split_regex string_to_array strip_accents strlen strpos
strptime struct_concat struct_contains struct_extract struct_extract_at struct_has struct_indexof
struct_insert struct_keys struct_pack struct_position struct_update struct_values substr substring
substring_grapheme subtract suffix sum sum_no_overflow sumkahan tan tanh time_bucket timezone
timezone_hour timezone_minute to_base to_base64 to_binary to_centuries to_days to_decades to_hex
to_hours to_json to_microseconds to_millennia to_milliseconds to_minutes to_months to_quarters
to_seconds to_timestamp to_weeks to_years today transaction_timestamp translate trim trunc
try_strptime typeof ucase unbin unhex unicode union_extract union_tag union_value unnest upper
url_decode url_encode user uuid uuid_extract_timestamp uuid_extract_version uuidv4 uuidv7 var_pop
var_samp variance variant_extract variant_typeof version wavg week weekday weekofyear weighted_avg
xor year yearweek
"""

SCALARS: Final = frozenset(_NAMES.split())
"""Operators, scalar functions, aggregates, window functions and built-in macros, in lower case."""


Node = dict[str, Any]
"""One node of the syntax tree."""

SQL_CHARACTERS_MAX: Final = 1_000_000
_decode: Final = msgspec.json.Decoder(Node).decode
_encode: Final = msgspec.json.Encoder().encode


@functools.cache
def _instance() -> duckdb.DuckDBPyConnection:
    return connect_locked(threads=1, memory_bytes=256 << 20)


class Parser:
    """Parses statements; all methods may be called from any thread."""

    def __init__(self) -> None:
        self._instance = _instance()
        self._idle: deque[duckdb.DuckDBPyConnection] = deque()

    def parse(self, sql: str) -> Node:
        """Return the one statement of `sql`.

        Raises:
            InvalidRequest: if it is not exactly one read-only statement.
        """
        text = self._ask("SELECT json_serialize_sql($1::VARCHAR)", checked_text(sql))
        try:
            answer = _decode(text)
        except (msgspec.DecodeError, RecursionError) as error:
            raise InvalidRequest("statement cannot be parsed, make it simpler") from error
        if answer["error"]:
            raise _refusal(answer, sql)
        statements: list[Node] = answer["statements"]
        if len(statements) != 1:
            raise InvalidRequest("give exactly one statement", statements=len(statements))
        return statements[0]

    def text(self, statement: Node) -> str:
        """Return the SQL text of a statement's tree."""
        answer = _encode({"error": False, "statements": [statement]}).decode()
        return self._ask("SELECT json_deserialize_sql($1::JSON)", answer)

    def schema(self, query: str) -> pa.Schema:
        """Return the result columns of a query without tables, as DuckDB returns them."""
        connection = self._connection()
        try:
            return connection.execute(query).to_arrow_reader().schema
        finally:
            self._idle.append(connection)

    def close(self) -> None:
        """Close the connections; the parser cannot be used afterwards."""
        while self._idle:
            self._idle.pop().close()

    def _ask(self, question: str, value: str) -> str:
        import duckdb

        connection = self._connection()
        try:
            row = connection.execute(question, [value]).fetchone()
        except duckdb.Error as error:
            raise InvalidRequest("statement cannot be parsed", reason=str(error)) from error
        finally:
            self._idle.append(connection)
        assert row is not None
        return str(row[0])

    def _connection(self) -> duckdb.DuckDBPyConnection:
        try:
            return self._idle.pop()
        except IndexError:
            return self._instance.cursor()


def checked_text(sql: object) -> str:
    """Return the text of a statement.

    Raises:
        InvalidRequest: if it is no text, or too long.
    """
    if not isinstance(sql, str):
        raise InvalidRequest("sql must be text", got=type(sql).__name__)
    if len(sql) > SQL_CHARACTERS_MAX:
        raise InvalidRequest("sql is too long", characters_max=SQL_CHARACTERS_MAX)
    try:
        sql.encode()
    except UnicodeEncodeError:
        raise InvalidRequest("sql must be valid text") from None
    return sql


def _refusal(answer: Node, sql: str) -> InvalidRequest:
    message = str(answer.get("error_message", ""))
    if answer.get("error_type") != "not implemented":
        return InvalidRequest(message, position=answer.get("position", "?"))
    if "Only SELECT" not in message:
        return InvalidRequest(message)
    lowered = sql.lower()
    if lowered.lstrip().startswith("explain"):
        return InvalidRequest("give the statement without EXPLAIN to explain()")
    if "pivot" in lowered:
        return InvalidRequest("PIVOT must list its values: PIVOT t ON column IN (...) USING ...")
    return InvalidRequest(
        "only a statement that reads is allowed: SELECT, FROM, VALUES, WITH, DESCRIBE, SHOW TABLES"
        " or SUMMARIZE"
    )


EXPRESSIONS: Final = frozenset(
    {
        "BETWEEN",
        "CASE",
        "CAST",
        "COLLATE",
        "COLUMN_REF",
        "COMPARISON",
        "CONJUNCTION",
        "CONSTANT",
        "FUNCTION",
        "LAMBDA",
        "OPERATOR",
        "PARAMETER",
        "POSITIONAL_REFERENCE",
        "STAR",
        "SUBQUERY",
        "WINDOW",
    }
)
"""Classes of expressions."""

KINDS: Final = frozenset(
    {
        # Queries.
        "RECURSIVE_CTE_NODE",
        "SELECT_NODE",
        "SET_OPERATION_NODE",
        # Items of FROM.
        "BASE_TABLE",
        "EMPTY",
        "EXPRESSION_LIST",
        "JOIN",
        "PIVOT",
        "SHOW_REF",
        "SUBQUERY",
        "TABLE_FUNCTION",
        # Modifiers of queries, and sort orders.
        "DISTINCT_MODIFIER",
        "LIMIT_MODIFIER",
        "LIMIT_PERCENT_MODIFIER",
        "ORDER_MODIFIER",
        "ASCENDING",
        "DESCENDING",
        "ORDER_DEFAULT",
        # Types in casts and constants.
        "ARRAY_TYPE_INFO",
        "DECIMAL_TYPE_INFO",
        "LIST_TYPE_INFO",
        "STRING_TYPE_INFO",
        "STRUCT_TYPE_INFO",
        "UNBOUND_TYPE_INFO",
    }
)
"""Types of all other nodes."""


def nodes(tree: Any) -> Iterator[Node]:
    """Yield every node of a tree, a parent before its children."""
    todo: list[Any] = [tree]
    while todo:
        item = todo.pop()
        if isinstance(item, list):
            todo += item
        elif isinstance(item, dict):
            yield item
            todo += item.values()


def check_statement(statement: Node) -> None:
    """Refuse a statement with a node or a function outside of the allowed ones.

    Raises:
        InvalidRequest: naming what is not allowed.
    """
    table_functions: set[int] = set()
    for item in nodes(statement):
        expression, kind = item.get("class"), item.get("type")
        if id(item) in table_functions:
            continue
        if expression is not None:
            _check_expression(expression, item)
        elif isinstance(kind, str) and kind not in KINDS:
            raise InvalidRequest("this kind of SQL is not allowed", kind=kind)
        elif kind == "TABLE_FUNCTION":
            # The function returns a table; its arguments are ordinary expressions.
            _check_table_function(item["function"])
            table_functions.add(id(item["function"]))
        elif kind == "BASE_TABLE" and item.get("at_clause") is not None:
            table = item.get("table_name")
            raise InvalidRequest("use as_of_offset or as_of_time instead of AT", table=table)


def _check_expression(expression: object, item: Node) -> None:
    if expression not in EXPRESSIONS:
        raise InvalidRequest("this kind of SQL is not allowed", kind=expression)
    if expression not in {"FUNCTION", "WINDOW"}:
        return
    name = str(item["function_name"]).lower()
    if name not in SCALARS:
        raise InvalidRequest("this function is not allowed or does not exist", function=name)


def _check_table_function(function: Node) -> None:
    name = str(function.get("function_name", "")).lower()
    if function.get("class") != "FUNCTION" or name not in TABLE_FUNCTIONS:
        raise InvalidRequest(
            "this table function is not allowed or does not exist",
            function=name,
            allowed=", ".join(sorted(TABLE_FUNCTIONS)),
        )
