"""The read models, one small file each, and the words to declare them with.

Belongs here: declarations. Not here: how they are built (`resources/read_models`, `resources/consumption/consumer.py`).

A file added to this folder is found by itself. `declared()` gives all read models by name.
"""

import importlib
import pkgutil

from millrace.resources.read_models.columns import (
    all_,
    any_,
    avg,
    count,
    field,
    first,
    last,
    max_,
    min_,
    set_union,
    stream_id,
    sum_,
)
from millrace.resources.read_models.declaration import InvalidReadModel, ReadModel, read_model
from millrace.resources.read_models.fold import Event, State, fold
from millrace.resources.read_models.recompute import recompute

__all__ = [
    "Event",
    "ReadModel",
    "State",
    "all_",
    "any_",
    "avg",
    "count",
    "declared",
    "field",
    "first",
    "fold",
    "last",
    "max_",
    "min_",
    "read_model",
    "recompute",
    "set_union",
    "stream_id",
    "sum_",
]


def declared() -> dict[str, ReadModel]:
    """Import every file of this folder and return the read models declared there, by name.

    Raises:
        InvalidReadModel: Two models have one name or one view.
    """
    models: dict[str, ReadModel] = {}
    package = importlib.import_module("millrace.examples.shop.read_models")
    for module in pkgutil.iter_modules(package.__path__):
        for value in vars(importlib.import_module(f"{package.__name__}.{module.name}")).values():
            if not isinstance(value, ReadModel) or models.get(value.name) is value:
                continue
            if value.name in models or value.view in {model.view for model in models.values()}:
                raise InvalidReadModel(
                    f"read model {value.name}: its name or its view {value.view!r} is declared twice"
                )
            models[value.name] = value
    return dict(sorted(models.items()))
