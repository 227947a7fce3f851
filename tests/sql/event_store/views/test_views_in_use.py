"""Removing or moving a view: not while it is used, and without waiting for a consumer."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from millrace import errors
from millrace.event_store import Delivery
from millrace.event_store.platform import PlatformStore
from tests.support import factories
from tests.support.patience import patience

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
OPERATIONS: dict[str, Callable[[PlatformStore, str], object]] = {
    "remove": lambda store, view: store.unregister_view(view),
    "move": lambda store, view: store.seek_view(view, "RESET_TO_EARLIEST"),
}
TRIED: dict[str, Callable[[PlatformStore, str], object]] = {
    **OPERATIONS,
    "say where": lambda store, view: store.seek_view(view, "RESET_TO_EARLIEST", dry_run=True),
}


def at(store: PlatformStore, seconds: int) -> PlatformStore:
    factories.set_clock(store.connection, (NOON + timedelta(seconds=seconds)).isoformat())
    return store


@pytest.fixture
def views(orders: PlatformStore) -> PlatformStore:
    """Return a store at noon with a view of each mode; two events wait for each view."""
    for mode in ("rows", "bulk"):
        orders.register_view(mode, "-infinity", mode=mode)
    factories.append_to(orders, "a", "b")
    factories.pump(orders, "rows")
    return at(orders, 0)


def lease(store: PlatformStore, view: str) -> Any:  # noqa: ANN401 - what the view's mode gives
    return store.lease_events(view, 1, 60) if view == "rows" else store.claim_batch(view, "run 7", 1, 60)


def answer(store: PlatformStore, held: list[Any]) -> None:
    if isinstance(held[0], Delivery):
        store.ack_event("rows", held[0].decider_id, held[0].offset, held[0].lease_token)
    else:
        store.commit_batch("bulk", held)


def refused(store: PlatformStore, view: str, why: str) -> None:
    """Try each operation: it is refused for this reason, without waiting, and changes nothing."""
    store.connection.execute("set lock_timeout = '30s'")
    before = factories.everything(store)
    for operation in TRIED.values():
        assert why in str(factories.refusal(errors.ViewInUse, partial(operation, store, view)).detail)
    assert factories.everything(store) == before


def done(store: PlatformStore, view: str) -> None:
    """Try each operation: it succeeds; then undo it."""
    for operation in TRIED.values():
        with store.connection.transaction(force_rollback=True):
            operation(store, view)


@pytest.mark.parametrize(("view", "why"), [("rows", "1 events are in flight, the last until"), ("bulk", "by run 7")])
def test_what_a_consumer_holds_is_in_use_until_it_ends(views: PlatformStore, view: str, why: str) -> None:
    held = lease(views, view)
    refused(views, view, why)
    refused(at(views, 59), view, why)
    done(at(views, 60), view)
    answer(at(views, 0), held)
    done(views, view)


USES: dict[tuple[str, str], Callable[[PlatformStore, Any], object]] = {
    ("rows", "is still open"): lambda store, _: store.lease_events("rows", 2, 60),
    ("rows", "still open"): lambda store, _: store.dispatch_events("rows"),
    ("rows", "still open "): answer,
    ("bulk", "is still open"): lambda store, _: store.claim_batch("bulk", "me", 10, 60),
    ("bulk", "commits or acknowledges"): answer,
}


@pytest.mark.parametrize("ends", ["rollback", "kill"])
def test_a_view_is_in_use_while_a_transaction_used_it(
    views: PlatformStore, connect: factories.Connect, ends: str
) -> None:
    for number, ((view, why), use) in enumerate(USES.items()):
        now = 1000 * number
        held = lease(at(views, now), view)
        factories.append_to(views, "c")
        views.sequence_events()
        consumer = at(PlatformStore(connect()), now + 60)
        consumer.connection.autocommit = False
        use(consumer, held)
        refused(at(views, now + 60), view, why.strip())
        if ends == "kill":
            factories.terminate(views.connection, consumer.connection.info.backend_pid)
        else:
            consumer.connection.rollback()
        done(views, view)


LATE: dict[tuple[str, str], type[errors.MillraceError]] = {
    ("remove", "rows"): errors.UnknownView,
    ("remove", "bulk"): errors.LeaseLost,
    ("move", "rows"): errors.NotInFlight,
    ("move", "bulk"): errors.LeaseLost,
}


@pytest.mark.parametrize(("operation", "view"), LATE)
def test_while_an_operation_is_open_nothing_is_given_out_and_answers_wait(
    views: PlatformStore, connect: factories.Connect, operation: str, view: str
) -> None:
    held = lease(views, view)
    factories.append_to(views, "c")
    views.sequence_events()
    views.register_view("other", "-infinity", mode="bulk")
    operator, late = PlatformStore(connect(autocommit=False)), PlatformStore(connect())
    at(operator, 60)
    OPERATIONS[operation](operator, view)
    at(views, 60).connection.execute("set lock_timeout = '30s'")
    if view == "rows":
        assert views.stream_events("rows") == []
        assert views.dispatch_events("rows") == 0
    else:
        assert views.claim_batch("bulk", "them") == []
        assert set(views.claim_views(["bulk", "other"], "them")) == {"other"}
        factories.refusal(errors.PartitionLeased, lambda: views.claim_partition("bulk", held[0].partition, "them"))
    factories.refusal(errors.ViewInUse, lambda: views.seek_view(view, "RESET_TO_LATEST"))
    answered = factories.start(lambda: answer(late, held))
    factories.wait_blocked(views.connection, late.connection.info.backend_pid)
    operator.connection.commit()
    factories.refusal(LATE[operation, view], lambda: answered.result(patience()))


def test_the_view_of_a_read_model_is_refused_whether_or_not_it_is_in_use(views: PlatformStore) -> None:
    factories.give_to_read_model(views.connection, "bulk")
    for _ in range(2):
        before = factories.everything(views)
        for operation in TRIED.values():
            of_a_model = factories.refusal(errors.BelongsToReadModel, partial(operation, views, "bulk"))
            assert "read model m" in str(of_a_model.detail)
        assert factories.everything(views) == before
        lease(views, "bulk")
    assert views.register_view("bulk", lock_timeout_s=5).lock_timeout_s == 5
