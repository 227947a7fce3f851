"""One event: optimistic locking, retries, refusals, races, and a bare INSERT or COPY, which go the same way."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, LiteralString
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.errors import UniqueViolation

from millrace import errors
from millrace.event_store.platform import PlatformStore
from millrace.event_store.refusals import refusals
from tests.support.factories import Connect, append, at_once, new_event, refusal, rows, set_clock, start_blocked, value
from tests.support.patience import patience
from tests.support.sql_calls import BatchEvent, append_event, append_events, get_events, get_last_event


def heads(store: PlatformStore) -> list[tuple[Any, ...]]:
    return rows(store.connection, "select * from event_store.streams order by decider_id, decider")


def refused(store: PlatformStore, error: type[errors.MillraceError], **arguments: Any) -> errors.MillraceError:  # noqa: ANN401 - as append's
    """Append an event that is refused; assert that no stream moved."""
    before = heads(store)
    refusal_ = refusal(error, lambda: append(store, **arguments))
    assert heads(store) == before
    return refusal_


def test_the_first_event_is_returned_as_it_is_stored(orders: PlatformStore) -> None:
    event_id, command_id = uuid4(), uuid4()
    set_clock(orders.connection, "2030-01-02 03:04:05+00")
    stored = append(orders, "o-1", event_id=event_id, command_id=command_id, data={"total": "9.90"})
    assert stored.created_at.isoformat() == "2030-01-02T03:04:05+00:00"
    assert (stored.event_id, stored.command_id, stored.data) == (event_id, command_id, {"total": "9.90"})
    assert (stored.event_version, stored.previous_id, stored.final) == (1, None, False)
    assert get_events(orders, "o-1", "order") == [stored]
    assert heads(orders) == [("order", "o-1", event_id, stored.offset, 1, False)]


def test_of_many_writers_with_one_previous_id_exactly_one_commits(orders: PlatformStore, connect: Connect) -> None:
    writers = [PlatformStore(connect()) for _ in range(6)]
    for previous in (None, append(orders, "known").event_id):
        results = at_once([partial(append, writer, "known" if previous else "new", previous) for writer in writers])
        assert sorted(type(each.exception()).__name__ for each in results) == [*["Conflict"] * 5, "NoneType"]
    assert [(head[1], head[4]) for head in heads(orders)] == [("known", 2), ("new", 1)]


def test_an_event_that_does_not_follow_the_head_conflicts_and_names_it(orders: PlatformStore) -> None:
    first = append(orders, "o-1")
    second = append(orders, "o-1", first.event_id)
    foreign = append(orders, "o-2").event_id
    head = f"last event_id {second.event_id} at version 2"
    for decider_id, previous, message, detail in (
        ("o-1", None, "previous_id can only be null for the first decider event", head),
        ("o-1", first.event_id, "previous_id must be the last event of the decider stream", head),
        ("o-1", foreign, "previous_id must be in the same decider", head),
        ("o-new", foreign, "previous_id must be in the same decider", "no event"),
    ):
        conflict = refused(orders, errors.Conflict, decider_id=decider_id, previous=previous)
        assert message in conflict.message
        assert detail in str(conflict.detail)


def test_a_retry_returns_the_stored_row_and_changes_nothing(orders: PlatformStore) -> None:
    event_id, command_id = uuid4(), uuid4()
    last = stored = append(orders, "o-1", event_id=event_id, command_id=command_id)
    for later in ("nothing", "another event", "the final event"):
        if later != "nothing":
            last = append(orders, "o-1", last.event_id, final=later == "the final event")
        before = heads(orders)
        assert append(orders, "o-1", event_id=event_id, command_id=command_id) == stored, later
        assert heads(orders) == before


def test_an_event_id_with_other_content_is_refused_and_nothing_changes(orders: PlatformStore) -> None:
    same: dict[str, Any] = {"decider_id": "o-1", "event_id": UUID(int=1), "command_id": UUID(int=1)}
    append(orders, **same)
    stored = replace(new_event(), **same)
    others: dict[str, Any] = {
        "data": {"n": 2},
        "event": "paid",
        "decider": "invoice",
        "decider_id": "o-2",
        "final": True,
    }
    for other in [
        {name: each} for name, each in {**others, "command_id": UUID(int=2), "previous": UUID(int=3)}.items()
    ]:
        assert "stream (order, o-1)" in str(refused(orders, errors.EventIdReused, **{**same, **other}).detail)
        if "previous" not in other:
            batch = [new_event("o-3"), replace(stored, **other)]
            refusal(errors.EventIdReused, partial(append_events, orders, batch))
    assert value(orders.connection, "select count(*) from event_store.events") == 1


def test_an_unregistered_event_is_refused_and_the_known_ones_are_named(orders: PlatformStore) -> None:
    orders.register_decider_event("order", "lost", "version two", 2)
    for event, decider, known in (
        ("lost", "order", "lost version 2, paid version 1"),
        ("placed", "parcel", "it has: none"),
    ):
        assert known in str(refused(orders, errors.EventNotRegistered, event=event, decider=decider).detail)


def test_a_final_event_closes_the_stream(orders: PlatformStore) -> None:
    first = append(orders, "o-1")
    last = append(orders, "o-1", first.event_id, event="shipped", final=True)
    for previous in (last.event_id, first.event_id, None):
        closed = refused(orders, errors.StreamClosed, decider_id="o-1", previous=previous)
        assert "is already final. the stream is closed" in closed.message
        assert f"closed by event_id {last.event_id} at version 2" in str(closed.detail)
    append(orders, "o-1", decider="invoice")


READS: LiteralString = """
    select sum(pg_stat_get_xact_tuples_returned(oid) + pg_stat_get_xact_tuples_fetched(oid))::int
    from pg_class where relnamespace = 'event_store'::regnamespace and relname ~ '^(events|streams)'
