"""Statements end at their semicolon, wherever else one may stand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from frazil.cli.sql_text import Meta, explained, is_finished, parse_meta, split_statements

TEXTS = [
    ("select 1; select 2", ["select 1"], "select 2"),
    (";; select 1 ;", ["select 1"], ""),
    ("select ';', 'it''s; so';", ["select ';', 'it''s; so'"], ""),
    ('select ";" from "a"";b";', ['select ";" from "a"";b"'], ""),
    ("select 1 -- not here;\n, 2;", ["select 1 -- not here;\n, 2"], ""),
    ("select /* a; /* b; */ c; */ 1;", ["select /* a; /* b; */ c; */ 1"], ""),
    ("select $$a;b$$, $t$;$$;$t$;", ["select $$a;b$$, $t$;$$;$t$"], ""),
    (r"select e'a\';b', 1;", [r"select e'a\';b', 1"], ""),
    ("select name'x;y';", ["select name'x;y'"], ""),
    ("select $1 + $two; ", ["select $1 + $two"], ""),
    ("select a$b$c; select 1;", ["select a$b$c", "select 1"], ""),
    ("select 'open; select 2;", [], "select 'open; select 2;"),
    ('select "open;', [], 'select "open;'),
    ("select 1 /* open; ", [], "select 1 /* open;"),
    ("select $$open;$ ", [], "select $$open;$"),
    ("-- only a note\n; /* and one */ ; -- end", [], ""),
    ("", [], ""),
]


@pytest.mark.parametrize(("text", "statements", "rest"), TEXTS)
def test_semicolons_in_quotes_and_comments_end_nothing(text, statements, rest):
    """A text splits at the semicolons that stand in SQL itself; the unfinished end is the rest."""
    assert split_statements(text) == (statements, rest)


@given(st.text(alphabet="ab ;'\"$-/*\\\ne", max_size=30))
def test_any_text_is_split_without_loss(text):
    """Splitting never fails, and gives statements and a rest that stand in the text in order."""
    found = split_statements(text)
    at = 0
    for piece in [*found.statements, found.rest]:
        at = text.index(piece, at) + len(piece)
    assert split_statements(found.rest) == ([], found.rest)


@pytest.mark.parametrize(
    ("text", "finished"),
    [
        ("", True),
        ("   \n", True),
        ("\\d users", True),
        ("select 1", False),
        ("select 1;", True),
        ("select 1; -- done", True),
        ("select 1; select", False),
        ("select 'a;", False),
        ("-- a note", True),
        (";", True),
        ("/* open", False),
    ],
)
def test_enter_runs_what_is_whole(text, finished):
    """Enter runs commands, nothing and whole statements; else it begins another line."""
    assert is_finished(text) is finished


def test_commands_of_the_shell_are_told_from_sql():
    """A line with a backslash is a command with its argument; all else is SQL."""
    assert parse_meta("  \\d  users ; ") == Meta("d", "users")
    assert parse_meta("\\timing") == Meta("timing", "")
    assert parse_meta("select '\\d'") is None


@pytest.mark.parametrize(
    ("sql", "inner"),
    [
        ("explain select 1", "select 1"),
        ("EXPLAIN ANALYZE select 1", "select 1"),
        ("/* why */ -- so\n explain\nselect 1", "select 1"),
        ("select 1", None),
        ("explained", None),
        ("select explain from t", None),
        ("-- nothing", None),
    ],
)
def test_explain_is_taken_off(sql, inner):
    """What stands behind EXPLAIN is explained, behind comments too; other statements are not."""
    assert explained(sql) == inner
