"""Events that users declare as Pydantic models, and how data of one version become data of the next.

The moves of an upcast are `rename`, `default`, `drop`, `cast`, `values`, `scale`, `nest` and `lift`.
"""

from typing import TYPE_CHECKING

from millrace.late_imports import imported_late

if TYPE_CHECKING:
    from millrace.event_schemas.model import event
    from millrace.event_schemas.moves import cast, default, drop, lift, nest, rename, scale, values
    from millrace.event_schemas.registering import register_events, require_as_declared
    from millrace.event_store.new_events import new_event
else:
    # Spark's tasks move data of old versions without Pydantic
    __getattr__ = imported_late(
        __name__,
        {
            "event_schemas.model": "event",
            "event_schemas.moves": "cast default drop lift nest rename scale values",
            "event_schemas.registering": "register_events require_as_declared",
            "event_store.new_events": "new_event",
        },
    )

__all__ = [
    "cast", "default", "drop", "event", "lift", "nest", "new_event", "register_events", "rename", "require_as_declared", "scale", "values",
]  # fmt: skip