"""


def test_what_an_append_reads_does_not_grow_with_the_stream(orders: PlatformStore, connect: Connect) -> None:
    for closed in (False, True):
        reads = []
        for decider_id, length in ((f"short-{closed}", 1), (f"long-{closed}", 300)):
            last = append_events(orders, [new_event(decider_id) for _ in range(length)])[-1].event_id
            last = append(orders, decider_id, last, final=closed).event_id
            connection = connect(autocommit=False)
            connection.execute("select")  # the transaction begins
            with suppress(errors.StreamClosed), connection.transaction():
                append(PlatformStore(connection), decider_id, last)
            reads.append(value(connection, READS))
            connection.rollback()
        assert 0 < reads[1] <= reads[0] + 2


INTO: LiteralString = "event_store.events (event, event_id, decider, decider_id, data, command_id, previous_id)"


def insert(connection: psycopg.Connection, *lines: tuple[object, ...], conflicts: LiteralString = "") -> None:
    """Insert events in one statement: each the name, its id, its stream and its previous id."""
    values = ", ".join(["(%s, %s, 'order', %s, '{}', gen_random_uuid(), %s)"] * len(lines))
    with refusals():
        connection.execute(
            f"insert into {INTO} values {values} {conflicts}".encode(),
            [argument for line in lines for argument in line],
        )


def test_a_bare_insert_goes_through_the_guard_and_is_all_or_nothing(orders: PlatformStore) -> None:
    def three() -> list[tuple[object, ...]]:
        a, b, c = uuid4(), uuid4(), uuid4()
        return [("placed", a, "o-1", None), ("paid", b, "o-1", a), ("placed", c, "o-2", None)]

    events = three()
    insert(orders.connection, *events)
    found = [(head[1], head[2], head[4]) for head in heads(orders)]
    assert found == [("o-1", events[1][1], 2), ("o-2", events[2][1], 1)]
    a, b = get_events(orders, "o-1", "order")
    assert a.offset < b.offset
    before = heads(orders)
    refusal(errors.Conflict, lambda: insert(orders.connection, ("placed", uuid4(), "o-3", None), *three()))
    assert heads(orders) == before


def test_a_bare_insert_cannot_state_what_the_store_decides(orders: PlatformStore) -> None:
    orders.connection.execute(
        """
        insert into event_store.events
          (event, event_id, decider, decider_id, data, command_id, created_at, "offset", transaction_id)
        values ('placed', gen_random_uuid(), 'order', 'o-1', '{}', gen_random_uuid(), '1999-01-01', 4711, '5')
        """
    )
    (stored,) = get_events(orders, "o-1", "order")
    assert stored.created_at.year > 1999
    assert stored.offset != 4711
    assert value(orders.connection, "select transaction_id::text::bigint from event_store.events") > 5


def test_an_insert_that_handles_conflicts_makes_and_changes_no_stream(orders: PlatformStore) -> None:
    stored = append(orders, "o-1")
    before = heads(orders)
    line = ("placed", stored.event_id, "o-2", None)
    refusal(errors.EventIdReused, lambda: insert(orders.connection, line, conflicts="on conflict do nothing"))
    changing: LiteralString = """on conflict (event_id) do update set data = '{"changed": true}'"""
    refusal(errors.ForbiddenChange, lambda: insert(orders.connection, line, conflicts=changing))
    assert heads(orders) == before
    assert get_events(orders, "o-1", "order") == [stored]


def test_copy_goes_through_the_guard(orders: PlatformStore) -> None:
    def copy_in(*lines: tuple[object, ...]) -> None:
        with refusals(), orders.connection.cursor().copy(f"copy {INTO} from stdin") as copy:
            for line in lines:
                copy.write_row(line)

    a, b = uuid4(), uuid4()
    copy_in(
        ("placed", a, "order", "o-1", "{}", a, None),
        ("paid", b, "order", "o-1", "{}", a, a),
        ("placed", a, "order", "o-1", "{}", a, None),  # a retry
    )
    assert [(event.event_id, event.version) for event in orders.read("order", "o-1")] == [(a, 1), (b, 2)]
    good = ("placed", uuid4(), "order", "o-3", "{}", a, None)
    refusal(errors.Conflict, lambda: copy_in(good, ("placed", uuid4(), "order", "o-1", "{}", a, None)))
    refusal(errors.EventNotRegistered, lambda: copy_in(good, ("lost", uuid4(), "order", "o-2", "{}", a, None)))
    assert [head[1] for head in heads(orders)] == ["o-1"]


def heads_without_their_event(store: PlatformStore) -> list[tuple[object, ...]]:
    return rows(
        store.connection,
        """
        select s.decider_id, s.version from event_store.streams s
        where not exists (select from event_store.events e where e."offset" = s.last_offset and e.decider_id = s.decider_id)
        """,
    )


SKIPPING: LiteralString = "on conflict do nothing"


# Two at once: the second waits for the end of the first

Way = Callable[[PlatformStore, BatchEvent, UUID | None], object]
WAYS: dict[str, Way] = {
    "append_event": lambda store, new, previous: append(
        store, new.decider_id, previous, event_id=new.event_id, command_id=new.command_id
    ),
    "append_events": lambda store, new, _: append_events(store, [new_event("another"), new]),  # at the stream's end
    "insert": lambda store, new, previous: insert(store.connection, ("placed", new.event_id, new.decider_id, previous)),
    "expecting event": lambda store, new, previous: append_event(
        store,
        "placed",
        new.event_id,
        "order",
        new.decider_id,
        {},
        uuid4(),
        None,
        expected_version=int(previous is not None),
    ),
    "expecting batch": lambda store, new, previous: append_events(
        store, [replace(new, expected_version=int(previous is not None))]
    ),
    "skip": lambda store, new, previous: insert(
        store.connection, ("placed", new.event_id, new.decider_id, previous), conflicts=SKIPPING
    ),
}
# the two calls, the field that the second event shares with the first, and its outcome if the first commits
RACES: list[tuple[str, str, str, type[Exception] | str]] = [
    ("append_event", "append_event", "stream", errors.Conflict),
    ("append_events", "append_event", "stream", errors.Conflict),
    ("insert", "append_event", "stream", errors.Conflict),
    ("append_event", "append_events", "stream", "stored"),
    ("append_event", "insert", "stream", UniqueViolation),
    ("expecting event", "expecting event", "stream", errors.Conflict),
    ("expecting batch", "expecting batch", "stream", errors.Conflict),
    ("append_event", "append_event", "event", "the same"),
    ("append_event", "append_event", "event_id", errors.EventIdReused),
    ("append_event", "append_events", "event_id", errors.EventIdReused),
    ("append_events", "append_events", "event_id", errors.EventIdReused),
    ("append_event", "skip", "event_id", "skipped"),
    ("skip", "skip", "event_id", "skipped"),
]


@pytest.mark.parametrize("known", [False, True], ids=["new streams", "streams with an event"])
@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_the_end_of_the_first_decides_the_second(
    orders: PlatformStore, connect: Connect, ends: str, known: bool
) -> None:
    for number, (first_way, second_way, same, outcome) in enumerate(RACES):
        stream, other = f"o-{number}", f"p-{number}"
        previous = {each: append(orders, each).event_id if known else None for each in (stream, other)}
        first, second = PlatformStore(connect(autocommit=False)), PlatformStore(connect())
        new = new_event(stream)
        late = {"event": new, "stream": new_event(stream), "event_id": replace(new, decider_id=other)}[same]
        WAYS[first_way](first, new, previous[stream])
        racing = start_blocked(orders, second, partial(WAYS[second_way], second, late, previous[late.decider_id]))
        getattr(first.connection, ends)()
        error = racing.exception(patience())
        of_each = [[event.event_id for event in get_events(orders, each, "order")][known:] for each in (stream, other)]
        if ends == "rollback" or outcome == "stored":
            assert error is None
            of_first = [new.event_id] * (ends == "commit")
            expected = [[*of_first, late.event_id], []] if late.decider_id == stream else [[], [late.event_id]]
        else:
            assert isinstance(error, outcome) if isinstance(outcome, type) else error is None
            expected = [[new.event_id], []]
        assert of_each == expected, (first_way, second_way, same)
        assert heads_without_their_event(orders) == []
        # the stream of the second can be appended to
        head = orders.head("order", late.decider_id)
        append(orders, late.decider_id, head.last_event_id if head else None)


def test_offsets_rise_along_a_stream_whoever_began_first(orders: PlatformStore, connect: Connect) -> None:
    older = connect(autocommit=False)
    append(PlatformStore(older), "o-2")  # in the older transaction
    first = append(orders, "o-1")
    second = append(PlatformStore(older), "o-1", first.event_id)
    older.commit()
    assert first.offset < second.offset
    assert get_last_event(orders, "o-1", "order") == second
