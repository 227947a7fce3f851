"""One event: optimistic locking, retries, refusals, and every other way into events."""

from contextlib import suppress
from functools import partial
from typing import Any, LiteralString
from uuid import UUID, uuid4

import psycopg
import pytest

from millrace.resources.errors import (
    Conflict,
    EventIdReused,
    EventNotRegistered,
    ForbiddenChange,
    Malformed,
    MillraceError,
    StreamClosed,
)
from millrace.resources.event_store import EventStore
from millrace.resources.event_store.refusals import refusals
from tests.support.factories import (
    Connect,
    append,
    append_to,
    assert_rising,
    at_once,
    rows,
    set_clock,
    start,
    value,
    wait_blocked,
)

COLUMNS = [
    "event",
    "event_id",
    "event_version",
    "decider",
    "decider_id",
    "data",
    "command_id",
    "previous_id",
    "final",
    "created_at",
    "offset",
]
INSERT: LiteralString = """
    insert into event_store.events (event, event_id, decider, decider_id, data, command_id, previous_id)
    values
      ('placed', %(a)s, 'order', 'o-1', '{}', %(a)s, null),
      ('paid', %(b)s, 'order', 'o-1', '{}', %(a)s, %(a)s),
      ('placed', %(c)s, 'order', 'o-2', '{}', %(a)s, null)
"""


def heads(store: EventStore) -> list[tuple[Any, ...]]:
    return rows(store.connection, "select * from event_store.streams order by decider_id, decider")


def test_the_first_event_is_returned_as_it_is_stored(orders: EventStore) -> None:
    event_id, command_id = uuid4(), uuid4()
    stored = append(orders, "o-1", event_id=event_id, command_id=command_id, data={"total": "9.90"})
    assert (stored.event_id, stored.command_id, stored.data) == (event_id, command_id, {"total": "9.90"})
    assert (stored.event_version, stored.previous_id, stored.final) == (1, None, False)
    assert orders.get_events("o-1", "order") == [stored]
    assert heads(orders) == [("order", "o-1", event_id, stored.offset, 1, False)]


# A1


@pytest.mark.parametrize("first_commits", [True, False])
def test_of_two_concurrent_first_events_exactly_one_commits(
    orders: EventStore, connect: Connect, first_commits: bool
) -> None:
    first, second = connect(autocommit=False), connect()
    append(EventStore(first), "o-1")
    late = start(lambda: append(EventStore(second), "o-1", event="paid"))
    wait_blocked(orders.connection, second.info.backend_pid)
    if first_commits:
        first.commit()
        with pytest.raises(Conflict):
            late.result(20)
    else:
        first.rollback()
        assert late.result(20).event == "paid"
    assert len(orders.get_events("o-1", "order")) == 1


@pytest.mark.parametrize("length", [0, 1])
def test_of_many_writers_with_one_previous_id_exactly_one_commits(
    orders: EventStore, connect: Connect, length: int
) -> None:
    previous = append(orders, "o-1").event_id if length else None
    writers = [EventStore(connect()) for _ in range(6)]
    results = at_once([partial(append, writer, "o-1", previous) for writer in writers])
    errors = [result.exception() for result in results if result.exception()]
    assert len(errors) == 5
    assert all(type(error) is Conflict for error in errors)
    assert len(orders.get_events("o-1", "order")) == length + 1


# A2


def test_a_null_previous_id_for_a_stream_that_exists_conflicts(orders: EventStore) -> None:
    first = append(orders, "o-1")
    with pytest.raises(Conflict, match="previous_id can only be null for the first decider event") as refused:
        append(orders, "o-1")
    assert f"last event_id {first.event_id} at version 1" in str(refused.value.detail)


def test_a_stale_previous_id_conflicts_and_names_the_head(orders: EventStore) -> None:
    first = append(orders, "o-1")
    second = append(orders, "o-1", first.event_id)
    with pytest.raises(Conflict, match="previous_id must be the last event of the decider stream") as refused:
        append(orders, "o-1", first.event_id)
    assert f"last event_id {second.event_id} at version 2" in str(refused.value.detail)


@pytest.mark.parametrize("stream", ["o-1", "o-new"])
def test_a_previous_id_of_another_stream_conflicts(orders: EventStore, stream: str) -> None:
    append(orders, "o-1")
    foreign = append(orders, "o-2").event_id
    before = heads(orders)
    with pytest.raises(Conflict, match="previous_id must be in the same decider") as refused:
        append(orders, stream, foreign)
    assert ("no event" in str(refused.value.detail)) is (stream == "o-new")
    assert heads(orders) == before


# A3


