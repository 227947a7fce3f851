"""Importing a module at the first use of one of its names; each module that does so has its own table of names."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module


def imported_late(face: str, places: Mapping[str, str]) -> Callable[[str], object]:
    """Return the `__getattr__` of a module.

    Args:
        face: The module.
        places: The modules below `millrace` that have its names, and those names, separated by spaces.
    """
    module_of = {name: module for module, names in places.items() for name in names.split()}

    def load(name: str) -> object:
        if name not in module_of:
            raise AttributeError(f"module {face!r} has no attribute {name!r}")
        value = getattr(import_module(f"millrace.{module_of[name]}"), name)
        # the next use finds the name without this function
        setattr(sys.modules[face], name, value)
        return value

    return load
