"""The words to declare read models with, and what Dagster shows of each (`asset`).

Declarations are in a user's own package, which takes the words from `millrace`; `millrace.assets.declarations` finds them.
"""

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
from millrace.resources.read_models.declaration import ReadModel, read_model
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