@pytest.mark.parametrize("later", ["nothing", "another event", "the final event"])
def test_a_retry_returns_the_stored_row_and_changes_nothing(orders: EventStore, later: str) -> None:
    event_id, command_id = uuid4(), uuid4()
    stored = append(orders, "o-1", event_id=event_id, command_id=command_id)
    if later != "nothing":
        append(orders, "o-1", event_id, final=later == "the final event")
    before = heads(orders)
    assert append(orders, "o-1", event_id=event_id, command_id=command_id) == stored
    assert heads(orders) == before


def test_two_identical_appends_at_once_both_return_the_stored_row(orders: EventStore, connect: Connect) -> None:
    event_id, command_id = uuid4(), uuid4()
    first, second = connect(autocommit=False), connect()
    stored = append(EventStore(first), "o-1", event_id=event_id, command_id=command_id)
    retry = start(lambda: append(EventStore(second), "o-1", event_id=event_id, command_id=command_id))
    wait_blocked(orders.connection, second.info.backend_pid)
    first.commit()
    assert retry.result(20) == stored
    assert orders.get_events("o-1", "order") == [stored]


@pytest.mark.parametrize(
    "other",
    [
        {"data": {"n": 2}},
        {"event": "paid"},
        {"decider": "invoice"},
        {"decider_id": "o-2"},
        {"final": True},
        {"command_id": UUID(int=2)},
        {"previous": UUID(int=3)},
    ],
    ids=lambda other: next(iter(other)),
)
def test_an_event_id_with_other_content_is_refused_and_nothing_changes(
    orders: EventStore, other: dict[str, Any]
) -> None:
    same: dict[str, Any] = {"decider_id": "o-1", "event_id": UUID(int=1), "command_id": UUID(int=1)}
    append(orders, **same)
    before = heads(orders)
    with pytest.raises(EventIdReused, match="other content") as refused:
        append(orders, **{**same, **other})
    assert "stream (order, o-1)" in str(refused.value.detail)
    assert heads(orders) == before
    assert value(orders.connection, "select count(*) from event_store.events") == 1


@pytest.mark.parametrize("first_commits", [True, False])
def test_an_event_id_in_two_streams_at_once_is_stored_in_one(
    orders: EventStore, connect: Connect, first_commits: bool
) -> None:
    event_id = uuid4()
    first, second = connect(autocommit=False), connect()
    append(EventStore(first), "o-1", event_id=event_id)
    reuse = start(lambda: append(EventStore(second), "o-2", event_id=event_id))
    wait_blocked(orders.connection, second.info.backend_pid)
    if first_commits:
        first.commit()
        with pytest.raises(EventIdReused):
            reuse.result(20)
        assert [head[1] for head in heads(orders)] == ["o-1"]
    else:
        first.rollback()
        assert reuse.result(20).decider_id == "o-2"
        assert [head[1] for head in heads(orders)] == ["o-2"]


# A4


def test_an_unregistered_event_is_refused_and_the_known_ones_are_named(orders: EventStore) -> None:
    orders.register_decider_event("order", "lost", "version two", 2)
    for event, decider in (("lost", "order"), ("placed", "parcel")):
        with pytest.raises(EventNotRegistered) as refused:
            append(orders, event=event, decider=decider)
        known = "lost version 2, paid version 1" if decider == "order" else "it has: none"
        assert known in str(refused.value.detail)
    assert heads(orders) == []


@pytest.mark.parametrize("argument", [0, 1, 2, 3, 4, 5, 7, 8])
def test_a_null_argument_is_refused_and_nothing_is_stored(orders: EventStore, argument: int) -> None:
    arguments: list[object] = ["placed", uuid4(), "order", "o-1", "{}", uuid4(), None, 1, False]
    arguments[argument] = None
    with pytest.raises(Malformed, match="is null"), refusals():
        orders.connection.execute(
            "select event_store.append_event(%s, %s, %s, %s::text, %s, %s, %s, %s, %s)", arguments
        )
    assert heads(orders) == []


