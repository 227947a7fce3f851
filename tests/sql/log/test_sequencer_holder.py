"""Who holds up the whole log with an open transaction."""

from millrace.resources.event_store import EventStore
from millrace.resources.sequencer import held_up
from tests.support.factories import Connect, append_to, rows, start, value, wait_blocked
from tests.support.patience import patience


def test_an_open_transaction_that_sequenced_is_named_with_its_login(orders: EventStore, connect: Connect) -> None:
    append_to(orders, "o-1")
    assert orders.sequencer_holder() is None
    assert held_up(orders) is None
    other = connect(autocommit=False)
    other.execute("set application_name = 'a consumer'")
    other.execute("select event_store_platform.sequence_events()")
    append_to(orders, "o-2")
    # nobody gives the second one its position
    assert orders.sequence_events() == 0
    holder = held_up(orders, seconds=0.2)
    assert holder is not None
    assert (holder.pid, holder.login, holder.application_name) == (other.info.backend_pid, "postgres", "a consumer")
    assert holder.open_since is not None
    assert value(orders.connection, "select pg_terminate_backend(%s, 5000)", holder.pid)
    assert orders.sequencer_holder() is None
    # what it had sequenced was not committed
    assert orders.sequence_events() == 2


def test_who_waits_for_the_holder_holds_nothing(orders: EventStore, connect: Connect) -> None:
    holder, waiting = connect(autocommit=False), connect()
    orders.connection.execute("set lock_timeout = '2s'")
    append_to(orders, "o-1")
    holder.execute("select event_store_platform.sequence_events()")
    waits = start(lambda: waiting.execute("select from event_store.sequencer for update"))
    wait_blocked(orders.connection, waiting.info.backend_pid)
    assert rows(orders.connection, "select pid from event_store_platform.sequencer_holder()") == [
        (holder.info.backend_pid,)
    ]
    holder.rollback()
    waits.result(patience())


def test_calls_that_follow_each_other_hold_nothing_up(orders: EventStore, connect: Connect) -> None:
    other = EventStore(connect(autocommit=False))

    class Busy(EventStore):
        """A store where another session sequences between any two looks, each time in a transaction of its own."""

        def sequencer_holder(self):  # type: ignore[no-untyped-def]  # noqa: ANN202
            other.connection.rollback()
            append_to(orders, "o-1")
            other.sequence_events()
            return super().sequencer_holder()

    assert held_up(Busy(orders.connection), seconds=60) is None
    other.connection.rollback()


def test_a_transaction_that_only_looked_or_only_appended_holds_nothing(orders: EventStore, connect: Connect) -> None:
    with connect(autocommit=False) as other:
        other.execute("select * from event_store_platform.sequencer_holder()")
        append_to(EventStore(other), "o-1")
        assert orders.sequencer_holder() is None
