"""Removing a view: all of it, not while it is used, and nothing of it comes back."""

from functools import partial
from typing import Any

import pytest

from millrace.resources.errors import BelongsToReadModel, LeaseLost, NotInFlight, UnknownView, ViewInUse
from millrace.resources.event_store import EventStore
from tests.sql.views.test_dead_letters import park
from tests.support.factories import (
    Connect,
    append,
    append_to,
    at_once,
    give_to_read_model,
    pump,
    refusal,
    rows,
    set_clock,
    start,
    terminate,
    value,
    wait_blocked,
)
from tests.support.patience import patience


def remains(store: EventStore) -> list[tuple[Any, ...]]:
    return rows(
        store.connection,
        """
        select 'view' from event_store.views
        union all select 'checkpoint' from event_store.checkpoints
        union all select 'lock' from event_store.stream_locks
        union all select 'dispatch' from event_store.dispatches
        """,
    )


def test_everything_of_the_view_goes_and_nothing_of_others(view: EventStore) -> None:
    append_to(view, "a", "b", "c")
    park(view, "a")
    view.register_view("kept", "-infinity")
    pump(view, "kept")
    set_clock(view.connection, "2030-01-01 00:00:00+00")
    kept = view.view_info("kept")
    view.unregister_view("v", "replaced by billing")
    refusal(UnknownView, lambda: view.stream_events("v"))
    assert view.dead_letters() == []
    assert view.view_info() == kept
    assert len(view.get_events("a", "order")) == 1
    view.unregister_view("kept")
    assert remains(view) == []


def test_it_is_written_down_with_what_went(view: EventStore) -> None:
    append_to(view, "a", "b", "c")
    park(view, "a")
    view.unregister_view("v", "replaced by billing")
    ((operation, name, reason, by_caller, detail),) = rows(
        view.connection,
        "select operation, view, reason, done_by = session_user, detail from event_store.audit_log where operation <> 'register_view'",
    )
    assert (operation, name, reason, by_caller) == ("unregister_view", "v", "replaced by billing", True)
    assert (detail["view"]["view"], detail["view"]["max_attempts"], detail["locks"]) == ("v", 1, 3)
    assert sum(detail["positions"].values()) == 3
    assert len(detail["positions"]) == 16


@pytest.mark.parametrize("answer", ["ack", "lock ends"])
def test_it_is_refused_while_something_is_in_flight(view: EventStore, answer: str) -> None:
    append(view, "a")
    pump(view, "v")
    set_clock(view.connection, "2030-01-01 00:00:00+00")
    (event,) = view.lease_events("v", 1, 60)
    before = remains(view)
    assert "1 events are in flight" in str(refusal(ViewInUse, lambda: view.unregister_view("v")).detail)
    assert remains(view) == before
    if answer == "ack":
        view.ack_event("v", "a", event.offset, event.lease_token)
    else:
        set_clock(view.connection, "2030-01-01 00:01:00+00")
    view.unregister_view("v")
    assert remains(view) == []


def test_it_is_refused_while_a_log_partition_is_leased(orders: EventStore) -> None:
    orders.register_view("b", "-infinity", mode="bulk")
    append(orders, "a")
    leases = orders.claim_batch("b", "run 7")
    assert "leased by run 7" in str(refusal(ViewInUse, lambda: orders.unregister_view("b")).detail)
    orders.release_batch("b", leases)
    orders.unregister_view("b")
    refusal(UnknownView, lambda: orders.commit_batch("b", leases))


@pytest.mark.parametrize("call", ["stream_events", "ack_event", "dispatch_events"])
def test_it_is_refused_and_does_not_wait_while_a_transaction_uses_the_view(
    view: EventStore, connect: Connect, call: str
) -> None:
    append(view, "a")
    pump(view, "v")
    (event,) = view.stream_events("v")
    consumer = EventStore(connect(autocommit=False))
    if call == "ack_event":
        consumer.ack_event("v", "a", event.offset)
    else:
        view.ack_event("v", "a", event.offset)
        append(view, "b")
        if call == "stream_events":
            pump(view, "v")
        consumer.stream_events("v") if call == "stream_events" else consumer.dispatch_events("v")
    view.connection.execute("set lock_timeout = '2s'")
    assert "still open" in str(refusal(ViewInUse, lambda: view.unregister_view("v")).detail)
    terminate(view.connection, consumer.connection.info.backend_pid)
    set_clock(view.connection, "2030-01-01 00:00:00+00")
    view.unregister_view("v")


