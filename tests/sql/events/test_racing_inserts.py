"""Bare INSERTs that race on one event_id over two streams, or on one stream: the loser leaves nothing behind."""

from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.errors import SerializationFailure, UniqueViolation

from millrace.resources.event_store import EventStore
from millrace.resources.event_store.refusals import refusals
from tests.support.factories import Connect, append, rows, start, value, wait_blocked


def insert(connection: psycopg.Connection, decider_id: str, event_id: UUID, previous: UUID | None = None) -> None:
    """Insert an event without a function, skipping conflicts."""
    with refusals():
        connection.execute(
            """
            insert into event_store.events (event, event_id, decider, decider_id, data, command_id, previous_id)
            values ('placed', %s, 'order', %s, '{}', gen_random_uuid(), %s) on conflict do nothing
            """,
            (event_id, decider_id, previous),
        )


def heads_without_their_event(store: EventStore) -> list[tuple[object, ...]]:
    return rows(
        store.connection,
        """
        select s.decider_id, s.version from event_store.streams s
        where not exists (select from event_store.events e where e."offset" = s.last_offset and e.decider_id = s.decider_id)
        """,
    )


@pytest.mark.parametrize("stream", ["new", "known"])
@pytest.mark.parametrize("first", ["bare", "function"])
def test_the_loser_of_a_race_that_skips_conflicts_is_skipped(
    orders: EventStore, connect: Connect, stream: str, first: str
) -> None:
    previous = append(orders, "o-2").event_id if stream == "known" else None
    winner, loser = connect(autocommit=False), connect()
    event_id = uuid4()
    if first == "bare":
        insert(winner, "o-1", event_id)
    else:
        append(EventStore(winner), "o-1", event_id=event_id)
    losing = start(lambda: insert(loser, "o-2", event_id, previous))
    wait_blocked(orders.connection, loser.info.backend_pid)
    winner.commit()
    losing.result(20)
    assert heads_without_their_event(orders) == []
    assert len(orders.get_events("o-2", "order")) == (1 if previous else 0)
    insert(orders.connection, "o-2", uuid4(), previous)
    assert [event.version for event in orders.read_stream("order", "o-2")] == ([1, 2] if previous else [1])


def test_two_that_follow_the_same_event_meet_at_its_next_version(orders: EventStore, connect: Connect) -> None:
    previous = append(orders, "o-1").event_id
    winner, loser = connect(autocommit=False), connect()
    append(EventStore(winner), "o-1", previous)
    losing = start(
        lambda: loser.execute(
            """
            insert into event_store.events (event, event_id, decider, decider_id, data, command_id, previous_id)
            values ('placed', gen_random_uuid(), 'order', 'o-1', '{}', gen_random_uuid(), %s)
            """,
            (previous,),
        )
    )
    wait_blocked(orders.connection, loser.info.backend_pid)
    winner.commit()
    error = losing.exception(20)
    assert isinstance(error, UniqueViolation)
    assert error.diag.constraint_name == "events_stream_key"
    assert [event.version for event in orders.read_stream("order", "o-1")] == [1, 2]


def test_where_the_first_one_gives_up_the_second_one_is_stored(orders: EventStore, connect: Connect) -> None:
    first, second = connect(autocommit=False), connect()
    event_id = uuid4()
    insert(first, "o-1", event_id)
    waiting = start(lambda: insert(second, "o-2", event_id))
    wait_blocked(orders.connection, second.info.backend_pid)
    first.rollback()
    waiting.result(20)
    assert [event.event_id for event in orders.get_events("o-2", "order")] == [event_id]
    assert heads_without_their_event(orders) == []
    assert value(orders.connection, "select count(*) from event_store.events") == 1


def test_an_event_id_that_the_snapshot_does_not_see_is_a_serialization_failure(
    orders: EventStore, connect: Connect
) -> None:
    late = connect(autocommit=False)
    late.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    late.execute("select from event_store.events")
    stored = append(orders, "o-1")
    with pytest.raises(SerializationFailure):
        insert(late, "o-2", stored.event_id)
    late.rollback()
    assert heads_without_their_event(orders) == []
