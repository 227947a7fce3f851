"""The real functions do the steps of the protocols: after each step the store matches the protocol's state."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from queue import SimpleQueue
from typing import LiteralString, cast

import psycopg
import pyarrow as pa
import pytest

from millrace.commands.processes import Do, Process, process, starts
from millrace.errors import LeaseLost, UnknownView
from millrace.event_store import Event, Lease, NewEvent
from millrace.event_store.platform import PlatformStore
from millrace.event_store.status_rows import FiredEvents
from millrace.read_models.declared.declaration import ReadModel
from millrace.read_models.declared.words import count, stream_id
from millrace.read_models.stored import versions as stored
from millrace.read_models.stored.merge import merge_rows
from millrace.read_models.stored.tables import create_view, state_schema
from millrace.read_models.stored.versions import drop_unused_versions, is_ready_to_serve
from tests.support.building.model_versions import consume
from tests.support.factories import (
    Connect,
    Killed,
    ids_of_one_partition,
    new_event,
    rows,
    set_clock,
    start,
    terminate,
    value,
    wait_blocked,
)
from tests.support.patience import patience
from tests.support.protocols import lease, sequencer, timers, versions
from tests.support.protocols.checker import State, check
from tests.support.sql_calls import append_events

Graph = Mapping[State, Sequence[tuple[str, State]]]
BEGAN, LEASE_S = datetime(2030, 1, 1, tzinfo=UTC), 60


# leases: one session does every step of every state, and savepoints lead back


@dataclass
class Consumers:
    """A store with two events in one log partition, and the leases of its consumers."""

    store: PlatformStore
    now: datetime = BEGAN
    held: dict[str, Lease] = field(default_factory=dict)

    def do(self, step: str) -> bool:
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


def test_leases_take_each_step(orders: PlatformStore) -> None:
    connection = orders.connection
    (stream,) = ids_of_one_partition(connection, 1)
    set_clock(connection, BEGAN.isoformat())
    append_events(orders, [new_event(stream), new_event(stream)])
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


# the sequencer: a session for each transaction and each sequencer; commits stay, so walks lead to each step


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
        who, *words = step.split()
        if who == "marks":
            found = value(self.observer, "select marks from event_store_private.add_mark('a walk')")
            self.marks |= {(found[0] - self.base[0], found[1] - self.base[1])}
        elif who.startswith("T"):
            session = self.transactions[int(who[1:])]
            session.commit() if words == ["commits"] else session.rollback()
        elif words == ["reads"]:
            assert PlatformStore(self.sequencers[who]).sequence_events() > 0
        elif words == ["commits"]:
            self.sequencers[who].commit()
        else:
            self.sequencers[who].rollback()

    def log(self) -> frozenset[tuple[int, int, int]]:
        of = {stream: one for one, streams in self.streams.items() for stream in streams}
        found = rows(
            self.observer,
            """select l.partition, l.position, e.decider_id
            from event_store.event_log l join event_store.events e using ("offset")
            where (l.partition = 0 and l.position >= %s) or (l.partition = 1 and l.position >= %s)""",
            *self.base,
        )
        return frozenset((partition, at - self.base[partition], of[stream]) for partition, at, stream in found)


def test_sequencing_takes_each_step(orders: PlatformStore, connect: Connect) -> None:
    graph = check(sequencer.protocol()).graph
    left = {(state, said) for state, steps in graph.items() for said, _ in steps}
    transactions = {one: connect(autocommit=False) for one in sequencer.TRANSACTIONS}
    sequencers = {name: connect(autocommit=False) for name in sequencer.SEQUENCERS}
    ids = (ids_of_one_partition(orders.connection, len(transactions), each) for each in sequencer.PARTITIONS)
    streams = dict(zip(transactions, zip(*ids, strict=True), strict=True))
    while left:
        for one, session in transactions.items():
            append_events(PlatformStore(session), [new_event(stream) for stream in streams[one]])
        marks = [held.high_water_mark for held in orders.partition_info()]
        walk = Walk(orders.connection, transactions, sequencers, streams, (marks[0], marks[1]))
        for said, state in steps_to(graph, sequencer.protocol().first, left):
            walk.do(said)
            assert (walk.log(), walk.marks) == (state.log, state.marks), said
            if state.lock is not None or not state.committed - state.seen:
                # a sequencer now does not wait, and finds nothing to do
                assert orders.sequence_events() == 0
        for session in (*transactions.values(), *sequencers.values()):
            session.rollback()
        orders.sequence_events()


def steps_to(graph: Graph[State], first: State, left: set[tuple[State, str]]) -> Iterator[tuple[str, State]]:
    """Yield steps with the states after them while a step in `left` is reachable; remove each from `left`."""
    state = first
    while way := way_to(graph, state, left):
        for said, after in way:
            left.discard((state, said))
            yield said, after
            state = after


def way_to(graph: Graph[State], first: State, left: set[tuple[State, str]]) -> list[tuple[str, State]]:
    """Return a shortest way that ends with a step in `left`; empty if there is none."""
    todo: list[tuple[State, list[tuple[str, State]]]] = [(first, [])]
    seen = {first}
    for state, way in todo:
        for said, after in graph[state]:
            if (state, said) in left:
                return [*way, (said, after)]
            if after not in seen:
                seen.add(after)
                todo.append((after, [*way, (said, after)]))
    return []


# versions: a session for the switch, which stops after each of its steps, and one for all others; also walks

OLD = ReadModel("orders", "orders", "", {"order_id": stream_id()}, {"events": count()}, deciders=("order",))
NEW = replace(OLD, columns={**OLD.columns, "again": count()})


class Switch:
    """A switch in a separate session, which stops where it locks readers out, and after it has compared."""

    def __init__(self, session: psycopg.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
        self._session, self._is_locking = session, False
        self._reached: SimpleQueue[None] = SimpleQueue()
        self._may_go_on: SimpleQueue[bool] = SimpleQueue()
        self._outcome: Future[bool] | None = None
        monkeypatch.setattr(stored, "create_view", self._create_view)
        monkeypatch.setattr(stored, "is_ready_to_serve", self._is_ready_to_serve)
        # the process that makes a version serve may be killed before it removes the previous one
        monkeypatch.setattr(stored, "drop_unused_versions", lambda *_: None)

    def _create_view(self, connection: psycopg.Connection, model: ReadModel) -> None:
        create_view(connection, model)
        if connection is self._session:
            self._is_locking = True
            self._stop_here()

    def _is_ready_to_serve(self, connection: psycopg.Connection, model: ReadModel) -> bool:
        # the check before the transaction only spares readers the lock: no promise depends on it
        found = not self._is_locking or is_ready_to_serve(connection, model)
        if self._is_locking and found:
            self._stop_here()
        return found

    def _stop_here(self) -> None:
        self._reached.put(None)
        if not self._may_go_on.get(timeout=patience()):
            raise Killed

    @property
    def is_under_way(self) -> bool:
        return self._outcome is not None

    def lock(self, model: ReadModel) -> None:
        self._is_locking = False
        self._outcome = start(lambda: stored.serve_if_caught_up(self._session, model))
        self._reached.get(timeout=patience())

    def compare(self) -> None:
        self._may_go_on.put(True)
        self._reached.get(timeout=patience())

    def end(self, *, killed: bool) -> bool:
        """Let the switch run to its end, or kill it; return whether the version serves."""
        assert self._outcome is not None
        outcome, self._outcome = self._outcome, None
        self._may_go_on.put(not killed)
        error = outcome.exception(patience())
        assert isinstance(error, Killed) if killed else error is None, error
        return error is None and outcome.result()


@dataclass
class Versions:
    """One walk: the declaration of a read model changes while events of one log partition come."""

    store: PlatformStore
    switch: Switch
    stream: str
    base: int
    models: dict[str, ReadModel] = field(default_factory=dict)
    held: dict[str, Lease | None] = field(default_factory=lambda: {"old": None, "new": None})
    now: datetime = BEGAN
    most_read: int = 0

    def begin(self) -> None:
        set_clock(self.store.connection, self.now.isoformat())
        self.models["old"] = self._consumed(OLD)

    def end(self) -> None:
        """Remove the model, even while a process works on it."""
        if self.switch.is_under_way:
            self.switch.end(killed=True)
        self._later()
        stored.reset_model(self.store.connection, OLD)

    def do(self, step: str) -> None:
        name = "new" if "new" in step.split() else "old"
        if step == "an event comes":
            append_events(self.store, [new_event(self.stream)])
            assert self.store.sequence_events() == 1
        elif step == "a reader selects":
            self.most_read = max(self.most_read, self.read())
        elif "switch" in step:
            self._switch(step)
        elif step == "the new version gets its tables":
            self.models["new"] = self._consumed(NEW)
        elif step == "the old version is removed":
            self._remove()
        elif "builds" in step:
            limit = 1 if name == "new" else 2
            (self.held[name],) = self.store.claim_batch(self.models[name].view, name, limit, LEASE_S)
        elif "killed" in step:
            self.held[name] = None
            self._later()
        else:
            self._commit(name)

    def _switch(self, step: str) -> None:
        if "locks" in step:
            self.switch.lock(self.models["new"])
        elif "compares" in step:
            self.switch.compare()
        else:
            state = self.state()
            # a version that is behind rolls back by itself
            is_killed = "killed" in step and (state.new or 0) >= (state.old or 0)
            assert self.switch.end(killed=is_killed) == ("commits" in step)

    def _remove(self) -> None:
        late = self.held["old"]
        if late is not None:
            # a working drain keeps the version; one that was killed or is late does not
            self.store.extend_lease(self.models["old"].view, [late], LEASE_S)
            drop_unused_versions(self.store.connection, self.models["new"])
            assert self.state().old is not None
            self._later()
        drop_unused_versions(self.store.connection, self.models["new"])
        if late is not None:
            with pytest.raises(UnknownView):
                self._commit("old")
            self.held["old"] = None

    def _commit(self, name: str) -> None:
        model, mine = self.models[name], self.held[name]
        assert mine is not None
        values = {"partition": 0, "order_id": self.stream} | dict.fromkeys(
            state_schema(model).keys() - {"partition", "order_id"}, mine.to_position - mine.from_position
        )
        with self.store.connection.transaction():
            self.store.commit_batch(model.view, [mine])
            merge_rows(self.store.connection, model, pa.Table.from_pylist([values]))
        self.held[name] = None

    def _later(self) -> None:
        self.now += timedelta(seconds=LEASE_S + 1)
        set_clock(self.store.connection, self.now.isoformat())

    def _consumed(self, declared: ReadModel) -> ReadModel:
        """Make the version of a declaration, at the position where this walk began."""
        model = stored.ensure_version(self.store.connection, declared)
        if self.base:
            consume(self.store, model, self.base)
        return model

    def read(self) -> int:
        return int(value(self.store.connection, "select coalesce(sum(events), 0) from read_models.orders"))

    def state(self) -> versions.State:
        connection = self.store.connection
        checkpoint: LiteralString = "from event_store.checkpoints where partition = 0"
        stands = dict(rows(connection, f"select view, position - %s {checkpoint}", self.base))
        of = {name: stands.get(model.view) for name, model in self.models.items()}
        building = {name: mine.to_position - self.base for name, mine in self.held.items() if mine}
        serving = value(connection, "select version from read_models.declarations where model = 'orders' and serves")
        return versions.State(
            self.store.partition_info()[0].high_water_mark - self.base,
            of["old"],
            of.get("new"),
            building.get("old"),
            building.get("new"),
            "old" if serving == 1 else "new",
            self._is_locked("lock table read_models.orders in access share mode nowait"),
            of["old"] is not None
            and self._is_locked(f"select {checkpoint} and view = 'orders' for no key update nowait"),
            self.most_read,
        )

    def _is_locked(self, statement: str) -> bool:
        try:
            with self.store.connection.transaction():
                self.store.connection.execute(statement.encode())
        except psycopg.errors.LockNotAvailable:
            return True
        return False


def test_versions_take_each_step(orders: PlatformStore, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = check(versions.protocol()).graph
    left = {(state, said) for state, steps in graph.items() for said, _ in steps}
    switch = Switch(connect(), monkeypatch)
    (stream,) = ids_of_one_partition(orders.connection, 1)
    while left:
        walk = Versions(orders, switch, stream, orders.partition_info()[0].high_water_mark)
        walk.begin()
        for said, state in steps_to(graph, versions.protocol().first, left):
            walk.do(said)
            assert walk.state() == state, said
            assert state.is_locked or walk.read() == versions.read(state), said
        walk.end()


# timers: a session for the service, each sequencer and the process; a killed one is ended by the server; also walks


@process(view="walk", key={"order": "decider_id"})
class Heard:
    @starts("overdue")
    def overdue(self, _: Event, do: Do) -> None: ...


HEARD = cast("Process", Heard)
# a sequencer stops between its look at the stream and its append, while the walk holds this lock
GATE = """
    create or replace function event_store.upcast(v_decider text, v_event text, v_event_version bigint, v_data jsonb)
    returns jsonb language plpgsql set lock_timeout = 0 as $$
    begin
      perform pg_advisory_lock(1);
      perform pg_advisory_unlock(1);
      return v_data;
    end $$
