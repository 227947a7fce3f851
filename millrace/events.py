"""What a user writes about events: the moves of an upcast, which make data of one version those of the next."""

from millrace.resources.events.moves import (
    Move,
    cast,
    default,
    drop,
    lift,
    moved,
    nest,
    rename,
    scale,
    values,
)

__all__ = ["Move", "cast", "default", "drop", "lift", "moved", "nest", "rename", "scale", "values"]
