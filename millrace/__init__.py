"""Millrace: a Postgres event store, exactly-once views, read models on Spark, run by Dagster.

    from millrace import EventStore, read_model, stream_id, count
    from millrace.errors import StreamClosed
    from millrace.testing import given

Public are the names here and in `millrace.errors`, `events`, `rows`, `capture`, `producers`, `tracing`, `spark`, `ops`
and `testing`; nothing else is. The names here are looked up when they are first used: every process imports this
package, and few need Spark or Dagster. Nothing inside imports from these modules.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from millrace.late_imports import imported_late

# a checkout on a file system without links, or an archive of one, has small text files in their place
if find_spec("millrace.resources") is None:
    raise ImportError(
        f"{__path__[0]} has no folder `resources`: it is a checkout without symbolic links, or was built from one."
        " Clone the repository on Linux with git, where `git config core.symlinks` is not false, and build the wheel there."
    )

if TYPE_CHECKING:
    from millrace.resources.capture.declaration import Capture
    from millrace.resources.commands.decider import Decider, Emit
    from millrace.resources.commands.handle import handle
    from millrace.resources.consumers.declaration import subscription
    from millrace.resources.errors import Conflict, MillraceError
    from millrace.resources.event_store import (
        NO_STREAM,
        AsyncEventStore,
        AsyncViews,
        Delivery,
        Event,
        EventStore,
        NewEvent,
        Views,
        on,
    )
    from millrace.resources.event_store.ids import uuid7
    from millrace.resources.producers import IdempotentProducer
    from millrace.resources.read_models.declared.computed import computed
    from millrace.resources.read_models.declared.declaration import lookup, read_model
    from millrace.resources.read_models.declared.fold import fold
    from millrace.resources.read_models.declared.indexes import index
    from millrace.resources.read_models.declared.rollups import rollup
    from millrace.resources.read_models.declared.words import (
        all_,
        any_,
        avg,
        bucket,
        carried,
        count,
        field,
        first,
        last,
        latest,
        max_,
        min_,
        row,
        sessions,
        set_union,
        stream_id,
        sum_,
        top,
    )
else:
    # unseen by a type checker, which would take every name for one of ours
    __getattr__ = imported_late(
        __name__,
        {
            "resources.capture.declaration": "Capture",
            "resources.commands.decider": "Decider Emit",
            "resources.commands.handle": "handle",
            "resources.consumers.declaration": "subscription",
            "resources.errors": "Conflict MillraceError",
            "resources.event_store": "AsyncEventStore AsyncViews Delivery Event EventStore NO_STREAM NewEvent Views on",
            "resources.event_store.ids": "uuid7",
            "resources.producers": "IdempotentProducer",
            "resources.read_models.declared.words": "all_ any_ avg bucket carried count field first last latest max_ min_"
            " row sessions set_union stream_id sum_ top",
            "resources.read_models.declared.computed": "computed",
            "resources.read_models.declared.declaration": "lookup read_model",
            "resources.read_models.declared.fold": "fold",
            "resources.read_models.declared.indexes": "index",
            "resources.read_models.declared.rollups": "rollup",
        },
    )

__all__ = [
    "NO_STREAM", "AsyncEventStore", "AsyncViews", "Capture", "Conflict", "Decider", "Delivery", "Emit", "Event", "EventStore",
    "IdempotentProducer", "MillraceError", "NewEvent", "Views", "all_", "any_", "avg", "bucket", "carried", "computed",
    "count", "field", "first", "fold", "handle", "index", "last", "latest", "lookup", "max_", "min_", "on", "read_model",
    "rollup", "row", "sessions", "set_union", "stream_id", "subscription", "sum_", "top", "uuid7",
]  # fmt: skip


def __dir__() -> list[str]:
    return [*globals(), *__all__]
