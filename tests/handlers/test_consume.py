"""Functions called for events: plain, async, with a connection; in order, in parallel, each event once."""

import asyncio
import logging
import threading
from uuid import uuid4

import psycopg
import pytest

from millrace.errors import TryLater, UnknownView, ViewInUse, WrongMode
from millrace.event_schemas import rename
from millrace.event_store import Delivery, EventStore, NewEvent
from millrace.event_store.platform import PlatformStore
from millrace.event_store.wake_ups import Wakeups
from millrace.handlers import consumer as consuming_of
from millrace.handlers.consumer import consume
from millrace.handlers.declaration import Subscription, subscription
from millrace.sequencer import run_sequencer
from tests.event_store.test_wake_ups import listeners
from tests.support.factories import Connect, append, append_to, rows, start, value
from tests.support.patience import patience, wait_until
from tests.support.sql_calls import BatchEvent, append_events
from tests.support.views.consuming import Seen, consuming, fill, owed, wait_consumed, wait_waking


def handled_by(handler: object, **settings: object) -> Subscription:
    return subscription(**{"view": "v", "start": "-infinity", **settings})(handler)  # type: ignore[arg-type]


def ignore(_: Delivery) -> None:
    pass


def test_a_function_is_called_once_for_each_event_in_order(orders: PlatformStore, dsn: str) -> None:
    fill(orders, 20, 4)
    seen = Seen()
    with consuming(dsn, handled_by(seen.add)) as running:
        wait_consumed(orders, "v")
    seen.assert_each_once_in_order(20, 4)
    counters = running.counters["v"]
    assert (counters.handled, counters.failed, counters.lost, counters.hung) == (80, 0, 0, 0)
    assert counters.leased == counters.handled + counters.given_back
    assert rows(orders.connection, "select from event_store.stream_locks where in_flight is not null") == []


def test_data_come_as_they_are_stored_or_in_the_newest_shape_if_asked_for(orders: PlatformStore, dsn: str) -> None:
    append(orders, data={"n": 1})
    orders.register_event_upcast("order", "placed", 2, [rename("n", "number")])
    seen: dict[bool, list[tuple[object, int, bool]]] = {True: [], False: []}
    for upcast, found in seen.items():

        def note(event: Delivery, found: list[tuple[object, int, bool]] = found) -> None:
            found.append((event.data, event.event_version, event.lease_token > 0))

        with consuming(dsn, handled_by(note, view=f"v-{upcast}", upcast=upcast)):
            wait_consumed(orders, f"v-{upcast}")
    assert seen == {True: [({"number": 1}, 1, True)], False: [({"n": 1}, 1, True)]}


def test_as_many_streams_are_handled_at_once_as_declared(orders: PlatformStore, dsn: str) -> None:
    fill(orders, 6, 2)
    together = threading.Barrier(5)
    lock = threading.Lock()
    busy: list[str] = []
    most: list[int] = []

    def handle(event: Delivery) -> None:
        with lock:
            assert event.decider_id not in busy
            busy.append(event.decider_id)
            most.append(len(busy))
        if event.version == 1 and event.decider_id != "s-5":
            together.wait(patience())
        with lock:
            busy.remove(event.decider_id)

    with consuming(dsn, handled_by(handle, concurrency=5)) as running:
        wait_consumed(orders, "v")
    assert max(most) == 5
    assert running.counters["v"].failed == 0


def test_an_async_function_runs_on_one_event_loop(orders: PlatformStore, dsn: str) -> None:
    fill(orders, 8, 3)
    seen = Seen()
    loops: set[int] = set()
    together = asyncio.Barrier(4)

    async def handle(event: Delivery) -> None:
        loops.add(id(asyncio.get_running_loop()))
        if event.version == 1:
            await together.wait()
        seen.add(event)

    with consuming(dsn, handled_by(handle, concurrency=4)):
        wait_consumed(orders, "v")
    seen.assert_each_once_in_order(8, 3)
    assert len(loops) == 1


