"""The SQL functions do the steps of the protocols: after each the store is as the protocol's state says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from millrace.resources.errors import LeaseLost
from millrace.resources.event_store import EventStore, Lease
from tests.support.factories import Connect, ids_of_one_partition, new_event, register_orders, rows, set_clock, value
from tests.support.protocols import lease, sequencer
from tests.support.protocols.checker import check

BEGAN, LEASE_S = datetime(2030, 1, 1, tzinfo=UTC), 60


@pytest.fixture
def orders(store: EventStore) -> EventStore:
    return register_orders(store)


# (b): one session does every step of every state, and savepoints lead back


@dataclass
class Consumers:
    """A store with two events in one log partition, and what its consumers hold."""

    store: EventStore
    now: datetime = BEGAN
    held: dict[str, Lease] = field(default_factory=dict)

    def do(self, step: str) -> bool:
        """Do a step of the protocol; return whether it was refused."""
        name, *words = step.split()
        if step == "the lease is past its time":
            self.now += timedelta(seconds=LEASE_S + 1)
            set_clock(self.store.connection, self.now.isoformat())
        elif "claims" in words:
            first, last = int(words[1]), int(words[3])
            (self.held[name],) = self.store.claim_batch("v", name, last - first, LEASE_S)
            assert (self.held[name].from_position, self.held[name].to_position) == (first, last)
        elif "killed" in words:
            del self.held[name]
        elif "gives" in words:
            assert self.store.release_batch("v", [self.held.pop(name)]) == 1
        else:
            mine = self.held.pop(name)
            try:
                with self.store.connection.transaction():
                    self.store.commit_batch("v", [mine])
                    self.store.connection.execute(
                        "insert into effects select generate_series(%s::int, %s)",
                        (mine.from_position, mine.to_position - 1),
                    )
            except LeaseLost:
                return True
        return False

    def state(self) -> lease.State:
        """Return the state of the store, as the protocol has it."""
        ((position, owner, token, until),) = rows(
            self.store.connection,
            "select position, lease_owner, lease_token, leased_until from event_store.checkpoints where view = 'v' and partition = 0",
        )
        effects = tuple(n for (n,) in rows(self.store.connection, "select position from effects order by number"))
        held = [self.held.get(name) for name in lease.CONSUMERS]
        return lease.State(
            position,
            owner,
            owner is not None and until <= self.now,
            effects,
            tuple(
                lease.Held(each.from_position, each.to_position, owner is not None and each.lease_token == token)
                if each
                else None
                for each in held
            ),
        )


def test_leases_and_commits_go_as_the_protocol_says_in_each_step_of_each_state(orders: EventStore) -> None:
    connection = orders.connection
    (stream,) = ids_of_one_partition(connection, 1)
    set_clock(connection, BEGAN.isoformat())
    orders.append_events([new_event(stream), new_event(stream)])
    orders.register_view("v", "-infinity", mode="bulk")
    orders.sequence_events()
    connection.execute("create temporary table effects (position int, number int generated always as identity)")
    graph, seen = check(lease.protocol()).graph, {lease.protocol().first}
    steps = 0

    def go(state: lease.State, now: datetime, held: dict[str, Lease]) -> None:
        nonlocal steps
        for said, after in graph[state]:
            with connection.transaction(force_rollback=True):
                consumers = Consumers(orders, now, {**held})
                refused = consumers.do(said)
                steps += 1
                assert (consumers.state(), refused) == (replace(after, refused=False), after.refused), (state, said)
                if after not in seen:
                    seen.add(after)
                    go(after, consumers.now, consumers.held)

    go(lease.protocol().first, BEGAN, {})
    assert (len(seen), steps) == (len(graph), sum(map(len, graph.values())))


# (a): a session for each transaction and each sequencer; what is committed stays, so walks lead to each step


@dataclass
class Walk:
    """One walk: transactions with events in two log partitions, and two sequencers."""

    observer: psycopg.Connection
    transactions: dict[int, psycopg.Connection]
    sequencers: dict[str, psycopg.Connection]
    streams: dict[int, tuple[str, str]]
    base: tuple[int, int]
    marks: frozenset[tuple[int, int]] = frozenset()

    def do(self, step: str) -> None:
        """Do a step of the protocol."""
        who, *words = step.split()
        if who == "marks":
            found = value(self.observer, "select marks from event_store_private.add_mark('a walk')")
            self.marks |= {(found[0] - self.base[0], found[1] - self.base[1])}
        elif who.startswith("T"):
            session = self.transactions[int(who[1:])]
            session.commit() if words == ["commits"] else session.rollback()
        elif words == ["reads"]:
            assert EventStore(self.sequencers[who]).sequence_events() > 0
        elif words == ["commits"]:
            self.sequencers[who].commit()
        else:
            self.sequencers[who].rollback()

    def log(self) -> frozenset[tuple[int, int, int]]:
        """Return the log of this walk, as the protocol has it."""
        of = {stream: one for one, streams in self.streams.items() for stream in streams}
        found = rows(
            self.observer,
            """select l.partition, l.position, e.decider_id
            from event_store.event_log l join event_store.events e using ("offset")
            where (l.partition = 0 and l.position >= %s) or (l.partition = 1 and l.position >= %s)""",
            *self.base,
        )
        return frozenset((partition, at - self.base[partition], of[stream]) for partition, at, stream in found)


def test_transactions_are_sequenced_as_the_protocol_says_in_each_step_of_each_state(
    orders: EventStore, connect: Connect
) -> None:
    graph = check(sequencer.protocol()).graph
    left = {(state, said) for state, steps in graph.items() for said, _ in steps}
    transactions = {one: connect(autocommit=False) for one in sequencer.TRANSACTIONS}
    sequencers = {name: connect(autocommit=False) for name in sequencer.SEQUENCERS}
    ids = (ids_of_one_partition(orders.connection, len(transactions), each) for each in sequencer.PARTITIONS)
    streams = dict(zip(transactions, zip(*ids, strict=True), strict=True))
    while left:
        for one, session in transactions.items():
            EventStore(session).append_events([new_event(stream) for stream in streams[one]])
        marks = [held.high_water_mark for held in orders.partition_info()]
        walk = Walk(orders.connection, transactions, sequencers, streams, (marks[0], marks[1]))
        state = sequencer.protocol().first
        while way := way_to(graph, state, left):
            for said, after in way:
                left.discard((state, said))
                walk.do(said)
                state = after
                assert (walk.log(), walk.marks) == (state.log, state.marks), said
                if state.lock is not None or not state.committed - state.seen:
                    # who sequences now does not wait, and finds nothing to do
                    assert orders.sequence_events() == 0
        for session in (*transactions.values(), *sequencers.values()):
            session.rollback()
        orders.sequence_events()


def way_to(
    graph: Mapping[sequencer.State, Sequence[tuple[str, sequencer.State]]],
    first: sequencer.State,
    left: set[tuple[sequencer.State, str]],
) -> list[tuple[str, sequencer.State]]:
    """Return a shortest way that ends with a step that is left; empty where none does."""
    todo: list[tuple[sequencer.State, list[tuple[str, sequencer.State]]]] = [(first, [])]
    seen = {first}
    for state, way in todo:
        for said, after in graph[state]:
            if (state, said) in left:
                return [*way, (said, after)]
            if after not in seen:
                seen.add(after)
                todo.append((after, [*way, (said, after)]))
    return []
