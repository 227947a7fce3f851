"""Events that fail: the stream waits, longer each time, and is parked; all others go on."""

from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import uuid4

import pytest

from millrace.resources.errors import Malformed, NotInFlight, UnknownView, WrongMode
from millrace.resources.event_store import EventStore
from tests.sql.rows.test_ack_event import COLUMNS, locks
from tests.sql.rows.test_stream_events import view
from tests.support.factories import append, append_to, pump, refusal, rows, set_clock

__all__ = ["view"]

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def fail(store: EventStore, decider_id: str, error: str = "no such customer") -> datetime:
    """Fetch everything that is free, fail this stream's event, give the rest back; return until when it waits."""
    for event in store.lease_events("v", 100, 60):
        if event.decider_id == decider_id:
            (lock,) = store.fail_event("v", decider_id, event.offset, error, event.lease_token)
        else:
            store.nack_event("v", event.decider_id, event.offset, event.lease_token)
    return lock.locked_until


# A21


def test_a_failing_stream_waits_longer_each_time_and_is_then_parked(view: EventStore) -> None:
    append_to(view, "poison", "poison")
    pump(view, "v")
    now = NOON
    waits = []
    for _ in range(4):
        set_clock(view.connection, now.isoformat())
        until = fail(view, "poison")
        waits.append((until - now).total_seconds())
        set_clock(view.connection, (until - timedelta(milliseconds=1)).isoformat())
        assert view.lease_events("v", 10) == []
        now = until
    assert waits == [5, 10, 20, 40]
    set_clock(view.connection, now.isoformat())
    assert fail(view, "poison", "still no such customer") == datetime.max.replace(tzinfo=UTC)
    set_clock(view.connection, (now + timedelta(days=999)).isoformat())
    assert view.lease_events("v", 10) == []
    (letter,) = view.dead_letters("v")
    assert (letter.decider_id, letter.attempts, letter.last_error) == ("poison", 5, "still no such customer")
    assert (letter.parked_at, letter.waiting) == (now, 2)


def test_the_wait_grows_to_an_hour_at_most(view: EventStore) -> None:
    delays = rows(
        view.connection,
        "select event_store_private.retry_delay(n)::text from unnest('{0,1,10,11,2147483647}'::int[]) n",
    )
    assert [delay for (delay,) in delays] == ["00:00:02.5", "00:00:05", "00:42:40", "01:00:00", "01:00:00"]


def test_others_flow_while_a_stream_waits_or_is_parked(view: EventStore) -> None:
    view.register_view("v", max_attempts=2)
    append_to(view, "poison", "poison", *["good"] * 3)
    pump(view, "v")
    set_clock(view.connection, NOON.isoformat())
    taken = []
    for n in range(6):
        set_clock(view.connection, (NOON + timedelta(seconds=20 * n)).isoformat())
        for event in view.lease_events("v", 10, 60):
            if event.decider_id == "poison":
                view.fail_event("v", "poison", event.offset, "no", event.lease_token)
            else:
                view.ack_event("v", "good", event.offset, event.lease_token)
            taken.append(event.decider_id)
    assert taken == ["poison", "good", "poison", "good", "good"]
    assert len(view.dead_letters("v")) == 1


def test_no_later_event_of_a_failing_stream_overtakes(view: EventStore) -> None:
    append_to(view, "a", "a", "a")
    pump(view, "v")
    set_clock(view.connection, NOON.isoformat())
    seen = []
    for n in range(5):
        set_clock(view.connection, (NOON + timedelta(hours=n)).isoformat())
        (event,) = view.lease_events("v", 10, 60)
        seen.append(event.offset)
        if n in {0, 2}:
            view.fail_event("v", "a", event.offset, "no", event.lease_token)
        else:
            view.ack_event("v", "a", event.offset, event.lease_token)
    first, second, third = sorted(set(seen))
    assert seen == [first, first, second, second, third]


