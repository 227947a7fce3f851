"""Owners, operators and the log's guards under races and kills: a change happens completely or not at all."""

from collections.abc import Callable
from functools import partial

import psycopg
import pytest

from millrace.archive.store import ArchiveStore
from millrace.errors import NotInFlight, NotViewOwner
from millrace.event_store.platform import PlatformStore
from tests.support.factories import (
    Connect,
    append,
    append_to,
    assert_rising,
    at_once,
    end_transaction,
    pump,
    refusal,
    rows,
    set_clock,
    start_blocked,
    terminate,
    value,
)
from tests.support.logins import Login
from tests.support.patience import patience

ENDS = ["commit", "kill"]


@pytest.mark.parametrize(("how", "with_token"), [("commit", True), ("commit", False), ("kill", True)])
def test_an_ack_counts_unless_end_locks_commit(
    view: PlatformStore, connect: Connect, how: str, with_token: bool
) -> None:
    pump(view, "v", "a", "a")
    consumer, operator = PlatformStore(connect()), connect(autocommit=False)
    (event,) = consumer.lease_events("v", 1, 3600)
    token = event.lease_token if with_token else None
    assert PlatformStore(operator).end_locks("v", reason="it hangs") == 1
    acked = start_blocked(view, consumer, lambda: consumer.ack_event("v", "a", event.offset, token))
    end_transaction(view, operator, how)
    if how == "commit":
        refusal(NotInFlight, partial(acked.result, patience()))
    else:
        acked.result(patience())
    (next_one,) = view.lease_events("v", 2)
    assert (next_one.offset == event.offset, next_one.attempt) == (how == "commit", 1)
    ended = [entry.operation for entry in view.audit_log("v") if entry.operation == "end_locks"]
    assert len(ended) == (how == "commit")


@pytest.mark.parametrize("how", ENDS)
def test_end_locks_leaves_to_an_ack_what_it_acknowledges(view: PlatformStore, connect: Connect, how: str) -> None:
    pump(view, "v", "a", "a", "other")
    consumer = connect(autocommit=False)
    event, _ = view.lease_events("v", 2, 3600)
    PlatformStore(consumer).ack_event("v", "a", event.offset, event.lease_token)
    view.connection.execute("set lock_timeout = '30s'")
    assert view.end_locks("v") == 1  # the other one
    end_transaction(view, consumer, how)
    assert view.end_locks("v") == (how != "commit")
    (next_one,) = [each for each in view.lease_events("v", 2) if each.decider_id == "a"]
    assert (next_one.offset == event.offset, next_one.attempt) == (how != "commit", 1)


def test_consumers_beside_end_locks_count_each_event_once(view: PlatformStore, connect: Connect) -> None:
    pump(view, "v", *[f"o-{n % 10}" for n in range(100)])
    acked: list[tuple[str, int]] = []
    refused: list[int] = []
    ended: list[int] = []

    def consume() -> None:
        store = PlatformStore(connect())
        while len(acked) < 100:
            for event in store.lease_events("v", 3, 3600):
                try:
                    store.ack_event("v", event.decider_id, event.offset, event.lease_token)
                except NotInFlight:
                    refused.append(event.offset)
                else:
                    acked.append((event.decider_id, event.offset))

    def operate() -> None:
        store = PlatformStore(connect())
        while len(acked) < 100:
            ended.append(store.end_locks("v"))

    for result in at_once([consume, consume, consume, operate, operate]):
        result.result()
    assert sorted(acked) == rows(view.connection, 'select decider_id, "offset" from event_store.events order by 1, 2')
    # a consumer is refused only if its lock was ended
    assert len(refused) <= sum(ended)
    assert sum(lag.lag for lag in view.view_lag("v")) == 0
    assert_rising(entry.audit_id for entry in reversed(view.audit_log("v")))


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("first", ["another consumer registers it", "an operator gives it away"])
def test_a_new_owner_keeps_others_out(
    orders: PlatformStore, connect: Connect, login: Login, first: str, how: str
) -> None:
    racer = login("event_store_consumer")
    if first == "an operator gives it away":
        PlatformStore(racer).register_view("v", mode="bulk")
        changing, owner = connect(autocommit=False), "event_store_owner"
        PlatformStore(changing).register_view("v", owner=owner)
    else:
        changing = login("event_store_consumer")
        changing.autocommit, owner = False, changing.info.user
        PlatformStore(changing).register_view("v", edge_function_url="https://example.com/first")
    racing = start_blocked(orders, racer, lambda: PlatformStore(racer).register_view("v", max_attempts=7))
    end_transaction(orders, changing, how)
    if how == "commit":
        refusal(NotViewOwner, partial(racing.result, patience()))
    else:
        assert racing.result(patience()).max_attempts == 7
    expected = (owner, 5) if how == "commit" else (racer.info.user, 7)
    assert rows(orders.connection, "select owner, max_attempts from event_store.views") == [expected]
    assert len(orders.audit_log("v")) == (1 if first.startswith("another") else 2)


