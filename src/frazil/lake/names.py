"""Names of topics as names of tables: one-to-one, and back.

A topic `/namespace/name` is the table `name` of the namespace `namespace`, letter for letter.
Names that differ in case only, and names of side tables, are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from frazil.errors import InvalidRequest
from frazil.lake.plan import TableName
from frazil.model import full_topic_name

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["check_lake_name", "fold_name", "table_of"]

SIDE_SUFFIXES: Final = ("__log", "__rejects")
RESERVED_NAMESPACES: Final = frozenset({"information_schema", "pg_catalog"})
"""Schemas that SQL engines have in every catalog."""


def table_of(topic: str) -> TableName:
    """Return the table of a topic."""
    _, namespace, name = full_topic_name(topic).split("/")
    return TableName(namespace, name)


def check_lake_name(topic: str, others: Iterable[str] = ()) -> None:
    """Refuse a topic whose table could be taken for another one; `others` have a lake already.

    Raises:
        InvalidRequest: with the name it collides with.
    """
    table = table_of(topic)
    name, namespace = fold_name(table.name), fold_name(table.namespace)
    suffix = next((each for each in SIDE_SUFFIXES if name.endswith(each)), None)
    if suffix is not None:
        raise InvalidRequest(
            "topic with a lake cannot have the name of a side table, choose another",
            topic=topic,
            suffix=suffix,
        )
    if namespace in RESERVED_NAMESPACES:
        raise InvalidRequest(
            "namespace is reserved by SQL engines, choose another for a topic with a lake",
            topic=topic,
            namespace=table.namespace,
        )
    for other in others:
        theirs = table_of(other)
        if theirs == table or fold_name(theirs.namespace) != namespace:
            continue
        if theirs.namespace != table.namespace:
            raise InvalidRequest(
                "namespace differs from that of another topic with a lake in case only",
                topic=topic,
                other=other,
            )
        if fold_name(theirs.name) == name:
            raise InvalidRequest(
                "topic differs from another one with a lake in case only, choose another name",
                topic=topic,
                other=other,
            )


def fold_name(name: str) -> str:
    """Return what names share that Spark, Java or DuckDB may take for one another.

    Beyond Unicode's case folding Java compares single characters, so that both Turkish letters, i
    without its dot and I with one, are an `i`.
    """
    return name.upper().casefold().replace("i\u0307", "i")
