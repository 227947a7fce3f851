"""A transaction's events are adjacent in each log partition, without reordering a stream, in any commit order."""

import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from typing import ClassVar

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from millrace.errors import MillraceError
from millrace.event_store.platform import PlatformStore
from tests.support.factories import (
    Connect,
    append,
    assert_log_holds_every_event_once,
    ids_of_one_partition,
    new_event,
    read_log,
    rows,
)
from tests.support.sql_calls import append_events, get_last_event

WRITERS = 3
STREAMS = 2  # of each decider
DECIDERS = ("order", "invoice")

writers = st.integers(0, WRITERS - 1)
streams = st.tuples(st.sampled_from(DECIDERS), st.integers(0, STREAMS - 1).map(lambda n: f"s-{n}"))


def transactions(connection: psycopg.Connection) -> dict[uuid.UUID, int]:
    """Return which transaction appended each event."""
    return dict(rows(connection, "select event_id, transaction_id::text::bigint from event_store.events"))


def assert_transactions_lie_together(connection: psycopg.Connection) -> None:
    """Assert that each transaction is one run of positions in a log partition, in the order of offsets."""
    of = transactions(connection)
    for partition, entries in groupby(read_log(connection), key=lambda entry: entry.partition):
        runs = [(xid, [entry.offset for entry in run]) for xid, run in groupby(entries, key=lambda e: of[e.event_id])]
        assert len({xid for xid, _ in runs}) == len(runs), f"a transaction lies in pieces in log partition {partition}"
        assert all(offsets == sorted(offsets) for _, offsets in runs)


class Sessions(RuleBasedStateMachine):
    """Several sessions with a transaction each, and a sequencer."""

    connect: Connect
    done: ClassVar[Counter[str]]  # how often each kind of append stored an event

    @initialize()
    def begin(self) -> None:
        self.operator = PlatformStore(self.connect())
        self.operator.connection.execute("select event_store_platform.sequence_events()")
        self.connections = [self.connect(autocommit=False) for _ in range(WRITERS)]
        for connection in self.connections:
            connection.execute("set lock_timeout = '20ms'")  # a blocked append gives up: the stream is locked
            connection.commit()
        self.prepared: list[str] = []
        self.run_id = uuid.uuid4().hex[:8]

    def teardown(self) -> None:
        if hasattr(self, "connections"):
            for name in self.prepared:
                self.operator.connection.execute(f"commit prepared '{name}'")
            for connection in self.connections:
                connection.commit()
                connection.close()
            while self.operator.sequence_events():
                pass
            self.all_is_in_order()
            self.operator.connection.close()

    def all_is_in_order(self) -> None:
        assert_log_holds_every_event_once(self.operator.connection)
        assert_transactions_lie_together(self.operator.connection)

    @contextmanager
    def attempt(self, writer: int, way: str) -> Iterator[PlatformStore]:
        """Append, or leave the transaction unchanged if the stream is locked or has moved on."""
        connection = self.connections[writer]
        with (
            suppress(psycopg.errors.LockNotAvailable, psycopg.errors.UniqueViolation, MillraceError),
            connection.transaction(),
        ):
            yield PlatformStore(connection)
            self.done[way] += 1

    def name(self, stream: tuple[str, str]) -> tuple[str, str]:
        """Return the stream of this run."""
        return stream[0], f"{stream[1]}-{self.run_id}"

    def last(self, writer: int, decider: str, decider_id: str) -> uuid.UUID | None:
        """Return the stream's last event that the writer sees."""
        found = get_last_event(PlatformStore(self.connections[writer]), decider_id, decider)
        return found.event_id if found else None

    @rule(writer=writers, stream=streams)
    def append_one(self, writer: int, stream: tuple[str, str]) -> None:
        decider, decider_id = self.name(stream)
        with self.attempt(writer, "append_event") as store:
            append(store, decider_id, self.last(writer, decider, decider_id), decider=decider)

    @rule(writer=writers, stream=streams)
    def insert_one(self, writer: int, stream: tuple[str, str]) -> None:
        decider, decider_id = self.name(stream)
        with self.attempt(writer, "insert") as store:
            store.connection.execute(
                "insert into event_store.events"
                " (event, event_id, decider, decider_id, data, command_id, previous_id, created_at)"
                " values ('placed', %s, %s, %s, '{}', %s, %s, now())",
                (uuid.uuid4(), decider, decider_id, uuid.uuid4(), self.last(writer, decider, decider_id)),
            )

    @rule(writer=writers, some=st.lists(streams, min_size=1, max_size=5))
    def append_batch(self, writer: int, some: list[tuple[str, str]]) -> None:
        with self.attempt(writer, "append_events") as store:
            append_events(store, [new_event(each, decider=decider) for decider, each in map(self.name, some)])

    @rule(writer=writers, some=st.lists(streams, min_size=1, max_size=3), ends=st.booleans())
    def append_in_a_savepoint(self, writer: int, some: list[tuple[str, str]], ends: bool) -> None:
        """Append within a savepoint, and keep it or roll it back; a rollback loses its offsets for good."""
        self.connections[writer].execute("savepoint here")
        self.append_batch(writer, some)
        self.connections[writer].execute("release savepoint here" if ends else "rollback to savepoint here")

    @rule(writer=writers)
    def commit(self, writer: int) -> None:
        self.connections[writer].commit()

    @rule(writer=writers)
    def give_up(self, writer: int) -> None:
        self.connections[writer].rollback()

    @precondition(lambda self: len(self.prepared) < 5)
    @rule(writer=writers)
    def prepare(self, writer: int) -> None:
        connection = self.connections[writer]
        self.prepared.append(str(uuid.uuid4()))
        connection.execute("select")  # begins a transaction to prepare
        connection.execute(f"prepare transaction '{self.prepared[-1]}'")
        connection.commit()

    @precondition(lambda self: self.prepared)
    @rule(data=st.data())
    def commit_prepared(self, data: st.DataObject) -> None:
        name = self.prepared.pop(data.draw(st.integers(0, len(self.prepared) - 1)))
        self.operator.connection.execute(f"commit prepared '{name}'")

    @rule()
    def sequence(self) -> None:
        self.operator.sequence_events()
        self.all_is_in_order()


@pytest.mark.usefixtures("orders")
def test_no_stream_is_inverted_and_transactions_lie_together(connect: Connect, pytestconfig: pytest.Config) -> None:
    class Here(Sessions):
        done: ClassVar[Counter[str]] = Counter()

    Here.connect = staticmethod(connect)
    long = pytestconfig.getoption("--long")
    each = settings(stateful_step_count=60, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(Here, settings=settings(each, max_examples=200 if long else 8, derandomize=not long))
    assert min(Here.done[way] for way in ("append_event", "insert", "append_events")) > 0


def test_transactions_that_interleave_follow_each_other_by_their_last(orders: PlatformStore, connect: Connect) -> None:
    first, second = PlatformStore(connect(autocommit=False)), PlatformStore(connect(autocommit=False))
    one, two = ids_of_one_partition(orders.connection, 2)
    a = append(first, one).event_id
    b = append(second, two).event_id
    second.connection.commit()
    append(first, one, a)
    first.connection.commit()
    assert orders.sequence_events() == 3
    assert [entry.event_id for entry in read_log(orders.connection)][:2] == [b, a]
