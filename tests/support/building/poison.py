"""Streams that fail a read model's build: making, finding and correcting them."""

from collections.abc import Collection
from typing import cast

import psycopg

from millrace.event_store.platform import PlatformStore
from millrace.read_models.declared.declaration import ReadModel, read_model
from millrace.read_models.declared.words import count, field, stream_id, sum_
from tests.support.building.drains import Everything, all_events, close, rows_of, thing
from tests.support.building.oracle import expected_rows
from tests.support.building.read_models import DECIDER
from tests.support.factories import rows
from tests.support.sql_calls import BatchEvent, get_events


@read_model(view="amounts", deciders=[DECIDER], key=["owner"])
class Amounts:
    """One row per owner, with a sum that can overflow."""

    owner = field("data.owner")
    units = sum_("data.units")


@read_model(view="worths", deciders=[DECIDER], key=["thing_id"])
class Worths:
    """One row per thing, with a column that a single event can fail."""

    thing_id = stream_id()
    events = count()
    worth = sum_("data.worth", type="decimal(18,2)")


TOTALS, WORTHS = cast("list[ReadModel]", [Amounts, Worths])


def correct(connection: psycopg.Connection, decider_id: str, data: str) -> None:
    """Change an event behind the store's back: stands for anything that removes the cause of a failure."""
    connection.execute("alter table event_store.events disable trigger user")
    connection.execute("update event_store.events set data = %s where decider_id = %s", (data, decider_id))
    connection.execute("alter table event_store.events enable trigger user")


def at(dsn: str, seconds: int) -> str:
    return f"{dsn}&options=-c%20event_store.clock%3D2030-01-01T00:{seconds // 60:02}:{seconds % 60:02}Z"


def poison(decider_id: str) -> BatchEvent:
    return thing(decider_id, worth="a lot")


def locks(store: PlatformStore) -> list[tuple[str, int]]:
    return rows(store.connection, "select decider_id, attempts from event_store.stream_locks order by 1")


def assert_holds_all_but(store: PlatformStore, given_up: Collection[int], model: ReadModel = Everything) -> None:
    events = [event for event in all_events(store) if event.offset not in given_up]
    assert close(rows_of(store.connection, model)) == close(expected_rows(model, events))


def offsets_of(store: PlatformStore, decider_id: str) -> list[int]:
    return [event.offset for event in get_events(store, decider_id, DECIDER)]
