"""Whether a view has seen an event, and why it never will."""

from functools import partial

import pytest

from millrace.errors import Malformed
from millrace.event_store import Event, Seen
from millrace.event_store.platform import PlatformStore
from tests.support.factories import Connect, append, append_to, new_event, pump, purge_all, refusal, rows, set_clock
from tests.support.logins import Login
from tests.support.sql_calls import append_events
from tests.support.views.failing_streams import finish

SEEN = Seen(True, None, None)
NOT_YET = Seen(False, None, None)


def asked(store: PlatformStore, event: Event, view: str = "v") -> Seen:
    return store.has_seen(view, event.decider, event.decider_id, event.offset)


def consumed(store: PlatformStore, *failing: str, view: str = "v") -> None:
    """Let a bulk view consume all events; these streams fail."""
    finish(store, store.claim_batch(view, "me"), failing, view)


def test_a_rows_view_has_an_event_when_it_is_acknowledged(view: PlatformStore) -> None:
    first = append(view)
    second = append(view, previous=first.event_id)
    assert asked(view, first) == NOT_YET  # no position
    view.sequence_events()
    assert asked(view, first) == NOT_YET  # not dispatched
    view.dispatch_events("v")
    assert asked(view, first) == NOT_YET  # not delivered
    (leased,) = view.lease_events("v", 10)
    assert asked(view, first) == NOT_YET  # in flight
    view.ack_event("v", "o-1", first.offset, leased.lease_token)
    assert (asked(view, first), asked(view, second)) == (SEEN, NOT_YET)
    (leased,) = view.lease_events("v", 10)
    view.ack_event("v", "o-1", second.offset, leased.lease_token)
    assert asked(view, second) == SEEN
    append_to(view, "o-2")
    pump(view, "v")  # removes the lock of the first stream
    assert asked(view, second) == SEEN


def test_a_bulk_view_has_an_event_when_its_batch_is_committed(bulk: PlatformStore) -> None:
    event = append(bulk)
    bulk.sequence_events()
    leases = bulk.claim_batch("v", "me")
    assert asked(bulk, event) == NOT_YET
    bulk.commit_batch("v", leases)
    assert asked(bulk, event) == SEEN
    # even when the view is disabled
    bulk.enable_view("v", False)
    assert asked(bulk, event) == SEEN
    bulk.enable_view("v")
    # every view has seen purged events
    purge_all(bulk)
    assert rows(bulk.connection, "select from event_store.events") == []
    assert asked(bulk, event) == SEEN
    assert bulk.has_seen("v", "order", "o-1", event.offset + 1).never == "not_stored"
    assert bulk.has_seen("v", "invoice", "o-1", event.offset).never == "not_stored"


def test_of_a_stream_that_failed_the_events_before_are_there(orders: PlatformStore) -> None:
    orders.register_view("v", "-infinity", mode="bulk", max_attempts=2)
    set_clock(orders.connection, "2030-01-01 00:00:00+00")
    before = append(orders)
    orders.sequence_events()
    consumed(orders)
    failed, other = append(orders, previous=before.event_id), append(orders, "o-2")
    orders.sequence_events()
    consumed(orders, "o-1")
    assert asked(orders, before) == asked(orders, other) == SEEN
    waits = asked(orders, failed)
    assert (waits.seen, waits.never) == (False, "retrying")
    assert f"waits behind offset {before.offset}" in (waits.detail or "")
    set_clock(orders.connection, "2030-01-01 01:00:00+00")
    assert asked(orders, failed) == NOT_YET  # its backoff is over: the next claim retries it
    consumed(orders, "o-1")
    parked = asked(orders, failed)
    assert (parked.never, "is a dead letter since 2030-01-01" in (parked.detail or "")) == ("parked", True)
    orders.discard_dead_letter("v", "order", "o-1", "a test")
    assert asked(orders, failed) == SEEN  # a discarded event counts as acknowledged


