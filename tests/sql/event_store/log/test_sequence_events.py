"""The log's order: dense, in the order of commits, despite open transactions, kills and restores."""

import threading
from contextlib import nullcontext
from functools import partial
from random import Random
from typing import LiteralString

import psycopg
import pytest

from millrace.event_store.platform import PlatformStore
from millrace.postgres.embedded import EmbeddedPostgres
from tests.support import factories
from tests.support.factories import Connect
from tests.support.patience import patience
from tests.support.sql_calls import append_events


def test_a_stream_stays_in_one_partition_for_all_deciders(orders: PlatformStore) -> None:
    append_events(orders, [factories.new_event(f"o-{n}", decider=d) for n in range(200) for d in ("order", "invoice")])
    assert orders.sequence_events() == 400
    factories.assert_log_holds_every_event_once(orders.connection)
    places = factories.rows(
        orders.connection,
        """
        select count(distinct partition), count(distinct decider)
        from event_store.event_log join event_store.events using ("offset") group by decider_id
        """,
    )
    assert set(places) == {(1, 2)}
    used = factories.value(orders.connection, "select count(distinct partition) from event_store.event_log")
    assert used == 16


def test_the_partition_of_an_id_is_for_good(store: PlatformStore) -> None:
    """These numbers are part of stored data: if they change, existing logs break."""
    fixed = {"o-1": 7, "o-2": 15, "日本": 6, "f156a3c4-9bd8-11ed-a8fc-0242ac120002": 9}
    partition: LiteralString = "select event_store.stream_partition(%s, 16)"
    assert {decider_id: factories.value(store.connection, partition, decider_id) for decider_id in fixed} == fixed


def test_an_open_transaction_delays_nobodys_events_but_its_own(orders: PlatformStore, connect: Connect) -> None:
    early, late = connect(autocommit=False), connect(autocommit=False)
    factories.append(PlatformStore(early), "early")
    factories.append(orders, "o-1")
    factories.append(PlatformStore(late), "late")
    assert orders.sequence_events() == 1
    factories.append(orders, "o-2")
    assert orders.sequence_events() == 1
    late.commit()
    assert orders.sequence_events() == 1
    factories.append(orders, "o-3")
    early.commit()
    assert orders.sequence_events() == 2
    assert orders.sequence_events() == 0
    factories.assert_log_holds_every_event_once(orders.connection)


def test_an_open_transaction_of_another_database_delays_nobody(
    orders: PlatformStore, postgres: EmbeddedPostgres
) -> None:
    with psycopg.connect(postgres.dsn("postgres")) as elsewhere:
        elsewhere.execute("create table other ()")
        factories.append(orders)
        assert orders.sequence_events() == 1
        factories.append(orders, "o-2")
        assert orders.sequence_events() == 1
        elsewhere.rollback()
    assert orders.sequence_events() == 0
    factories.assert_log_holds_every_event_once(orders.connection)


@pytest.mark.parametrize("before", ["nothing", "an append", "a savepoint"])
def test_an_append_after_sequencing_comes_after_its_commit(
    orders: PlatformStore, connect: Connect, before: str
) -> None:
    writer = PlatformStore(connect(autocommit=False))
    writer.connection.execute("select")  # the transaction begins
    if before != "nothing":
        with writer.connection.transaction() if before == "a savepoint" else nullcontext():
            factories.append(writer, "o-2")
    factories.append(orders, "o-1")  # younger than the open transaction, which then lies within the snapshot
    assert writer.sequence_events() == 1
    factories.append(writer, "o-3")
    writer.connection.commit()
    assert orders.sequence_events() == (1 if before == "nothing" else 2)
    factories.assert_log_holds_every_event_once(orders.connection)


