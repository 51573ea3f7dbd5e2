"""`python -m frazil.lake.catalog OPTIONS`: the catalog's process."""

from __future__ import annotations

import sys

from frazil.lake.catalog.server import main

sys.exit(main(sys.argv[1]))