"""


@dataclass
class Timers:
    """One walk: a stream, and the sessions of those who work on it."""

    store: PlatformStore
    connect: Connect
    stream: str
    began: datetime
    base: int
    sessions: dict[str, PlatformStore]
    passed: timedelta = timedelta(0)
    looking: dict[str, Future[FiredEvents]] = field(default_factory=dict)

    def do(self, step: str) -> None:
        who, *words = [word for word in step.split() if word != "the"]
        if words == ["is", "due"]:
            self.pass_time(timedelta(days=1))
        elif "killed" in words:
            terminate(self.store.connection, self.session(who).connection.info.backend_pid)
            if who in self.looking:
                # while a thread reads from a session, its socket stays open
                assert self._open_gate(who).exception(patience()) is not None
            self.sessions.pop(who).connection.close()
            self.pass_time()
        elif words == ["commits"]:
            self.session(who).connection.commit()
        elif who == "service":
            self._serve(self.session(who), *words)
        elif who == "process":
            self._hear(self.session(who), words)
        elif words == ["looks"]:
            self.store.connection.execute("select pg_advisory_lock(1)")
            self.looking[who] = start(self.session(who).fire_scheduled_events)
            if timers.PAID in self.state(timers.State()).stream:
                assert self._open_gate(who).result(patience()).done == 1
            else:
                wait_blocked(self.store.connection, self.session(who).connection.info.backend_pid)
        else:
            is_done = words[-1] != "locked"
            assert self._open_gate(who).result(patience()).done == is_done
            if not is_done:
                self.session(who).connection.commit()
                self.pass_time()

    def session(self, who: str) -> PlatformStore:
        if who not in self.sessions:
            self.sessions[who] = PlatformStore(self.connect(autocommit=False))
        session = self.sessions[who]
        if session.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
            set_clock(session.connection, (self.began + self.passed).isoformat())
        return session

    def pass_time(self, time: timedelta = timedelta(seconds=LEASE_S + 1)) -> None:
        """Let locks of deliveries end, and what was put off be tried again; or more."""
        self.passed += time
        set_clock(self.store.connection, (self.began + self.passed).isoformat())

    def _open_gate(self, who: str) -> Future[FiredEvents]:
        self.store.connection.execute("select pg_advisory_unlock_all()")
        return self.looking.pop(who)

    def _serve(self, service: PlatformStore, word: str, *rest: str) -> None:
        if word == "schedules":
            event = NewEvent("overdue", {"n": int(rest[0])})
            at = self.began + timedelta(days=int(rest[0]))
            found = service.schedule("order", self.stream, event, name="pay", at=at, unless="paid", opens=True)
            assert found.scheduled
        elif word == "pays":
            service.append("order", self.stream, NewEvent("paid", {"n": timers.PAID}))
        else:
            assert service.cancel_scheduled("order", self.stream, "pay") == (not rest)
            if rest:
                service.connection.commit()

    def _hear(self, session: PlatformStore, words: list[str]) -> None:
        self.store.sequence_events()
        self.store.dispatch_events(HEARD.view)
        if words == ["is", "sent", "back"]:
            self.store.seek_view(HEARD.view, "RESET_TO_OFFSET", self.base, partition=0)
            session.connection.rollback()
            return
        (event,) = session.lease_events(HEARD.view, 1, LEASE_S)
        session.connection.commit()
        assert (event.decider_id, event.data) == (self.stream, {"n": int(words[-1])})
        HEARD.handler(event, session.connection)
        assert session.ack_events(HEARD.view, [event.offset], [event.lease_token])

    def state(self, expected: timers.State) -> timers.State:
        """Return the state with what is seen in the store, and of uncommitted work what a sequencer's session sees."""
        stored = [*self.store.read("order", self.stream)]
        steps = [step.data["heard"].split()[1] for step in self.store.read(HEARD.decider, self.stream)]
        of = {str(event.event_id): event.data["n"] for event in stored}
        query: LiteralString = "select coalesce(max(last_offset), -1) from event_store.stream_locks where view = 'walk' and decider_id = %s"
        acknowledged = value(self.store.connection, query, self.stream)
        tries = [
            mine and replace(mine, outcome=self._outcome(who))
            for who, mine in zip(timers.SEQUENCERS, expected.tries, strict=True)
        ]
        return replace(
            expected,
            row=self._row(self.store),
            stream=tuple(of.values()),
            tries=tuple(tries),
            steps=tuple(of[step] for step in steps),
            heard=sum(event.event == "overdue" and event.offset <= acknowledged for event in stored),
        )

    def _outcome(self, who: str) -> str | None:
        row = None if who in self.looking else self._row(self.session(who))
        return row.outcome if row else None

    def _row(self, seen_by: PlatformStore) -> timers.Row | None:
        query: LiteralString = (
            "select (data ->> 'n')::int, outcome from event_store.scheduled_events where decider_id = %s"
        )
        return next((timers.Row(*found) for found in rows(seen_by.connection, query, self.stream)), None)

    def end(self) -> None:
        for who in [*self.looking]:
            self.do(f"{who} is killed")
        for session in self.sessions.values():
            session.connection.rollback()
        self.pass_time()
        self.store.cancel_scheduled("order", self.stream, "pay")
        self.store.sequence_events()
        self.store.seek_view(HEARD.view, "RESET_TO_LATEST")


def test_timers_take_each_step(orders: PlatformStore, connect: Connect) -> None:
    graph = check(timers.protocol()).graph
    left = {(state, said) for state, steps in graph.items() for said, _ in steps}
    orders.connection.execute(GATE)
    orders.register_decider_event("order", "overdue", "")
    HEARD.prepare(orders)
    orders.register_view(HEARD.view, "-infinity", LEASE_S, deciders=list(HEARD.deciders), events=["overdue"])
    streams = iter(ids_of_one_partition(orders.connection, 500))
    began, sessions = BEGAN, dict[str, PlatformStore]()
    while left:
        walk = Timers(orders, connect, next(streams), began, orders.partition_info()[0].high_water_mark, sessions)
        walk.pass_time()
        for said, state in steps_to(graph, timers.protocol().first, left):
            walk.do(said)
            assert walk.state(state) == state, said
            if not any(said.endswith("looks") for said, _ in graph[state]):
                # a sequencer that comes now does not wait, and finds nothing to do
                assert orders.fire_scheduled_events().done == 0
        walk.end()
        began += timedelta(days=30)
