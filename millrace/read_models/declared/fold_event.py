"""The arguments and the result of a fold's function: types that need no Spark."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

State = dict[str, Any]


class FoldEvent(NamedTuple):
    """An event as a fold sees it: nothing that a rebuild would have to read just for it; `data` is the JSON's value."""

    decider: str
    decider_id: str
    event: str
    event_version: int
    data: Any
    created_at: datetime
    offset: int


Function = Callable[[State | None, FoldEvent], State | None]