def test_a_reader_at_the_tail_sees_no_gap(orders: PlatformStore, connect: Connect) -> None:
    """Writers commit and roll back, sequencers race, long transactions stay open; a reader follows the log."""
    written = threading.Event()

    def write(seed: int) -> None:
        random = Random(seed)
        writer = PlatformStore(connect(autocommit=False))
        for _ in range(60):
            factories.append_to(writer, *[f"o-{random.randrange(12)}" for _ in range(random.randrange(1, 5))])
            random.choices([writer.connection.rollback, writer.connection.commit], [3, 7])[0]()

    def sequence() -> None:
        sequencer = PlatformStore(connect())
        while not written.is_set():
            sequencer.sequence_events()

    def tail() -> list[factories.LogEntry]:
        reader = PlatformStore(connect())
        seen: list[factories.LogEntry] = []
        next_offset = dict.fromkeys(range(16), 0)
        done = False
        while not done:
            done = written.is_set()
            while done and reader.sequence_events():
                pass
            for entry in factories.read_log(reader.connection):
                if entry.position >= next_offset[entry.partition]:
                    # a gap here could fill later, behind the reader's back
                    assert entry.position == next_offset[entry.partition]
                    next_offset[entry.partition] += 1
                    seen.append(entry)
        return seen

    open_here, open_later = connect(autocommit=False), connect(autocommit=False)
    factories.append(PlatformStore(open_here), "open-here")
    factories.append(PlatformStore(open_later), "open-later")
    tailer = factories.start(tail)
    sequencers = [factories.start(sequence) for _ in range(2)]
    writers = factories.at_once([partial(write, seed) for seed in range(5)])
    open_here.commit()
    open_later.rollback()
    written.set()
    seen = tailer.result(patience())
    for done in (*writers, *sequencers):
        done.result(patience())
    factories.assert_dense_and_ordered(seen)
    assert len(seen) == factories.value(orders.connection, "select count(*) from event_store.events") > 300
    assert len({entry.event_id for entry in seen}) == len(seen)
    factories.assert_log_holds_every_event_once(orders.connection)


def test_a_sequencer_killed_while_it_writes_loses_and_doubles_nothing(orders: PlatformStore, connect: Connect) -> None:
    factories.append_to(orders, "o-1", "o-2", "o-3")
    blocker, doomed = connect(autocommit=False), connect()
    blocker.execute("lock table event_store.event_log in share mode")  # the sequencer stops half way
    killed = factories.start_blocked(orders, doomed, lambda: PlatformStore(doomed).sequence_events())
    assert orders.sequence_events() == 0  # the single writer's lock is taken
    factories.terminate(orders.connection, doomed.info.backend_pid)
    blocker.rollback()
    assert isinstance(killed.exception(patience()), psycopg.OperationalError)
    assert orders.sequence_events() == 3
    factories.assert_log_holds_every_event_once(orders.connection)


def pretend_younger_cluster(connection: psycopg.Connection) -> None:
    connection.execute("update event_store.sequencer set snapshot = '900000000:900000000:'")


def test_events_committed_while_the_sequencer_is_rebased_are_not_lost(orders: PlatformStore, connect: Connect) -> None:
    factories.append_to(orders, "o-1", "o-2")
    pretend_younger_cluster(orders.connection)
    blocker, rebasing = connect(autocommit=False), connect()
    blocker.execute("select from event_store.events for update")  # the re-base stops half way
    rebased = factories.start_blocked(orders, rebasing, lambda: PlatformStore(rebasing).sequence_events())
    factories.append_to(orders, "o-3", "o-1")
    blocker.rollback()
    rebased.result(patience())
    sequence_all(orders)


def sequence_all(store: PlatformStore) -> None:
    """Sequence until nothing is new; the log holds every event once then."""
    while store.sequence_events():
        pass
    factories.assert_log_holds_every_event_once(store.connection)


def test_a_rebase_counts_its_own_open_transaction(orders: PlatformStore, connect: Connect) -> None:
    factories.append_to(orders, "o-1")
    orders.sequence_events()
    factories.append_to(orders, "o-2")
    pretend_younger_cluster(orders.connection)
    connection = connect(autocommit=False)
    writer = PlatformStore(connection)
    factories.append(writer, "o-3")
    assert writer.sequence_events() == 1  # o-2: its own events are not committed
    factories.append(writer, "o-4")
    connection.commit()
    assert orders.sequence_events() == 2
    factories.assert_log_holds_every_event_once(orders.connection)


def test_a_rebase_beside_an_open_transaction_inverts_no_stream(orders: PlatformStore, connect: Connect) -> None:
    pretend_younger_cluster(orders.connection)
    first = factories.append(orders, "o-1")
    writer = PlatformStore(connect(autocommit=False))
    factories.append(writer, "o-1", first.event_id)
    factories.append(orders, "o-2")  # the greatest offset, and committed first
    orders.sequence_events()
    writer.connection.commit()
    sequence_all(orders)
