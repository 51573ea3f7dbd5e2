"""The shell offers what fits at the cursor."""

from __future__ import annotations

import pytest

from frazil.cli.sql_words import quoted, table_name, words_for

TABLES = {
    "users": ["id", "name", "_offset"],
    "orders": ["id", "user_id", "Total Sum"],
    "shop.items": ["sku"],
}


def offers(before, after=""):
    return [word.text for word in words_for(before, TABLES, after=after)[1]]


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("select * from ", ["users", "orders", "shop.items"]),
        ("select * from u", ["users"]),
        ("select * from users join o", ["orders"]),
        ("select * from users, sh", ["shop.items"]),
        ("describe us", ["users"]),
        ("\\d or", ["orders"]),
        ("\\", ["\\d", "\\f", "\\h", "\\q", "\\timing"]),
        ("\\ti", ["\\timing"]),
        ("\\f j", ["json"]),
    ],
)
def test_tables_and_commands_are_offered_where_they_belong(before, expected):
    r"""Behind FROM, JOIN, DESCRIBE and \d topics are offered; behind a backslash the commands."""
    assert offers(before) == expected


def test_columns_are_those_of_the_statements_tables():
    """Columns of the tables in the statement come first, also of tables behind the cursor."""
    assert offers("select * from users where na") == ["name"]
    assert offers("select us", " from orders") == ["user_id", "using", "users"]
    assert "sku" not in offers("select s", " from users")
    assert "sku" in offers("select s")


def test_an_alias_has_the_columns_of_its_table():
    """Behind an alias and a dot the columns of its table are offered, quoted where needed."""
    found = offers("select * from users u join orders as o on u.id = o.")
    assert found == ["o.id", "o.user_id", 'o."Total Sum"']
    assert offers("select u.n", " from users u, orders o") == ["u.name"]
    assert offers("select * from users where users.n") == ["users.name"]


def test_a_list_behind_other_words_has_columns():
    """A comma in ORDER BY does not call for tables, one in FROM does."""
    assert "users" not in offers("select * from users order by id, na")
    assert offers("select * from users order by id, na") == ["name"]


def test_an_open_quote_is_completed():
    """A name that was begun with a quote is found; closed quotes before it do not matter."""
    typed, words = words_for('select "id", "To', TABLES, after=" from orders")
    assert typed == '"To'
    assert [word.text for word in words] == ['"Total Sum"']


def test_keywords_keep_the_typists_case():
    """`sel` becomes `select`, `SEL` becomes `SELECT`; nothing typed offers nothing."""
    assert offers("sel") == ["select"]
    assert offers("SEL") == ["SELECT"]
    assert offers("") == []
    assert offers("select ") == []


def test_names_are_quoted_where_sql_needs_it():
    """Plain names stay, others and keywords are quoted; the default namespace is left out."""
    assert quoted("plain_1") == "plain_1"
    assert quoted("1st") == '"1st"'
    assert quoted("order") == '"order"'
    assert quoted('a"b') == '"a""b"'
    assert table_name("/default/my-events") == '"my-events"'
    assert table_name("/shop/orders") == "shop.orders"
