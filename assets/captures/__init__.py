"""The captures, one small file each: tables of other databases whose changes become events.

Belongs here: declarations. Not here: the pipeline (`resources/capture/drain.py`), what runs it (`assets/captures/asset.py`).

A file added to this folder is found by itself. `declared()` gives all captures by name.
"""

import importlib
import pkgutil
from collections.abc import Iterable

from millrace.resources.capture.declaration import Capture, CapturedTable, InvalidCapture

__all__ = ["Capture", "CapturedTable", "declared"]


def declared() -> dict[str, Capture]:
    """Import every file of this folder and return the captures declared there, by name.

    Raises:
        InvalidCapture: Two captures have one name, or events of one decider.
    """
    captures: dict[str, Capture] = {}
    package = importlib.import_module("millrace.examples.shop.captures")
    for module in pkgutil.iter_modules(package.__path__):
        for value in vars(importlib.import_module(f"{package.__name__}.{module.name}")).values():
            if not isinstance(value, Capture) or captures.get(value.name) is value:
                continue
            if value.name in captures:
                raise InvalidCapture(f"capture {value.name} is declared twice")
            captures[value.name] = value
    deciders = [table.stream_decider for capture in captures.values() for table in capture.tables]
    if twice := {decider for decider in deciders if deciders.count(decider) > 1}:
        raise InvalidCapture(f"captures: the decider {min(twice)} is declared twice; give one of the tables a decider=")
    return dict(sorted(captures.items()))


def require_own_names(captures: Iterable[str], views: Iterable[str]) -> None:
    """Refuse a capture that is named as a view: sensors and runs are found by these names.

    Raises:
        InvalidCapture: One is.
    """
    # poll_views is the sensor of the views that nobody declared
    if taken := sorted({*captures} & {*views, "views"}):
        raise InvalidCapture(f"capture {taken[0]}: a view has this name; give the capture another one")