def test_an_ack_begins_the_count_of_attempts_anew(view: EventStore) -> None:
    view.register_view("v", max_attempts=2)
    append_to(view, "a", "a")
    pump(view, "v")
    for n in range(2):
        set_clock(view.connection, (NOON + timedelta(hours=2 * n)).isoformat())
        fail(view, "a")
        set_clock(view.connection, (NOON + timedelta(hours=2 * n + 1)).isoformat())
        (event,) = view.lease_events("v", 1, 60)
        assert event.attempt == 2
        view.ack_event("v", "a", event.offset, event.lease_token)
    assert view.dead_letters("v") == []


def test_a_view_with_one_attempt_parks_at_once(view: EventStore) -> None:
    view.register_view("v", max_attempts=1)
    append(view, "a")
    pump(view, "v")
    fail(view, "a")
    assert [letter.decider_id for letter in view.dead_letters("v")] == ["a"]


def test_of_two_deciders_that_share_an_id_only_one_fails(view: EventStore) -> None:
    append(view, "x")
    append(view, "x", decider="invoice")
    pump(view, "v")
    _, invoice = view.lease_events("v", 10)
    view.fail_event("v", "x", invoice.offset, "no")
    assert rows(view.connection, "select decider, in_flight is null from event_store.stream_locks order by 1") == [
        ("invoice", True),
        ("order", False),
    ]


# Refusals


@pytest.mark.parametrize("error", ["", None])
def test_a_failure_without_an_error_is_refused(view: EventStore, error: str) -> None:
    append(view, "a")
    pump(view, "v")
    (event,) = view.lease_events("v")
    before = locks(view)
    assert "v_error" in str(refusal(Malformed, lambda: view.fail_event("v", "a", event.offset, error)).detail)
    assert locks(view) == before


def test_an_error_with_a_nul_is_refused_and_a_long_one_is_kept(view: EventStore) -> None:
    append(view, "a")
    pump(view, "v")
    (event,) = view.lease_events("v")
    with pytest.raises(Malformed, match="NUL"):
        view.fail_event("v", "a", event.offset, "no\0")
    error = "é'\"\\\n" * 50_000
    view.fail_event("v", "a", event.offset, error)
    assert rows(view.connection, "select last_error = %s from event_store.stream_locks", error) == [(True,)]


def test_an_event_that_is_not_in_flight_does_not_fail(view: EventStore) -> None:
    first, second = append_to(view, "a", "a")
    for offset in (first.offset, second.offset, -1, 2**63 - 1, None):
        refusal(NotInFlight, partial(view.fail_event, "v", "a", offset, "no"))  # type: ignore[arg-type]
    pump(view, "v")
    view.lease_events("v")
    view.fail_event("v", "a", first.offset, "no")
    before = locks(view)
    refusal(NotInFlight, lambda: view.fail_event("v", "a", first.offset, "no"))
    assert locks(view) == before


def test_a_wrong_view_is_refused(view: EventStore) -> None:
    view.register_view("bulk", mode="bulk")
    refusal(UnknownView, lambda: view.fail_event("unknown", "a", 1, "no"))
    assert "mode bulk" in str(refusal(WrongMode, lambda: view.fail_event("bulk", "a", 1, "no")).detail)


def test_it_is_called_with_uuids_and_named_arguments(view: EventStore) -> None:
    decider_id = uuid4()
    append(view, str(decider_id))
    pump(view, "v")
    (event,) = view.lease_events("v")
    cursor = view.connection.execute(
        """
        select * from event_store.fail_event(
          v_view => 'v', v_decider_id => %s, v_offset => %s, v_error => 'no', v_lease_token => %s
        )
        """,
        (decider_id, event.offset, event.lease_token),
    )
    assert cursor.description is not None
    assert [column.name for column in cursor.description] == COLUMNS
    assert len(cursor.fetchall()) == 1
