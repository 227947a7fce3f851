"""The log's order: dense, in the order of commits, whoever is open, killed or restored."""

import threading
from functools import partial
from random import Random

import psycopg
import pytest

from millrace.resources.event_store import EventStore
from millrace.resources.postgres.embedded import EmbeddedPostgres
from tests.support.factories import (
    Connect,
    LogEntry,
    append,
    append_to,
    assert_dense_and_ordered,
    assert_log_holds_every_event_once,
    at_once,
    new_event,
    read_log,
    rows,
    start,
    terminate,
    value,
    wait_blocked,
)
from tests.support.patience import patience

# B1, B2


def test_a_stream_stays_in_one_partition_for_all_deciders(orders: EventStore) -> None:
    orders.append_events([new_event(f"o-{n}", decider=d) for n in range(200) for d in ("order", "invoice")])
    assert orders.sequence_events() == 400
    assert_log_holds_every_event_once(orders.connection)
    places = rows(
        orders.connection,
        """
        select count(distinct partition), count(distinct decider)
        from event_store.event_log join event_store.events using ("offset") group by decider_id
        """,
    )
    assert set(places) == {(1, 2)}
    used = value(orders.connection, "select count(distinct partition) from event_store.event_log")
    assert used == 16


def test_the_partition_of_an_id_is_for_good(store: EventStore) -> None:
    """These numbers are part of the stored data: if they change, existing logs break."""
    found = [
        value(store.connection, "select event_store.stream_partition(%s, 16)", decider_id)
        for decider_id in ("o-1", "o-2", "日本", "f156a3c4-9bd8-11ed-a8fc-0242ac120002")
    ]
    assert found == FIXED_PARTITIONS


FIXED_PARTITIONS = [7, 15, 6, 9]


# A10


def test_an_open_transaction_delays_nobodys_events_but_its_own(orders: EventStore, connect: Connect) -> None:
    early, late = connect(autocommit=False), connect(autocommit=False)
    append(EventStore(early), "early")
    append(orders, "o-1")
    append(EventStore(late), "late")
    assert orders.sequence_events() == 1
    append(orders, "o-2")
    assert orders.sequence_events() == 1
    late.commit()
    assert orders.sequence_events() == 1
    append(orders, "o-3")
    early.commit()
    assert orders.sequence_events() == 2
    assert orders.sequence_events() == 0
    assert_log_holds_every_event_once(orders.connection)


def test_an_open_write_transaction_in_another_database_delays_nobody(
    orders: EventStore, postgres: EmbeddedPostgres
) -> None:
    with psycopg.connect(postgres.dsn("postgres")) as elsewhere:
        elsewhere.execute("create table other ()")
        append(orders)
        assert orders.sequence_events() == 1
        append(orders, "o-2")
        assert orders.sequence_events() == 1
        elsewhere.rollback()
    assert orders.sequence_events() == 0
    assert_log_holds_every_event_once(orders.connection)


@pytest.mark.parametrize("before", ["nothing", "an append", "a savepoint"])
def test_an_append_after_sequencing_in_one_transaction_is_sequenced_after_its_commit(
    orders: EventStore, connect: Connect, before: str
) -> None:
    connection = connect(autocommit=False)
    writer = EventStore(connection)
    connection.execute("select")  # the transaction begins
    if before == "an append":
        append(writer, "o-2")
    if before == "a savepoint":
        with connection.transaction():
            append(writer, "o-2")
    append(orders, "o-1")  # younger than the open transaction, which so lies within the snapshot
    assert writer.sequence_events() == 1
    append(writer, "o-3")
    connection.commit()
    assert orders.sequence_events() == (1 if before == "nothing" else 2)
    assert_log_holds_every_event_once(orders.connection)