@pytest.mark.parametrize(
    "bad",
    [
        {"decider_id": ""},
        {"decider_id": "x" * 1025},
        {"decider_id": "ü" * 513},
        {"decider_id": "a\0b"},
        {"event": "a\0b"},
        {"data": {"text": "a\0b"}},
        {"data": {"number": float("nan")}},
        {"data": {"text": "x" * (1 << 20)}},
    ],
    ids=["empty id", "long id", "long unicode id", "NUL in id", "NUL in event", "NUL in data", "NaN", "large"],
)
def test_a_malformed_argument_is_refused_and_nothing_is_stored(orders: EventStore, bad: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        append(orders, **bad)
    assert heads(orders) == []


def test_the_payload_limit_can_be_set(orders: EventStore) -> None:
    orders.connection.execute("set event_store.max_data_bytes = 100")
    append(orders, "o-1", data={"text": "x" * 50})
    with pytest.raises(Malformed, match=r"event_store\.max_data_bytes allows 100"):
        append(orders, "o-2", data={"text": "x" * 100})


@pytest.mark.parametrize("decider_id", ["x" * 1024, "ü" * 512, "  ", "日本 🌊 'quo\"ted'", "a/b,c\\d\n%s"])
def test_any_text_of_at_most_1024_bytes_is_an_id(orders: EventStore, decider_id: str) -> None:
    stored = append(orders, decider_id, data={"näme": "🌊", "nested": [None, {"a": 1.5}]})
    assert orders.get_events(decider_id, "order") == [stored]
    assert (stored.decider_id, stored.data["näme"], stored.data["nested"]) == (decider_id, "🌊", [None, {"a": 1.5}])


# A5


def test_a_final_event_closes_the_stream(orders: EventStore) -> None:
    first = append(orders, "o-1")
    last = append(orders, "o-1", first.event_id, event="shipped", final=True)
    before = heads(orders)
    for previous in (last.event_id, first.event_id, None):
        with pytest.raises(StreamClosed, match=r"is already final\. the stream is closed") as refused:
            append(orders, "o-1", previous)
        assert f"closed by event_id {last.event_id} at version 2" in str(refused.value.detail)
    assert heads(orders) == before
    append(orders, "o-1", decider="invoice")


@pytest.mark.parametrize("closed", [False, True])
def test_what_an_append_reads_does_not_grow_with_the_stream(orders: EventStore, connect: Connect, closed: bool) -> None:
    reads = []
    for decider_id, length in (("short", 1), ("long", 300)):
        last = append_to(orders, *[decider_id] * length)[-1].event_id
        last = append(orders, decider_id, last, final=closed).event_id
        connection = connect(autocommit=False)
        connection.execute("select")  # the transaction begins
        with suppress(StreamClosed), connection.transaction():
            append(EventStore(connection), decider_id, last)
        reads.append(
            value(
                connection,
                """
                select sum(pg_stat_get_xact_tuples_returned(c.oid) + pg_stat_get_xact_tuples_fetched(c.oid))
                from pg_class c where c.relnamespace = 'event_store'::regnamespace and c.relname ~ 'events|streams'
                """,
            )
        )
    assert reads[0] > 0
    assert reads[1] <= reads[0] + 2


# Other ways in


def test_a_bare_insert_of_several_rows_goes_through_the_guard(orders: EventStore) -> None:
    a, b, c = uuid4(), uuid4(), uuid4()
    orders.connection.execute(INSERT, {"a": a, "b": b, "c": c})
    assert [(head[1], head[2], head[4]) for head in heads(orders)] == [("o-1", b, 2), ("o-2", c, 1)]
    assert_rising([event.offset for event in orders.get_events("o-1", "order")])


def test_a_bare_insert_is_all_or_nothing(orders: EventStore) -> None:
    append(orders, "o-2")
    before = heads(orders)
    with pytest.raises(Conflict), refusals():
        orders.connection.execute(INSERT, {"a": uuid4(), "b": uuid4(), "c": uuid4()})
    assert heads(orders) == before


def test_a_bare_insert_cannot_state_what_the_store_decides(orders: EventStore) -> None:
    orders.connection.execute(
        """
        insert into event_store.events
          (event, event_id, decider, decider_id, data, command_id, created_at, "offset", transaction_id)
        values ('placed', gen_random_uuid(), 'order', 'o-1', '{}', gen_random_uuid(), '1999-01-01', 4711, '5')
        """
    )
    (stored,) = orders.get_events("o-1", "order")
    assert stored.created_at.year > 1999
    assert stored.offset != 4711
    assert value(orders.connection, "select transaction_id::text::bigint from event_store.events") > 5


def test_a_bare_insert_that_skips_conflicts_leaves_no_stream_without_its_event(orders: EventStore) -> None:
    stored = append(orders, "o-1")
    before = heads(orders)
    with pytest.raises(EventIdReused), refusals():
        orders.connection.execute(
            """
            insert into event_store.events (event, event_id, decider, decider_id, data, command_id)
            values ('placed', %s, 'order', 'o-2', '{}', gen_random_uuid()) on conflict do nothing
            """,
            (stored.event_id,),
        )
    assert heads(orders) == before


def test_an_insert_cannot_update_on_conflict(orders: EventStore) -> None:
    stored = append(orders, "o-1")
    with pytest.raises(ForbiddenChange), refusals():
        orders.connection.execute(
            """
            insert into event_store.events (event, event_id, decider, decider_id, data, command_id)
            values ('placed', %s, 'order', 'o-2', '{}', gen_random_uuid())
            on conflict (event_id) do update set data = '{"changed": true}'
            """,
            (stored.event_id,),
        )
    assert orders.get_events("o-1", "order") == [stored]


def copy_in(store: EventStore, *lines: tuple[object, ...]) -> None:
    into: LiteralString = (
        "copy event_store.events (event, event_id, decider, decider_id, data, command_id, previous_id) from stdin"
    )
    with store.connection.cursor() as cursor, cursor.copy(into) as copy:
        for line in lines:
            copy.write_row(line)


def test_copy_goes_through_the_guard(orders: EventStore) -> None:
    a, b = uuid4(), uuid4()
    copy_in(
        orders,
        ("placed", a, "order", "o-1", "{}", a, None),
        ("paid", b, "order", "o-1", "{}", a, a),
        ("placed", a, "order", "o-1", "{}", a, None),  # a retry
    )
    assert [event.event_id for event in orders.get_events("o-1", "order")] == [a, b]
    for error, line in (
        (Conflict, ("placed", uuid4(), "order", "o-1", "{}", a, None)),
        (EventNotRegistered, ("lost", uuid4(), "order", "o-2", "{}", a, None)),
        (Malformed, ("placed", uuid4(), "order", "", "{}", a, None)),
    ):
        with pytest.raises(error), refusals():
            copy_in(orders, ("placed", uuid4(), "order", "o-3", "{}", a, None), line)
    assert [head[1] for head in heads(orders)] == ["o-1"]


# As fstore-sql's callers do it


def test_it_is_called_with_named_arguments_and_uuids_as_in_fstore_sql(orders: EventStore) -> None:
    decider_id = uuid4()
    first = orders.connection.execute(
        """
        select * from event_store.append_event(
          v_event => 'placed', v_event_id => %s, v_decider => 'order', v_decider_id => %s,
          v_data => '{}', v_command_id => %s, v_previous_id => null, v_event_version => 1
        )
        """,
        (uuid4(), decider_id, uuid4()),
    )
    assert first.description is not None
    assert [column.name for column in first.description] == COLUMNS
    row = first.fetchone()
    assert row is not None
    orders.connection.execute(
        """
        select * from event_store.append_event('paid', '21e19516-9bda-11ed-a8fc-0242ac120002', 'order',
          'f156a3c4-9bd8-11ed-a8fc-0242ac120002', '{}', 'f156a3c4-9bd8-11ed-a8fc-0242ac120002', null)
        """
    )
    assert [event.event_id for event in orders.get_events(decider_id, "order")] == [row[1]]
    assert len(orders.get_events(UUID("f156a3c4-9bd8-11ed-a8fc-0242ac120002"), "order")) == 1


# Transactions


def test_several_appends_join_one_transaction(orders: EventStore, connect: Connect) -> None:
    connection = connect(autocommit=False)
    writer = EventStore(connection)
    first = append(writer, "o-1")
    second = append(writer, "o-1", first.event_id)
    with pytest.raises(Conflict), connection.transaction():
        append(writer, "o-1", first.event_id)
    append(writer, "o-2")
    assert orders.get_events("o-1", "order") == []
    connection.commit()
    assert [event.event_id for event in orders.get_events("o-1", "order")] == [first.event_id, second.event_id]


def test_offsets_rise_along_a_stream_whoever_began_first(orders: EventStore, connect: Connect) -> None:
    older = connect(autocommit=False)
    append(EventStore(older), "o-2")  # its transaction is the older one
    first = append(orders, "o-1")
    second = append(EventStore(older), "o-1", first.event_id)
    older.commit()
    assert first.offset < second.offset
    assert orders.get_last_event("o-1", "order") == second


def test_an_event_is_stamped_by_the_stores_clock(orders: EventStore) -> None:
    set_clock(orders.connection, "2030-01-02 03:04:05+00")
    assert append(orders).created_at.isoformat() == "2030-01-02T03:04:05+00:00"


def test_a_killed_writer_leaves_nothing(orders: EventStore, connect: Connect) -> None:
    connection = connect(autocommit=False)
    append(EventStore(connection), "o-1")
    orders.connection.execute("select pg_terminate_backend(%s)", (connection.info.backend_pid,))
    append(orders, "o-1", event="paid")  # waits until the killed one is gone
    assert [event.event for event in orders.get_events("o-1", "order")] == ["paid"]
    with pytest.raises(psycopg.OperationalError):
        connection.execute("select 1")


def test_every_refusal_has_a_detail_and_a_remedy(orders: EventStore) -> None:
    append(orders, "o-1", final=True)
    append(orders, "o-2", event_id=UUID(int=1))
    bad: list[dict[str, Any]] = [
        {"decider_id": "o-1"},
        {"decider_id": "o-2"},
        {"decider_id": "o-3", "event_id": UUID(int=1)},
        {"event": "lost"},
        {"decider_id": ""},
    ]
    for arguments in bad:
        with pytest.raises(MillraceError) as refused:
            append(orders, **arguments)
        assert refused.value.detail
        assert refused.value.hint
