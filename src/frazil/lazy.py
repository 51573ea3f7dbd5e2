"""Names of a package that are imported on first use."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def lazy_names(package: str, modules: Mapping[str, tuple[str, ...]]) -> Callable[[str], object]:
    """Return a package's `__getattr__` that imports a name's module on first use.

    Child processes import one module of a package and must not load all of it.
    """
    homes = {name: module for module, names in modules.items() for name in names}

    def get(name: str) -> object:
        module = homes.get(name)
        if module is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(module), name)
        # The next use finds the name without this function.
        setattr(sys.modules[package], name, found)
        return found

    return get
