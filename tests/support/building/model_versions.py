"""Helpers for tests of versions of a model: changed declarations, a first version, relations in the database."""

from dataclasses import replace

import psycopg
import pytest

from millrace.event_store.platform import PlatformStore
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.declared.words import count, last, max_, min_
from millrace.read_models.stored.versions import ensure_version
from tests.support.building.drains import Everything, fill
from tests.support.factories import rows

EventsOf = replace(Everything, columns={"events": count(), "status": last("event")})
Latest = replace(Everything, columns={"status": last("event"), "seen": max_("created_at")})
Impossible = replace(Everything, columns={"least": min_("data.text", type="date")})
# has all columns of the other at the same places, and more after them
Wider = replace(EventsOf, columns={**EventsOf.columns, "seen": max_("created_at")})


def consume(store: PlatformStore, model: ReadModel, limit: int = 1_000_000) -> None:
    store.commit_batch(model.view, store.claim_batch(model.view, "test", limit))


def caught_up(store: PlatformStore, declared: ReadModel) -> ReadModel:
    """Make a version and let it consume all events."""
    model = ensure_version(store.connection, declared)
    consume(store, model)
    return model


def relations(connection: psycopg.Connection) -> set[str]:
    """Return the tables and views in the schema, except child tables and the tables that all models share."""
    found = rows(
        connection,
        "select relname from pg_class where relnamespace = 'read_models'::regnamespace"
        " and relkind in ('r', 'p', 'v') and not relispartition and relname not in ('as_of', 'declarations', 'diffs', 'feeds')",
    )
    return {name for (name,) in found}


def columns(connection: psycopg.Connection) -> list[str]:
    return [each.name for each in connection.execute("select * from read_models.everything limit 0").description or ()]


@pytest.fixture
def built(things: PlatformStore) -> ReadModel:
    """Make the first version; it serves and has consumed all events."""
    fill(things, 40)
    return caught_up(things, EventsOf)