def test_with_a_connection_effect_and_acknowledgement_commit_together(orders: PlatformStore, dsn: str) -> None:
    orders.connection.execute("create table mails (event_id uuid)")
    fill(orders, 20, 3)
    waits: list[int] = []

    def handle(event: Delivery, connection: psycopg.Connection) -> None:
        connection.execute("insert into mails values (%s)", (event.event_id,))
        if event.decider_id == "s-7" and event.version == 2 and not waits:
            waits.append(event.attempt)
            raise RuntimeError("the printer burns")

    with consuming(dsn, handled_by(handle)) as running:
        wait_until(lambda: owed(orders, "v") == 2, "all but one stream is consumed")
        assert value(orders.connection, "select count(*) from mails") == 58
        wait_waking(orders, lambda: owed(orders, "v") == 0, "all is consumed")
    assert rows(orders.connection, "select count(*), count(distinct event_id) from mails") == [(60, 60)]
    assert (running.counters["v"].handled, running.counters["v"].failed) == (60, 1)


def test_with_a_connection_nothing_stays_of_a_lost_lock(orders: PlatformStore, dsn: str, connect: Connect) -> None:
    orders.connection.execute("create table mails (attempt int)")
    fill(orders, 1, 1)
    begun, go_on = threading.Event(), threading.Event()

    def handle(event: Delivery, connection: psycopg.Connection) -> None:
        connection.execute("insert into mails values (%s)", (event.attempt,))
        begun.set()
        assert go_on.wait(patience())

    with consuming(dsn, handled_by(handle, concurrency=1)) as running:
        assert begun.wait(patience())
        operator = PlatformStore(connect(autocommit=False))
        # in one transaction: else the consumer itself would lease the event again
        assert operator.end_locks("v") == 1
        (other,) = operator.lease_events("v")
        operator.connection.commit()
        go_on.set()
        wait_until(lambda: running.counters["v"].lost == 1, "the lock is lost")
        assert rows(orders.connection, "select from mails") == []
        orders.ack_events("v", [other.offset], [other.lease_token])
    assert running.counters["v"].handled == 0


def test_a_transaction_that_lost_a_race_is_tried_again_at_once(orders: PlatformStore, dsn: str) -> None:
    orders.connection.execute("create table counted (n int)")
    orders.connection.execute("insert into counted values (0)")
    fill(orders, 10, 2)

    def handle(_: Delivery, connection: psycopg.Connection) -> None:
        connection.execute("set transaction isolation level repeatable read")
        (n,) = connection.execute("select n from counted").fetchone() or ()
        connection.execute("update counted set n = %s", (n + 1,))

    orders.sequence_events()
    # two handlers collide in turns; with more, one may lose every try
    with consuming(dsn, handled_by(handle, concurrency=2)):
        wait_waking(orders, lambda: owed(orders, "v") == 0, "all are counted")
    assert value(orders.connection, "select n from counted") == 20


def test_what_a_handler_raises_ends_in_a_letter(
    orders: PlatformStore, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "millrace.consumers")
    fill(orders, 10, 2)
    seen = Seen()

    def handle(event: Delivery) -> None:
        if event.decider_id == "s-3":
            raise ValueError("no such customer\0 postgresql://me:s3cret@host/db")
        seen.add(event)

    with consuming(dsn, handled_by(handle, max_attempts=2)):
        wait_until(lambda: owed(orders, "v") == 2, "the others are done")
        wait_waking(orders, lambda: orders.dead_letters("v") != [], "it is parked")
    assert len(seen.by_stream) == 9
    (letter,) = orders.dead_letters("v")
    assert (letter.decider_id, letter.event, letter.attempts, letter.waiting) == ("s-3", "placed", 2, 2)
    assert letter.last_error.startswith("ValueError: no such customer")
    assert "test_consume" in letter.last_error
    assert ", line " in letter.last_error
    assert "s3cret" not in letter.last_error + caplog.text
    (parked,) = [line for line in caplog.messages if line.startswith("dead letter")]
    assert "view=v decider=order decider_id=s-3 event=placed" in parked
    assert 'then="millrace dead list v"' in parked