def test_a_rows_stream_that_failed_or_was_given_back_for_later_waits(orders: PlatformStore) -> None:
    orders.register_view("v", "-infinity", max_attempts=2)
    set_clock(orders.connection, "2030-01-01 00:00:00+00")
    event = append(orders)
    pump(orders, "v")
    (leased,) = orders.lease_events("v", 1)
    orders.nack_event("v", "o-1", leased.offset, leased.lease_token)
    assert asked(orders, event) == NOT_YET  # free at once
    (leased,) = orders.lease_events("v", 1)
    orders.fail_event("v", "o-1", leased.offset, "no", leased.lease_token)
    assert asked(orders, event).never == "retrying"
    set_clock(orders.connection, "2030-01-01 01:00:00+00")
    (leased,) = orders.lease_events("v", 1)
    assert asked(orders, event) == NOT_YET  # it is being retried
    orders.fail_event("v", "o-1", leased.offset, "no", leased.lease_token)
    assert asked(orders, event).never == "parked"


def test_why_it_never_will(orders: PlatformStore) -> None:
    orders.register_view("v", "-infinity", deciders=["order"], events=["placed"])
    event, other = append(orders), append(orders, decider="invoice")
    paid = append(orders, previous=event.event_id, event="paid")
    assert asked(orders, event, "none") == Seen(False, "unknown", "no view or read model is named 'none'")
    assert asked(orders, other) == Seen(False, "unwanted", "view 'v' does not want placed of invoice")
    assert asked(orders, paid) == Seen(False, "unwanted", "view 'v' does not want paid of order")
    for stream, offset in (("o-1", paid.offset + 1), ("o-2", event.offset), ("o-1", other.offset)):
        missing = orders.has_seen("v", "order", stream, offset)
        assert (missing.seen, missing.never) == (False, "not_stored")
    orders.enable_view("v", False)
    assert asked(orders, event) == Seen(False, "disabled", "view 'v' is disabled")
    orders.enable_view("v")
    assert asked(orders, event) == NOT_YET


def test_an_event_that_is_not_committed_is_not_there_for_others(view: PlatformStore, connect: Connect) -> None:
    with view.connection.transaction():
        event = append(view)
        assert asked(PlatformStore(connect()), event).never == "not_stored"


def declare(store: PlatformStore, version: int, view: str, *, serves: bool) -> None:
    store.connection.execute(
        "insert into read_models.declarations (model, version, view, fingerprint, serves, unbuilt)"
        " values ('models', %s, %s, %s, %s, '{}')",
        (version, view, str(version), serves),
    )


@pytest.mark.parametrize("first", ["models", "models_of_orders"])
def test_the_name_of_a_read_model_is_the_version_that_serves(orders: PlatformStore, first: str) -> None:
    for view in (first, "second"):
        orders.register_view(view, "-infinity", mode="bulk")
    declare(orders, 1, first, serves=True)
    declare(orders, 2, "second", serves=False)
    event = append(orders)
    orders.sequence_events()
    consumed(orders, view=first)
    assert asked(orders, event, "models") == SEEN
    orders.connection.execute("update read_models.declarations set serves = false")
    orders.connection.execute("update read_models.declarations set serves = true where version = 2")
    assert asked(orders, event, "models") == NOT_YET
    consumed(orders, view="second")
    assert asked(orders, event, "models") == asked(orders, event, "second") == SEEN


def test_a_view_of_another_consumer_does_not_answer_for_a_read_model(orders: PlatformStore, login: Login) -> None:
    orders.register_view("models", "-infinity", mode="bulk")
    orders.register_view("of_models", "-infinity", mode="bulk")
    event = append(orders)
    orders.sequence_events()
    consumed(orders, view="models")
    declare(orders, 1, "of_models", serves=True)
    assert asked(orders, event, "models") == NOT_YET
    consumed(orders, view="of_models")
    assert asked(orders, event, "models") == SEEN
    orders.unregister_view("models")
    refused = refusal(
        Malformed, partial(PlatformStore(login("event_store_consumer")).register_view, "models", "infinity")
    )
    assert "its versions are consumed as of_models" in str(refused.detail)


def test_two_deciders_that_share_an_id_are_two_streams(view: PlatformStore) -> None:
    append_events(view, [new_event("o-1"), new_event("o-1", decider="invoice")])
    pump(view, "v")
    first, second = sorted(view.lease_events("v", 10), key=lambda event: event.decider)
    view.ack_event("v", "o-1", first.offset, first.lease_token)
    assert (asked(view, first), asked(view, second)) == (SEEN, NOT_YET)
