"""A UUID has one stream: written in upper case it would be another one than Postgres' own text of it."""

from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from millrace.resources.errors import Malformed
from millrace.resources.event_store import EventStore
from millrace.resources.event_store.refusals import refusals
from tests.support.factories import append, new_event, refusal, value

LOWER = "f156a3c4-9bd8-11ed-a8fc-0242ac120002"
MIXED = "f156a3c4-9bd8-11ED-a8fc-0242ac120002"


def bare(store: EventStore, decider_id: str) -> None:
    with refusals():
        store.connection.execute(
            "insert into event_store.events (event, event_id, decider, decider_id, data, command_id)"
            " values ('placed', gen_random_uuid(), 'order', %s, '{}', gen_random_uuid())",
            (decider_id,),
        )


def copy(store: EventStore, decider_id: str) -> None:
    columns = "event, event_id, decider, decider_id, data, command_id"
    with (
        refusals(),
        store.connection.cursor() as cursor,
        cursor.copy(f"copy event_store.events ({columns}) from stdin".encode()) as rows,
    ):
        rows.write_row(("placed", uuid4(), "order", decider_id, Jsonb({}), uuid4()))


@pytest.mark.parametrize("decider_id", [LOWER.upper(), MIXED])
def test_an_event_of_a_uuid_in_upper_case_is_refused_on_every_way_in(orders: EventStore, decider_id: str) -> None:
    ways = (
        lambda: append(orders, decider_id),
        lambda: orders.append_events([new_event("o-1"), new_event(decider_id)]),
        lambda: bare(orders, decider_id),
        lambda: copy(orders, decider_id),
    )
    for way in ways:
        assert "lower case" in (refusal(Malformed, way).detail or "")
    assert value(orders.connection, "select count(*) from event_store.events") == 0


def test_the_text_and_the_uuid_are_one_stream(orders: EventStore) -> None:
    first = append(orders, LOWER)
    append(orders, str(UUID(LOWER.upper())), first.event_id)
    assert len(orders.get_events(UUID(LOWER), "order")) == 2
    assert len(orders.get_events(LOWER, "order")) == 2


@pytest.mark.parametrize("decider_id", ["ORDER-1", LOWER.upper() + "0", LOWER.upper()[:-1], "F" * 36, "É" * 18])
def test_other_text_may_have_any_case(orders: EventStore, decider_id: str) -> None:
    assert append(orders, decider_id).decider_id == decider_id


def test_a_connection_of_another_driver_is_refused_too(orders: EventStore) -> None:
    with pytest.raises(psycopg.Error) as refused:
        orders.connection.execute(
            "select event_store.append_event('placed', gen_random_uuid(), 'order', %s::text, '{}', gen_random_uuid(), null)",
            (LOWER.upper(),),
        )
    assert refused.value.sqlstate == "MR005"