def test_a_handler_may_ask_to_be_called_later_which_is_no_failure(orders: PlatformStore, dsn: str) -> None:
    fill(orders, 2, 1)
    attempts: list[int] = []

    def handle(event: Delivery) -> None:
        if event.decider_id == "s-1":
            raise TryLater("the mail server is away", after_s=600)
        attempts.append(event.attempt)
        if len(attempts) < 4:
            raise TryLater("the mail server is away", after_s=0)

    with consuming(dsn, handled_by(handle, max_attempts=1)) as running:
        wait_until(lambda: owed(orders, "v") == 1, "one event is handled")
        wait_until(lambda: running.counters["v"].given_back == 4, "the other one is given back")
    assert attempts == [1, 1, 1, 1]
    assert running.counters["v"].failed == 0
    waits = """
        select last_error, attempts, locked_until > clock_timestamp() + interval '9 minutes'
        from event_store.stream_locks where decider_id = 's-1'
    """
    assert rows(orders.connection, waits) == [("the mail server is away", 0, True)]


def test_a_new_view_begins_now_and_wants_what_is_declared(orders: PlatformStore, dsn: str) -> None:
    fill(orders, 2, 3)
    seen = Seen()
    with consuming(dsn, handled_by(seen.add, start=None, deciders=["order"], events=["placed"])):
        append_to(orders, "new-1")
        append(orders, "new-2", event="paid")
        append(orders, "new-3", decider="invoice")
        wait_until(lambda: len(seen.events) == 1, "the event came")
    assert [event.decider_id for event in seen.events] == ["new-1"]
    assert rows(orders.connection, "select deciders, events from event_store.views") == [(["order"], ["placed"])]


def test_settings_of_the_higher_version_stay(orders: PlatformStore, dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "millrace.consumers")
    old, new = Seen(), Seen()
    newer = handled_by(new.add, events=["placed", "paid"], version=2, max_attempts=7)
    older = handled_by(old.add, events=["placed"], version=1, max_attempts=3)
    with consuming(dsn, newer):
        pass
    assert caplog.messages == [line for line in caplog.messages if "newer version" not in line]
    with consuming(dsn, older) as running:
        wait_until(lambda: "settings of a newer version stay view=v version=2 this_version=1" in caplog.text, "told")
        fill(orders, 1, 2)
        wait_until(lambda: running.counters["v"].given_back >= 1, "the event of the newer one is given back")
        with consuming(dsn, newer):
            wait_consumed(orders, "v")
    assert [event.event for event in old.events] in (["placed"], [])
    assert "paid" in [event.event for event in new.events]
    kept = "select events, max_attempts, version from event_store.views"
    assert rows(orders.connection, kept) == [(["placed", "paid"], 7, 2)]


def test_two_consumers_of_a_view_share_its_streams(orders: PlatformStore, dsn: str) -> None:
    fill(orders, 20, 4)
    one, other = Seen(), Seen()
    begun = threading.Event(), threading.Event()

    def shared(seen: Seen, own: threading.Event, others: threading.Event) -> Subscription:
        def handle(event: Delivery) -> None:
            own.set()
            assert others.wait(patience())
            seen.add(event)

        return handled_by(handle, concurrency=2)

    with consuming(dsn, shared(one, *begun)), consuming(dsn, shared(other, *begun[::-1])):
        wait_consumed(orders, "v")
    assert one.events
    assert other.events
    together = sorted(one.events + other.events, key=lambda event: event.offset)
    assert [event.version for event in together if event.decider_id == "s-9"] == [1, 2, 3, 4]
    assert len({event.offset for event in together}) == len(together) == 80


def test_many_subscriptions_run_in_one_process_and_a_fault_of_one_ends_all(orders: PlatformStore, dsn: str) -> None:
    fill(orders, 5, 2)
    one, other = Seen(), Seen()
    views = handled_by(one.add, view="one"), handled_by(other.add, view="other")

    def unregistered() -> bool:
        try:
            orders.unregister_view("other")
        except ViewInUse:
            return False
        return True

    def until_one_fails() -> None:
        with consuming(dsn, *views) as running:
            wait_consumed(orders, "one")
            wait_consumed(orders, "other")
            wait_until(unregistered, "a moment in which nothing of it is open")
            wait_until(running.ended.done, "both have ended")

    with pytest.raises(UnknownView):
        until_one_fails()
    one.assert_each_once_in_order(5, 2)
    other.assert_each_once_in_order(5, 2)


