"""Names of topics and tables: one-to-one, and none that an engine could take for another."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.errors import InvalidRequest
from frazil.lake.plan import TableName
from frazil.lake.table import check_lake_name, fold_name, table_of
from frazil.model import full_topic_name

NAMES = st.from_regex(r"[A-Za-z0-9_äßİıñ-]{1,12}", fullmatch=True).filter(
    lambda name: not name.endswith(("__log", "__rejects"))
)


@given(NAMES, NAMES)
def test_a_table_leads_back_to_its_topic(namespace, name):
    """The topic of a topic's table is that topic."""
    topic = full_topic_name(f"/{namespace}/{name}")
    assert f"/{'/'.join(table_of(topic))}" == topic


def test_a_bare_name_is_in_the_default_namespace():
    """A topic without namespace has its table in `default`."""
    assert table_of("orders") == TableName("default", "orders")


@pytest.mark.parametrize("name", ["orders__log", "orders__rejects", "orders__REJECTS", "x__Log"])
def test_names_of_side_tables_are_refused(name):
    """No topic with a lake has a name that a side table could have, in any case."""
    with pytest.raises(InvalidRequest, match="side table"):
        check_lake_name(f"/default/{name}")


@pytest.mark.parametrize(
    ("topic", "other"),
    [
        ("/a/orders", "/a/Orders"),
        ("/a/straße", "/a/STRASSE"),
        ("/a/\u0131", "/a/i"),
        ("/a/İ", "/a/i"),
        ("/a/x", "/A/x"),
        ("/a/x", "/A/y"),
    ],
)
def test_names_that_differ_in_case_only_are_refused(topic, other):
    """A topic or namespace that some engine takes for another one's is refused, which it names."""
    with pytest.raises(InvalidRequest, match="in case only") as caught:
        check_lake_name(topic, ["/b/fine", other])
    assert caught.value.details["other"] == other


def test_other_names_are_fine():
    """A topic is no conflict with itself, nor with one of that name in another namespace."""
    check_lake_name("/a/orders", ["/a/orders", "/b/Orders", "/a/orders2", "/a/order_s"])
    assert table_of("/a/orders") == TableName("a", "orders")


@pytest.mark.parametrize("namespace", ["information_schema", "PG_CATALOG"])
def test_namespaces_of_sql_are_refused(namespace):
    """A namespace that every SQL engine has already is refused."""
    with pytest.raises(InvalidRequest, match="reserved"):
        check_lake_name(f"/{namespace}/orders")


@given(st.text(max_size=8))
def test_folding_ends(name):
    """Folding a folded name changes nothing, and case does not matter."""
    assert fold_name(fold_name(name)) == fold_name(name)
    assert fold_name(name.upper()) == fold_name(name)
