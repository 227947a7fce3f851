"""Millrace: a Postgres event store, exactly-once views, read models on Spark, run by Dagster.

    from millrace import EventStore, read_model, stream_id, count
    from millrace.errors import StreamClosed
    from millrace.testing import given

Only these names are public: the ones here, in `millrace.errors`, `rows`, `tracing`, `reports`, `ops` and `testing`, and
the exports of the rooms `capture`, `commands`, `event_schemas`, `producers`, `archive`, `personal`, `read_models` and
`spark`. The names here are imported at their first use: every process imports this package, and few need Spark or
Dagster.

The three ideas, and their files:

    1  One writer gives committed events dense positions,       sql/functions/event_store/log/sequence_events.sql
       so that a reader never sees a gap that fills later.      sequencer.py
    2  A view's rows and its checkpoint commit together:        sql/functions/drain/commit_batch.sql
       each event takes effect exactly once.                    drain/commit.py
    3  Columns that merge: adding a batch of new events to      read_models/declared/columns.py
       the rows gives the same as a rebuild of all events.      read_models/stored/merge.py

The rooms, from top to bottom; each imports only those below it, as tests/test_architecture.py checks:

    platform_defs       what Dagster loads, the command line, the services of `millrace up`
    assets              Dagster's assets: event store, drains, read models, captures, events
    resources           Dagster's resources: Postgres and Spark
    testing.py          models, deciders and handlers in tests
    operations          the problems of a store: alerts, metrics, verification; forgetting people
    drain               claims, builds in Spark and commits: keeps read models fresh, and rebuilds them
    commands            deciders: from a command to its events; processes over several streams
    read_models         read models: declaration, columns, plans, tables, versions
    backup              backup of a store as of one moment, and restore
    archive             the log in files: writing, reading, purging archived events
    capture             changes of other databases as events
    importer            event logs in files as events
    reports.py          tables with one set of rows per day
    sequencer.py        the loop of the one writer
    scheduled_events.py the loop that appends what is due
    handlers            functions and services that are called for each event of a view
    producers           messages that are stored once, however often they are sent
    event_schemas       events as Pydantic models, and upcasts of old versions' data
    spark               sessions, the code that they ship, and the log as a source (log_source)
    event_store         the client of the SQL functions, its rows, its migrations
    postgres            the choice of the database, the embedded server, connections that notice silence
    personal            personal values: sealed, opened, and the folder of their keys
    errors.py           all public errors
    settings.py         the settings of a deployment
    patience.py         the lengths of waits, and retries
    processes.py        waiting for child processes
    redact.py           texts without passwords and without control characters
    signing.py          signatures of messages to receivers
    times.py            reading texts as times
    user_code.py        whether a call of a user's function runs its body

Only the first three know Dagster. In a room, `store.py` calls the SQL functions of the folder with its name, and
`declaration.py` is what a user writes.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from millrace.late_imports import imported_late

# without symbolic links a checkout, or an archive of it, has small text files in their place
if find_spec("millrace.resources") is None:
    raise ImportError(
        f"{__path__[0]} has no folder `resources`: it is a checkout without symbolic links, or was built from one."
        " Clone the repository on Linux with git, where `git config core.symlinks` is not false, and build the wheel there."
    )

if TYPE_CHECKING:
    from millrace.capture.declaration import Capture
    from millrace.commands.decider import Decider, Emit, Later
    from millrace.commands.handle import handle
    from millrace.errors import Conflict, MillraceError
    from millrace.event_store import (
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
    from millrace.event_store.ids import uuid7
    from millrace.handlers.declaration import subscription
    from millrace.producers import IdempotentProducer
    from millrace.read_models.declared.computed import computed
    from millrace.read_models.declared.declaration import lookup, read_model
    from millrace.read_models.declared.fold import fold
    from millrace.read_models.declared.indexes import index
    from millrace.read_models.declared.rollups import rollup
    from millrace.read_models.declared.words import (
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
    # hidden from type checkers, which would accept every name
    __getattr__ = imported_late(
        __name__,
        {
            "capture.declaration": "Capture",
            "commands.decider": "Decider Emit Later",
            "commands.handle": "handle",
            "handlers.declaration": "subscription",
            "errors": "Conflict MillraceError",
            "event_store": "AsyncEventStore AsyncViews Delivery Event EventStore NO_STREAM NewEvent Views on",
            "event_store.ids": "uuid7",
            "producers": "IdempotentProducer",
            "read_models.declared.words": "all_ any_ avg bucket carried count field first last latest max_ min_"
            " row sessions set_union stream_id sum_ top",
            "read_models.declared.computed": "computed",
            "read_models.declared.declaration": "lookup read_model",
            "read_models.declared.fold": "fold",
            "read_models.declared.indexes": "index",
            "read_models.declared.rollups": "rollup",
        },
    )

__all__ = [
    "NO_STREAM", "AsyncEventStore", "AsyncViews", "Capture", "Conflict", "Decider", "Delivery", "Emit", "Event", "EventStore",
    "IdempotentProducer", "Later", "MillraceError", "NewEvent", "Views", "all_", "any_", "avg", "bucket", "carried", "computed",
    "count", "field", "first", "fold", "handle", "index", "last", "latest", "lookup", "max_", "min_", "on", "read_model",
    "rollup", "row", "sessions", "set_union", "stream_id", "subscription", "sum_", "top", "uuid7",
]  # fmt: skip


def __dir__() -> list[str]:
    return [*globals(), *__all__]