def test_a_fault_in_hearing_words_ends_the_consumers_and_is_raised(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ArithmeticError("unheard of")

    monkeypatch.setattr(Wakeups, "wait", fail)
    stop = threading.Event()
    running = start(lambda: consume(dsn, [handled_by(Seen().add)], stop=stop))
    try:
        with pytest.raises(ArithmeticError, match="unheard of"):
            running.result(patience())
    finally:
        stop.set()


def test_a_view_of_another_mode_or_no_server_is_an_error(orders: PlatformStore, dsn: str) -> None:
    orders.register_view("bulky", mode="bulk")
    with pytest.raises(WrongMode):
        consume(dsn, [handled_by(ignore, view="bulky")], stop=threading.Event())
    with pytest.raises(psycopg.OperationalError):
        consume("host=/nowhere", [handled_by(ignore)], stop=threading.Event())


def test_what_a_handler_appends_is_caused_by_its_event(orders: PlatformStore, dsn: str) -> None:
    metadata = {"correlation_id": "request-7"}
    append_events(
        orders, (BatchEvent("order", name, "placed", uuid4(), {}, uuid4(), metadata=metadata) for name in "abc")
    )

    def with_a_connection(event: Delivery, connection: psycopg.Connection, kind: str = "with a connection") -> None:
        EventStore(connection).append("invoice", f"{event.decider_id} {kind}", NewEvent("placed"))

    def plainly(event: Delivery) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            with_a_connection(event, connection, "plain")

    async def on_the_loop(event: Delivery) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            with_a_connection(event, connection, "async")

    handlers = (plainly, on_the_loop, with_a_connection)
    with consuming(dsn, *(handled_by(each, view=each.__name__, deciders=["order"]) for each in handlers)):
        for each in handlers:
            wait_consumed(orders, each.__name__)
    causes = """
        select bill.metadata = jsonb_build_object('correlation_id', 'request-7', 'causation_id', cause.event_id)
        from event_store.events bill join event_store.events cause on starts_with(bill.decider_id, cause.decider_id)
        where (bill.decider, cause.decider) = ('invoice', 'order')
    """
    assert rows(orders.connection, causes) == [(True,)] * 9


# Wake-ups: beside a sequencer it need not poll for new events ------------------------------------------------------


def is_quiet(connection: psycopg.Connection, other: psycopg.Connection) -> bool:
    """Return whether a consumer's session, not the other one, has been idle for a while after its last polls."""
    query = """
        select from pg_stat_activity where datname = current_database() and state = 'idle' and pid <> %s
          and query ~ 'select event_store_platform.(dispatch_events|is_attended)'
          and state_change < clock_timestamp() - interval '0.3 s'
    """
    return bool(rows(connection, query, other.info.backend_pid))


def test_a_word_wakes_it(orders: PlatformStore, dsn: str, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    # polling alone would be too slow
    for name in ("LOOK_S", "ASK_S", "GROWTH"):
        monkeypatch.setattr(consuming_of, name, 60_000.0)
    observer, seen, stop = connect(), Seen(), threading.Event()
    sequencing = start(lambda: run_sequencer(dsn, stop))
    try:
        wait_until(orders.is_attended, "a sequencer is at work")
        with consuming(dsn, handled_by(seen.add)):
            wait_until(lambda: listeners(observer), "the consumer listens")
            for number in range(3):
                wait_until(lambda: is_quiet(observer, orders.connection), "the consumer waits")
                append(orders, f"o-{number}")
                wait_until(lambda n=number: len(seen.events) == n + 1, "the event is handled")  # type: ignore[misc]
    finally:
        stop.set()
        sequencing.result(patience())