def test_the_view_of_a_read_model_is_refused_also_while_it_is_in_use(orders: EventStore) -> None:
    orders.register_view("b", "-infinity", mode="bulk")
    give_to_read_model(orders.connection, "b")
    append(orders, "a")
    for _ in range(2):
        refused = refusal(BelongsToReadModel, lambda: orders.unregister_view("b"))
        assert "read model m" in str(refused.detail)
        assert "millrace reset m" in str(refused.hint)
        orders.claim_batch("b", "somebody")
    assert len(orders.view_info("b")) == 1


def test_unregistering_at_once_removes_once(view: EventStore, connect: Connect) -> None:
    stores = [EventStore(connect()) for _ in range(3)]
    results = at_once([partial(store.unregister_view, "v") for store in stores])
    errors = [result.exception() for result in results]
    assert errors.count(None) == 1
    assert all(isinstance(error, UnknownView | ViewInUse) for error in errors if error)
    assert value(view.connection, "select count(*) from event_store.audit_log where operation <> 'register_view'") == 1


# The name again


def test_an_answer_to_a_former_view_of_the_name_is_refused(view: EventStore, connect: Connect) -> None:
    append_to(view, "a", "a")
    pump(view, "v")
    former, holder = EventStore(connect()), EventStore(connect())
    set_clock(former.connection, "2030-01-01 00:00:00+00")
    (late,) = former.lease_events("v", 1, 60)
    for store in (view, former, holder):
        set_clock(store.connection, "2030-01-02 00:00:00+00")
    view.unregister_view("v")
    view.register_view("v", "-infinity")
    # without a token it may as well be an answer to the new view's delivery
    answers = [
        partial(former.ack_event, "v", "a", late.offset, late.lease_token),
        partial(former.nack_event, "v", "a", None, late.lease_token),
    ]
    for answer in answers:
        refusal(NotInFlight, answer)
    pump(view, "v")
    (held,) = holder.lease_events("v", 1, 60)
    assert (held.offset, held.attempt) == (late.offset, 1)
    assert held.lease_token > late.lease_token
    for answer in answers:
        assert "for somebody else" in str(refusal(NotInFlight, answer).detail)
    assert former.ack_events("v", [late.offset], [late.lease_token]) == set()
    holder.ack_event("v", "a", held.offset)


def test_a_lease_of_a_former_view_of_the_name_commits_nothing(orders: EventStore) -> None:
    orders.register_view("b", "-infinity", mode="bulk")
    append(orders, "a")
    set_clock(orders.connection, "2030-01-01 00:00:00+00")
    old = orders.claim_batch("b", "owner", lease_s=60)
    set_clock(orders.connection, "2030-01-02 00:00:00+00")
    orders.unregister_view("b")
    orders.register_view("b", "-infinity", mode="bulk")
    refusal(LeaseLost, lambda: orders.commit_batch("b", old))
    new = orders.claim_batch("b", "owner")
    assert new[0].lease_token > old[0].lease_token
    refusal(LeaseLost, lambda: orders.commit_batch("b", old))
    orders.commit_batch("b", new)


def test_an_answer_that_waits_while_its_view_is_removed_is_refused(view: EventStore, connect: Connect) -> None:
    append(view, "a")
    pump(view, "v")
    set_clock(view.connection, "2030-01-01 00:00:00+00")
    (event,) = view.stream_events("v", 1, 60)
    remover, late = EventStore(connect(autocommit=False)), EventStore(connect())
    set_clock(remover.connection, "2030-01-02 00:00:00+00")
    remover.unregister_view("v")
    answered = start(lambda: late.ack_event("v", "a", event.offset))
    wait_blocked(view.connection, late.connection.info.backend_pid)
    remover.connection.commit()
    refusal(UnknownView, lambda: answered.result(patience()))