@pytest.mark.parametrize("mode", ["rows", "bulk"])
def test_who_loses_a_view_answers_for_nothing_more(orders: PlatformStore, login: Login, mode: str) -> None:
    former = PlatformStore(login("event_store_consumer"))
    former.register_view("v", "-infinity", mode=mode)
    (appended,) = append_to(orders, "a")
    if mode == "bulk":
        answer: Callable[[], object] = partial(former.commit_batch, "v", former.claim_batch("v", "me"))
    else:
        pump(orders, "v")
        (event,) = former.lease_events("v")
        answer = partial(former.ack_event, "v", "a", event.offset, event.lease_token)
    orders.register_view("v", owner="event_store_owner")
    refusal(NotViewOwner, answer)
    # the event is not lost either: operators end the killed session's locks
    assert sum(lag.lag for lag in orders.view_lag("v")) == 1
    if mode == "bulk":
        assert orders.release_owner("me") == 1
        assert len(orders.read_batch("v", orders.claim_batch("v", "other")[0])) == 1
    else:
        assert orders.end_locks("v") == 1
        assert [each.offset for each in orders.lease_events("v")] == [appended.offset]


@pytest.mark.parametrize("how", ENDS)
def test_the_archives_lock_is_free_when_its_taker_is_killed(store: PlatformStore, connect: Connect, how: str) -> None:
    first, second = connect(autocommit=False), connect()
    assert ArchiveStore(first).lock_archive(3, "first")
    racing = start_blocked(store, second, lambda: ArchiveStore(second).lock_archive(3, "second"))
    end_transaction(store, first, how)
    assert racing.result(patience()) is (how != "commit")
    # a later session
    assert ArchiveStore(second).lock_archive(3, "second") is (how != "commit")
    if how == "commit":
        terminate(store.connection, first.info.backend_pid)
        assert ArchiveStore(second).lock_archive(3, "second")


def test_the_archives_lock_of_a_session_whose_pid_another_one_got_is_free(
    store: PlatformStore, connect: Connect
) -> None:
    assert ArchiveStore(connect()).lock_archive(3, "first")
    assert not ArchiveStore(store.connection).lock_archive(3, "second")
    store.connection.execute(
        "update event_store.archive_locks set session_began_at = session_began_at - interval '1 s'"
    )
    assert ArchiveStore(store.connection).lock_archive(3, "second")


def test_the_archives_lock_lasts_15_minutes_since_it_was_renewed(connect: Connect) -> None:
    first, second = connect(), connect()

    def at(time_: str, session: psycopg.Connection) -> bool:
        set_clock(session, f"2030-01-01 {time_}+00")
        return ArchiveStore(session).lock_archive(3, "first" if session is first else "second")

    assert at("00:00:00", first)
    assert at("00:10:00", first)
    assert not at("00:24:59", second)
    assert at("00:25:00", second)
    assert not at("00:25:00", first)


CHANGES: dict[str, Callable[[PlatformStore], object]] = {
    "register": lambda store: store.register_view("new", "-infinity"),
    "settings": lambda store: store.register_view("v", max_attempts=9),
    "disable": lambda store: store.enable_view("v", enabled=False, reason="no"),
    "seek": lambda store: store.seek_view("v", "RESET_TO_LATEST"),
    "end_locks": lambda store: store.end_locks("held"),
    "discard": lambda store: store.discard_dead_letter("parked", "order", "a", "no"),
    "retry": lambda store: store.retry_dead_letters("parked"),
    "unregister": lambda store: store.unregister_view("v"),
    "owned decider": lambda store: store.register_decider_event("payment", "paid", "", owner="event_store_owner"),
}


def test_a_change_that_is_rolled_back_is_neither_done_nor_written_down(orders: PlatformStore, connect: Connect) -> None:
    append(orders, "a")
    for name in ("v", "held", "parked"):
        orders.register_view(name, "-infinity", max_attempts=1)
    for name in ("held", "parked"):
        pump(orders, name)
        (event,) = orders.lease_events(name)
        if name == "parked":
            orders.fail_event(name, "a", event.offset, "no", event.lease_token)
    state = partial(
        rows,
        orders.connection,
        """
        select 'audit', audit_id::text, to_jsonb(a) from event_store.audit_log a
        union all select 'views', view, to_jsonb(v) from event_store.views v
        union all select 'checkpoints', view || partition, to_jsonb(c) from event_store.checkpoints c
        union all select 'locks', view || decider_id, to_jsonb(k) from event_store.stream_locks k
        union all select 'deciders', decider || event, to_jsonb(d) from event_store.deciders d
        order by 1, 2
        """,
    )
    before = state()
    for name, change in CHANGES.items():
        for how in ("kill", "savepoint"):
            session = connect(autocommit=False)
            session.execute("savepoint before")
            change(PlatformStore(session))
            written = value(session, "select count(*) from event_store.audit_log")
            assert written > sum(row[0] == "audit" for row in before), name
            if how == "savepoint":
                session.execute("rollback to savepoint before")
                session.commit()
            else:
                terminate(orders.connection, session.info.backend_pid)
            assert state() == before, (name, how)