def test_a_tailing_reader_sees_dense_offsets_whoever_writes(
    orders: EventStore, connect: Connect, postgres: EmbeddedPostgres
) -> None:
    """Writers commit and roll back, sequencers race, long transactions stay open; a reader follows the log."""
    written = threading.Event()

    def write(seed: int) -> None:
        random = Random(seed)
        connection = connect(autocommit=False)
        writer = EventStore(connection)
        for _ in range(60):
            append_to(writer, *[f"o-{random.randrange(12)}" for _ in range(random.randrange(1, 5))])
            if random.random() < 0.3:
                connection.rollback()
            else:
                connection.commit()

    def sequence() -> None:
        sequencer = EventStore(connect())
        while not written.is_set():
            sequencer.sequence_events()

    def tail() -> list[LogEntry]:
        connection = connect()
        seen: list[LogEntry] = []
        next_offset = dict.fromkeys(range(16), 0)
        done = False
        while not done:
            done = written.is_set()
            if done:
                while EventStore(connection).sequence_events():
                    pass
            for entry in read_log(connection):
                if entry.position >= next_offset[entry.partition]:
                    # a gap here could fill later, behind the reader's back
                    assert entry.position == next_offset[entry.partition]
                    next_offset[entry.partition] += 1
                    seen.append(entry)
        return seen

    open_here, open_later = connect(autocommit=False), connect(autocommit=False)
    append(EventStore(open_here), "open-here")
    append(EventStore(open_later), "open-later")
    with psycopg.connect(postgres.dsn("postgres")) as elsewhere:
        elsewhere.execute("create table other ()")
        tailer = start(tail)
        sequencers = [start(sequence) for _ in range(2)]
        writers = at_once([partial(write, seed) for seed in range(5)])
        open_here.commit()
        open_later.rollback()
        written.set()
        seen = tailer.result(patience())
        elsewhere.rollback()
    for done in (*writers, *sequencers):
        done.result(patience())
    assert_dense_and_ordered(seen)
    assert len(seen) == value(orders.connection, "select count(*) from event_store.events") > 300
    assert len({entry.event_id for entry in seen}) == len(seen)
    assert_log_holds_every_event_once(orders.connection)


# A11


def test_a_sequencer_killed_while_it_writes_loses_and_doubles_nothing(orders: EventStore, connect: Connect) -> None:
    append_to(orders, "o-1", "o-2", "o-3")
    blocker, doomed = connect(autocommit=False), connect()
    blocker.execute("lock table event_store.event_log in share mode")  # the sequencer stops half way
    killed = start(lambda: EventStore(doomed).sequence_events())
    wait_blocked(orders.connection, doomed.info.backend_pid)
    assert orders.sequence_events() == 0  # the single writer's lock is taken
    terminate(orders.connection, doomed.info.backend_pid)
    blocker.rollback()
    assert isinstance(killed.exception(patience()), psycopg.OperationalError)
    assert orders.sequence_events() == 3
    assert_log_holds_every_event_once(orders.connection)


def pretend_younger_cluster(connection: psycopg.Connection) -> None:
    connection.execute("update event_store.sequencer set snapshot = '900000000:900000000:'")


def test_events_committed_while_the_sequencer_is_rebased_are_not_lost(orders: EventStore, connect: Connect) -> None:
    append_to(orders, "o-1", "o-2")
    pretend_younger_cluster(orders.connection)
    blocker, rebasing = connect(autocommit=False), connect()
    blocker.execute("select from event_store.events for update")  # the re-base stops half way
    rebased = start(lambda: EventStore(rebasing).sequence_events())
    wait_blocked(orders.connection, rebasing.info.backend_pid)
    append_to(orders, "o-3", "o-1")
    blocker.rollback()
    rebased.result(patience())
    while orders.sequence_events():
        pass
    assert_log_holds_every_event_once(orders.connection)


def test_a_rebase_counts_its_own_open_transaction(orders: EventStore, connect: Connect) -> None:
    append_to(orders, "o-1")
    orders.sequence_events()
    append_to(orders, "o-2")
    pretend_younger_cluster(orders.connection)
    connection = connect(autocommit=False)
    writer = EventStore(connection)
    append(writer, "o-3")
    assert writer.sequence_events() == 1  # o-2: its own are not committed
    append(writer, "o-4")
    connection.commit()
    assert orders.sequence_events() == 2
    assert_log_holds_every_event_once(orders.connection)


def test_a_rebase_beside_an_open_transaction_inverts_no_stream(orders: EventStore, connect: Connect) -> None:
    pretend_younger_cluster(orders.connection)
    first = append(orders, "o-1")
    writer = EventStore(connect(autocommit=False))
    append(writer, "o-1", first.event_id)
    append(orders, "o-2")  # the greatest offset, and committed first
    orders.sequence_events()
    writer.connection.commit()
    while orders.sequence_events():
        pass
    assert_log_holds_every_event_once(orders.connection)
