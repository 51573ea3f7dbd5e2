"""The embedded Iceberg REST catalog: rows in SQLite, metadata as raw JSON, one swap a commit.

`docs/internals/catalog.md` has its promises. `CatalogProcess` runs it as a child; nothing here
imports the web server before that child does.
"""

from __future__ import annotations

from frazil.lake.catalog.address import CatalogAddress, read_address
from frazil.lake.catalog.process import CatalogProcess

__all__ = ["CatalogAddress", "CatalogProcess", "read_address"]
