"""Random lives of a view against a small model: whatever happens in whatever order, each wanted event is acknowledged once, in order.

Three consumers, an operator, a writer with a transaction open, and one whose transaction never ends do random things to one
view. After every step the store's own account of what is pending must be the model's, which knows only what was appended,
acknowledged, delivered and failed. At the end a healthy consumer drains the view and nothing may be left.

Belongs here: interleavings. Not here: what one function promises by itself (tests/sql) and races within one call.
HYPOTHESIS_PROFILE=long looks for longer, with other seeds each time.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar
from uuid import uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from resources.errors import (
    HistoryNeeded,
    LeaseLost,
    Malformed,
    MillraceError,
    NotInFlight,
    NotParked,
    OffsetOutOfRange,
    PartitionLeased,
    ViewInUse,
    WrongMode,
)
from resources.event_store import EventStore, Lease, LeasedEvent, Lock, NewEvent, RecordedEvent, StreamFailure
from tests.factories import Connect, ids_of_one_partition, refusal, register_orders, rows, set_clock, terminate

_common = settings(stateful_step_count=50, deadline=None, database=None, suppress_health_check=list(HealthCheck))
settings.register_profile("repeatable", _common, max_examples=25, derandomize=True)
settings.register_profile("long", _common, max_examples=1000, derandomize=False)
PROFILE = settings.get_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

PARTITIONS = 4
EVENTS = ("placed", "paid", "shipped")
NEVER = 10**9
Name = tuple[str, str]

numbers = st.integers(0, 7)
consumers = st.integers(0, 2)
partitions = st.integers(0, PARTITIONS - 1)
cuts = st.lists(st.sampled_from([0, 0, 0, 0, 1, 1, 2, 2, -1, 99]), min_size=PARTITIONS, max_size=PARTITIONS)
batches = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(EVENTS)), min_size=1, max_size=6)
durations = st.sampled_from([10, 60])
picks = st.integers(0, 3)
tokens = st.sampled_from(["own", "none", "wrong"])
operations = st.one_of(
    st.tuples(st.just("switch"), st.booleans()),
    st.tuples(st.just("retry"), picks, st.booleans()),
    st.tuples(st.just("discard"), picks),
    st.tuples(
        st.just("seek"),
        st.sampled_from(
            ["RESET_TO_OFFSET", "EXACT_OFFSET", "RESET_TO_EARLIEST", "RESET_TO_LATEST", "RESUME_OR_EARLIEST"]
        )
        | st.sampled_from(["RESUME_OR_LATEST", "EXACT_TIMESTAMP"]),
        partitions | st.none(),
        st.integers(-1, 12),
        st.sampled_from([0, 10, 60, 3600]),
        st.booleans(),
    ),
    st.tuples(st.just("archive"), partitions, st.integers(0, 12)),
    st.tuples(st.just("give_up_history"), partitions, st.sampled_from([0, 1, 2]), st.sampled_from([100, 1, 0])),
)


@dataclass(frozen=True)
class Entry:
    """An event in the log."""

    partition_offset: int
    offset: int
    wanted: bool
    at: int


@dataclass
class Stream:
    """How far the view is with a stream, who holds its event, and from when on somebody else may."""

    partition: int
    since: int = 0  # the partition offset that the view was last moved to
    acknowledged: int = -1
    in_flight: int | None = None
    token: int | None = None
    session: int = 0
    taken_over: bool = False
    until: int = 0
    attempts: int = 0
    parked: bool = False

    def is_free(self, now: int) -> bool:
        return not self.parked and self.until <= now

    def holds(self, session: int, offset: int | None, token: int | None) -> bool:
        """Whether an answer is the holder's: by its token, its session, or because nobody took over the event it names."""
        if self.in_flight is None or offset not in (None, self.in_flight):
            return False
        if token is not None:
            return token == self.token
        return self.session == session or (offset is not None and not self.taken_over)

    def acknowledge(self, offset: int, now: int) -> None:
        assert offset > self.acknowledged, "acknowledged twice"
        self.acknowledged, self.in_flight, self.taken_over, self.attempts, self.until = offset, None, False, 0, now
        self.parked = False

    def fail(self, attempts: int, max_attempts: int, now: int) -> None:
        self.in_flight, self.attempts, self.parked = None, attempts, attempts >= max_attempts
        self.until = NEVER if self.parked else now + 5 * 2 ** (attempts - 1)


@dataclass(frozen=True)
class Delivery:
    """What a consumer of a rows view was given."""

    stream: Name
    offset: int
    token: int | None


@dataclass(eq=False)
class Held:
    """What an owner of a bulk view was given: the events of each stream, and the streams whose lock delivers them."""

    lease: Lease
    until: int
    delivers: dict[Name, list[Entry]]
    retries: set[Name]
    rebuilds: bool = False


@dataclass
class Transaction:
    """What a consumer's open transaction changed, as it was before."""

    streams: dict[Name, Stream] = field(default_factory=dict)
    leases: dict[int, Held | None] = field(default_factory=dict)
    used: bool = False
    leased: bool = False


@dataclass
class Consumer:
    """A session that consumes the view."""

    name: str
    store: EventStore
    transaction: Transaction | None = None

    @property
    def session(self) -> int:
        return self.store.connection.info.backend_pid


class Sessions:
    """One database and its sessions, emptied before each life."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self.operator = register_orders(EventStore(self.connection()))
        self.operator.connection.execute("delete from event_store.partitions where partition >= %s", (PARTITIONS,))
        self.writer = EventStore(self.connection())
        self.endless = EventStore(self.connection())
        self.consumers = [self.consumer(number) for number in range(3)]
        ids = [
            id_
            for p, number in ((0, 2), (1, 1), (2, 1))
            for id_ in ids_of_one_partition(self.operator.connection, number, p)
        ]
        # two deciders share an id; the last stream's partition is its own
        self.streams: list[Name] = [*(("order", id_) for id_ in ids), ("invoice", ids[0]), ("invoice", ids[2])]

    def connection(self) -> psycopg.Connection:
        connection = self._connect()
        # nobody waits for anybody here; a call that does fails the test
        connection.execute(
            "set synchronous_commit = off; set lock_timeout = '3s'; set event_store.clock = '2030-01-01 00:00:00+00'"
        )
        return connection

    def consumer(self, number: int) -> Consumer:
        return Consumer(f"consumer {number}", EventStore(self.connection()))

    def everyone(self) -> Iterator[EventStore]:
        yield from (self.operator, self.writer, self.endless, *(consumer.store for consumer in self.consumers))

    def begin_life(self) -> None:
        for store in self.everyone():
            store.connection.execute("rollback" if store.connection.info.transaction_status else "select")
        for consumer in self.consumers:
            consumer.transaction = None
        # as a replica: neither the guard of events nor a foreign key is asked
        self.operator.connection.execute(
            """
            begin;
            set local session_replication_role = replica;
            delete from event_store.events;
            delete from event_store.event_log;
            delete from event_store.streams;
            delete from event_store.stream_locks;
            delete from event_store.checkpoints;
            delete from event_store.dispatches;
            delete from event_store.views;
            delete from event_store.audit_log;
            update event_store.partitions set high_water_mark = 0, earliest_offset = 0, archived_offset = 0;
            update event_store.sequencer set sequenced_at = '-infinity';
            select setval('event_store.events_offset_seq', 1, false), setval('event_store.lease_token_seq', 1, false);
            commit
            """
        )


class Life(RuleBasedStateMachine):
    """What can happen to any view; the subclasses add what its mode allows."""

    sessions: ClassVar[Sessions]
    first_mode: ClassVar[str]

    @initialize(
        deciders=st.sampled_from([None, None, ["order"]]),
        events=st.sampled_from([None, None, ["placed", "paid"]]),
        max_attempts=st.sampled_from([2, 1, 3]),
        first=batches,
    )
    def register(
        self, deciders: list[str] | None, events: list[str] | None, max_attempts: int, first: list[tuple[int, str]]
    ) -> None:
        self.sessions.begin_life()
        self.operator = self.sessions.operator
        self.mode, self.enabled, self.now, self.max_attempts = self.first_mode, True, 0, max_attempts
        self.filters: dict[str, Any] = {"deciders": deciders, "events": events, "max_attempts": max_attempts}
        self.pass_time(0)
        self.operator.register_view("v", "-infinity", mode=self.mode, **self.filters)
        where = rows(
            self.operator.connection,
            "select id, event_store.stream_partition(id, %s) from unnest(%s::text[]) id",
            PARTITIONS,
            list({decider_id for _, decider_id in self.sessions.streams}),
        )
        self.streams = {name: Stream(dict(where)[name[1]]) for name in self.sessions.streams}
        self.appended: dict[Name, list[tuple[int, str, int]]] = {name: [] for name in self.streams}
        self.uncommitted: dict[Name, list[tuple[int, str, int]]] = {}
        self.log: dict[Name, list[Entry]] = {name: [] for name in self.streams}
        self.marks = dict.fromkeys(range(PARTITIONS), 0)
        self.earliest = dict.fromkeys(range(PARTITIONS), 0)
        self.archived = dict.fromkeys(range(PARTITIONS), 0)
        self.purged = dict.fromkeys(range(PARTITIONS), 0)
        self.positions = dict.fromkeys(range(PARTITIONS), 0)
        self.deliveries: list[Delivery] = []
        self.claims: list[list[Held]] = []
        self.leases: dict[int, Held] = {}
        self.append(first)
        self.sequence(0)
        endless = self.sessions.endless
        endless.connection.execute("begin")
        endless.append_events([NewEvent("order", "endless", "placed", uuid4(), {}, uuid4())])

    # What the model says -----------------------------------------------------------------------------------

    def wanted(self, name: Name, event: str) -> bool:
        deciders, events = self.filters["deciders"], self.filters["events"]
        return (deciders is None or name[0] in deciders) and (events is None or event in events)

    def pending(
        self, name: Name, state: Stream | None = None, log: dict[Name, list[Entry]] | None = None
    ) -> list[Entry]:
        """The wanted events of a stream that are not acknowledged, in order."""
        state = state or self.streams[name]
        return [
            entry
            for entry in (log or self.log)[name]
            if entry.wanted and entry.offset > state.acknowledged and entry.partition_offset >= state.since
        ]

    def streams_of(self, partition: int) -> list[Name]:
        return [name for name, state in self.streams.items() if state.partition == partition]

    def committed(self, name: Name) -> Stream:
        """A stream as it is without the transactions that are still open."""
        for transaction in self.transactions():
            if name in transaction.streams:
                return transaction.streams[name]
        return self.streams[name]

    def transactions(self) -> list[Transaction]:
        return [consumer.transaction for consumer in self.sessions.consumers if consumer.transaction]

    def held_by_others(self, consumer: Consumer | None, name: Name) -> bool:
        """Whether another transaction changed the stream: an answer would wait for it."""
        return any(name in t.streams for t in self.transactions() if consumer is None or t is not consumer.transaction)

    def leased_by_others(self, consumer: Consumer, partition: int) -> bool:
        return any(partition in t.leases for t in self.transactions() if t is not consumer.transaction)

    def touch(self, consumer: Consumer, name: Name) -> Stream:
        """Take note of a stream before this consumer changes it."""
        if consumer.transaction:
            consumer.transaction.used = True
            consumer.transaction.streams.setdefault(name, replace(self.streams[name]))
        return self.streams[name]

    def touch_lease(self, consumer: Consumer, partition: int) -> None:
        if consumer.transaction:
            consumer.transaction.used = True
            consumer.transaction.leases.setdefault(partition, self.leases.get(partition))

    def in_use(self) -> bool:
        return (
            any(transaction.used for transaction in self.transactions())
            or any(state.in_flight is not None and state.until > self.now for state in self.streams.values())
            or any(held.until > self.now for held in self.leases.values())
        )

    def end_deliveries(self) -> None:
        """What expired is ended where the view is moved or changes its mode."""
        for state in self.streams.values():
            if state.in_flight is not None:
                state.in_flight, state.taken_over = None, True
        self.leases.clear()

    def refused(self, consumer: Consumer, error: type[MillraceError], work: Callable[[], object]) -> None:
        """Do what is refused, which ends the consumer's transaction."""
        refusal(error, work)
        if consumer.transaction:
            self.end(consumer, commit=False)

    # What the store says -----------------------------------------------------------------------------------

    def read_log(self, connection: psycopg.Connection) -> dict[int, list[tuple[Name, Entry]]]:
        """What is in the log beyond what the model knows, as this session sees it."""
        found: dict[int, list[tuple[Name, Entry]]] = {}
        for partition, partition_offset, offset, decider, decider_id in rows(
            connection,
            """
            select l.partition, l.partition_offset, l."offset", e.decider, e.decider_id
            from unnest(%s::int[], %s::bigint[]) known(partition, mark)
            join event_store.event_log l on l.partition = known.partition and l.partition_offset >= known.mark
            left join event_store.events e using ("offset")
            order by l.partition, l.partition_offset
            """,
            list(self.marks),
            list(self.marks.values()),
        ):
            name = (decider, decider_id)
            news = found.setdefault(partition, [])
            assert partition_offset == self.marks[partition] + len(news), "the log has a gap"
            known = len(self.log[name]) + sum(other == name for other, _ in news)
            assert self.streams[name].partition == partition
            appended, event, at = self.appended[name][known]
            assert appended == offset, "the log skips or inverts a stream"
            news.append((name, Entry(partition_offset, offset, self.wanted(name, event), at)))
        return found

    def observe(self) -> None:
        """Take note of what is sequenced now."""
        for partition, news in self.read_log(self.operator.connection).items():
            self.marks[partition] += len(news)
            for name, entry in news:
                self.log[name].append(entry)

    def log_of(self, consumer: Consumer) -> dict[Name, list[Entry]]:
        """The log as this consumer sees it: its transaction may have sequenced."""
        self.observe()
        log = dict(self.log)
        if consumer.transaction:
            for news in self.read_log(consumer.store.connection).values():
                for name, entry in news:
                    log[name] = [*log[name], entry]
        return log

    def positions_of(self, store: EventStore) -> dict[int, int]:
        return dict(rows(store.connection, "select partition, position from event_store.checkpoints where view = 'v'"))

    @invariant()
    def the_store_and_the_model_agree_on_what_is_pending(self) -> None:
        """Every wanted event below a checkpoint is acknowledged, or its stream has a lock; every other one is to come."""
        self.observe()
        positions = self.positions_of(self.operator)
        assert all(position >= self.positions[p] for p, position in positions.items()), "a checkpoint moved back"
        self.positions = positions
        pending = rows(
            self.operator.connection,
            """
            select e.decider, e.decider_id, array_agg(l."offset" order by l.partition_offset)
            from event_store.views v
            join event_store.checkpoints c using (view)
            join event_store.event_log l using (partition)
            join event_store.events e using ("offset")
            left join event_store.stream_locks k using (view, decider, decider_id)
            where case when k.view is null then l.partition_offset >= c.position else e."offset" > k.last_offset end
              and event_store.wants(v.deciders, v.events, e.decider, e.event)
            group by e.decider, e.decider_id
            """,
        )
        assert {(decider, decider_id): offsets for decider, decider_id, offsets in pending} == {
            name: [entry.offset for entry in entries]
            for name in self.streams
            if (entries := self.pending(name, self.committed(name)))
        }

    def teardown(self) -> None:
        if sys.exc_info()[0] is None:
            self.everything_is_delivered_in_the_end()

    def everything_is_delivered_in_the_end(self) -> None:
        for consumer in self.sessions.consumers:
            if consumer.transaction:
                self.end(consumer, commit=False)
        self.end_write(commit=True)
        self.switch(True)
        self.sequence(0)
        self.drain()
        view = self.operator.connection
        assert rows(view, "select * from event_store.stream_locks") == [], "a lock is left"
        assert [(lag.lag, lag.pending) for lag in self.operator.view_lag("v")] == [(0, 0)] * PARTITIONS
        assert not any(self.pending(name) for name in self.streams)
        assert {name: len(entries) for name, entries in self.log.items()} == {
            name: len(events) for name, events in self.appended.items()
        }, "an event is not in the log"
        for consumer in self.sessions.consumers:
            self.operator.release_owner(consumer.name)  # a lease past its time can still be committed
        for partition, mark in self.marks.items():
            to = min(mark, self.positions[partition])
            self.operator.mark_archived(partition, to)
            assert self.operator.raise_low_water_mark(partition, to) == max(to, self.earliest[partition])

    def drain(self) -> None:
        raise NotImplementedError

    # Appending and sequencing ------------------------------------------------------------------------------

    def new_events(self, batch: Sequence[tuple[int, str]]) -> list[tuple[Name, NewEvent]]:
        names = [(self.sessions.streams[number], event) for number, event in batch]
        return [
            (name, NewEvent(*name, event, uuid4(), {}, uuid4()))
            for name, event in names
            if name not in self.uncommitted  # the second writer would wait
        ]

    @rule(batch=batches)
    def append(self, batch: list[tuple[int, str]]) -> None:
        if events := self.new_events(batch):
            stored = self.operator.append_events([event for _, event in events])
            for (name, event), row in zip(events, stored, strict=True):
                self.appended[name].append((row.offset, event.event, self.now))

    @rule(batch=batches, commit=st.booleans())
    def write(self, batch: list[tuple[int, str]], commit: bool) -> None:
        """Append in a transaction that stays open until this is called again."""
        if self.uncommitted:
            self.end_write(commit)
            return
        writer = self.sessions.writer
        writer.connection.execute("begin")
        events = self.new_events(batch)
        stored = writer.append_events([event for _, event in events])
        for (name, event), row in zip(events, stored, strict=True):
            self.uncommitted.setdefault(name, []).append((row.offset, event.event, self.now))

    def end_write(self, commit: bool) -> None:
        if not self.uncommitted:
            return
        self.sessions.writer.connection.execute("commit" if commit else "rollback")
        set_clock(self.sessions.writer.connection, self.time())
        if commit:
            for name, events in self.uncommitted.items():
                self.appended[name] += events
        self.uncommitted = {}

    @rule(number=consumers)
    def sequence(self, number: int) -> None:
        consumer = self.sessions.consumers[number]
        sequenced = (self.operator if consumer.transaction else consumer.store).sequence_events()
        before = sum(self.marks.values())
        self.observe()
        assert sum(self.marks.values()) == before + sequenced
        if not any(transaction.leased for transaction in self.transactions()):
            assert all(len(self.log[name]) == len(events) for name, events in self.appended.items())

    # Time, transactions, deaths ----------------------------------------------------------------------------

    def time(self) -> str:
        return (datetime(2030, 1, 1, tzinfo=UTC) + timedelta(seconds=self.now)).isoformat()

    @rule(seconds=st.sampled_from([10, 60, 1, 5, 3600]))
    def pass_time(self, seconds: int) -> None:
        self.now += seconds
        for store in self.sessions.everyone():
            set_clock(store.connection, self.time())

    @rule(number=consumers, what=st.sampled_from(["begin", "begin", "commit", "rollback", "die"]))
    def transact(self, number: int, what: str) -> None:
        consumer = self.sessions.consumers[number]
        if what == "die":
            self.die(number)
        elif consumer.transaction:
            self.end(consumer, commit=what != "rollback")
        else:
            consumer.store.connection.execute("begin")
            consumer.transaction = Transaction()

    def end(self, consumer: Consumer, *, commit: bool) -> None:
        transaction, consumer.transaction = consumer.transaction, None
        if transaction:
            consumer.store.connection.execute("commit" if commit else "rollback")
            set_clock(consumer.store.connection, self.time())
            if not commit:
                self.undo(transaction)

    def undo(self, transaction: Transaction) -> None:
        self.streams |= transaction.streams
        for partition, held in transaction.leases.items():
            self.leases.pop(partition, None)
            if held:
                self.leases[partition] = held

    def die(self, number: int) -> None:
        consumer = self.sessions.consumers[number]
        terminate(self.operator.connection, consumer.session)
        consumer.store.connection.close()
        if consumer.transaction:
            self.undo(consumer.transaction)
        self.sessions.consumers[number] = self.sessions.consumer(number)
        set_clock(self.sessions.consumers[number].store.connection, self.time())

    # Operating ---------------------------------------------------------------------------------------------

    @rule(operation=operations)
    def operate(self, operation: tuple[Any, ...]) -> None:
        getattr(self, operation[0])(*operation[1:])

    def switch(self, enabled: bool) -> None:
        self.enabled = self.operator.enable_view("v", enabled).enabled
        assert self.enabled == enabled

    def parked(self) -> list[Name]:
        """The dead letters, but for those that an open transaction settles."""
        return [name for name in self.streams if self.committed(name).parked and not self.held_by_others(None, name)]

    def retry(self, pick: int, every: bool) -> None:
        parked = self.parked()
        if not parked:
            return
        every = every and not any(self.held_by_others(None, name) for name in self.streams)
        chosen = parked if every else [parked[pick % len(parked)]]
        assert self.operator.retry_dead_letters("v", *(() if every else chosen[0])) == len(chosen)
        for name in chosen:
            state = self.streams[name]
            state.parked, state.attempts, state.until = False, 0, self.now

    def discard(self, pick: int) -> None:
        parked = self.parked()
        if not parked and pick == 0:
            refusal(NotParked, lambda: self.operator.discard_dead_letter("v", *self.sessions.streams[0], "no"))
        if not parked:
            return
        name = parked[pick % len(parked)]
        first, state = self.pending(name)[0], self.streams[name]
        discarded = self.operator.discard_dead_letter("v", *name, "given up")
        assert discarded is not None
        assert discarded.offset == first.offset
        state.acknowledge(first.offset, self.now)

    def seek(self, kind: str, partition: int | None, offset: int, ago: int, dry_run: bool) -> None:
        self.sequence(0)
        timestamp = datetime.fromisoformat(self.time()) - timedelta(seconds=ago) if kind == "EXACT_TIMESTAMP" else None
        exact = kind in ("EXACT_OFFSET", "RESET_TO_OFFSET")
        if exact:
            partition = partition or 0

        def call() -> list[Any]:
            return list(
                self.operator.seek_view(
                    "v",
                    kind,
                    offset if exact else None,
                    timestamp,
                    partition,
                    dry_run=dry_run,
                )
            )

        chosen = range(PARTITIONS) if partition is None else [partition]
        targets = {p: self.target(kind, p, offset, self.now - ago) for p in chosen}
        if self.in_use():
            refusal(ViewInUse, call)
            return
        if any(to < self.earliest[p] or (kind == "EXACT_OFFSET" and to >= self.marks[p]) for p, to in targets.items()):
            refusal(OffsetOutOfRange, call)
            return
        moves = call()
        assert {move.partition: (move.from_position, move.to_position) for move in moves} == {
            p: (self.positions[p], to) for p, to in targets.items()
        }
        if dry_run:
            return
        self.end_deliveries()
        for p, to in targets.items():
            if to != self.positions[p] or not kind.startswith("RESUME"):
                self.positions[p] = to
                self.streams |= {name: Stream(p, since=to) for name in self.streams_of(p)}

    def target(self, kind: str, partition: int, offset: int, at: int) -> int:
        if kind == "RESET_TO_EARLIEST":
            return self.earliest[partition]
        if kind == "RESET_TO_LATEST":
            return self.marks[partition]
        if kind == "EXACT_TIMESTAMP":
            return min(
                (
                    entry.partition_offset
                    for name, entries in self.log.items()
                    for entry in entries
                    if self.streams[name].partition == partition
                    and entry.at >= at
                    and entry.partition_offset >= self.purged[partition]
                ),
                default=self.marks[partition],
            )
        return offset if kind in ("EXACT_OFFSET", "RESET_TO_OFFSET") else self.positions[partition]

    def nobody_sequences(self) -> bool:
        """Whether the marks are free: who sequenced in an open transaction holds them."""
        return not any(transaction.leased for transaction in self.transactions())

    def archive(self, partition: int, to: int) -> None:
        if not self.nobody_sequences():
            return
        if to > self.marks[partition]:
            refusal(OffsetOutOfRange, lambda: self.operator.mark_archived(partition, to))
        else:
            self.archived[partition] = max(self.archived[partition], to)
            assert self.operator.mark_archived(partition, to) == self.archived[partition]

    def give_up_history(self, partition: int, back: int, purge: int) -> None:
        if not self.nobody_sequences():
            return
        to = max(self.archived[partition] - back, 0)
        needed = to > self.positions[partition] or any(
            entry.partition_offset < to
            for name, state in self.streams.items()
            if state.partition == partition
            for entry in self.pending(name, self.committed(name))
        )
        try:
            earliest = self.operator.raise_low_water_mark(partition, to)
        except HistoryNeeded:
            assert (
                needed
                or rows(
                    self.operator.connection, "select from event_store.stream_locks where partition = %s", partition
                )
                or partition in self.leases
            )
        else:
            assert not needed
            self.earliest[partition] = max(self.earliest[partition], to)
            assert earliest == self.earliest[partition]
        if purge:
            purged = min(purge, self.earliest[partition] - self.purged[partition])
            assert self.operator.purge_events(partition, purge) == purged
            self.purged[partition] += purged


class RowsLife(Life):
    """What consumers of a rows view do."""

    first_mode = "rows"

    def is_rows(self) -> bool:
        return self.mode == "rows"

    def pump(self) -> None:
        self.sequence(0)
        self.dispatch(5000)
        self.the_store_and_the_model_agree_on_what_is_pending()

    @precondition(is_rows)
    @rule(window=st.sampled_from([5000, 1, 2]))
    def dispatch(self, window: int) -> None:
        self.operator.dispatch_events("v", window)

    @precondition(is_rows)
    @rule(
        number=consumers,
        limit=st.sampled_from([1, 2, 100]),
        seconds=durations,
        tokens=st.booleans(),
    )
    def lease(self, number: int, limit: int, seconds: int, tokens: bool) -> None:
        self.pump()
        self.take(self.sessions.consumers[number], limit, seconds, tokens=tokens)

    @precondition(is_rows)
    @rule(number=consumers, other=consumers, tokens=st.booleans())
    def take_over(self, number: int, other: int, tokens: bool) -> None:
        """Let the locks of one consumer end and another one get its events."""
        self.pump()
        self.take(self.sessions.consumers[number], 2, 10, tokens=tokens)
        self.pass_time(10)
        self.take(self.sessions.consumers[other], 2, 60, tokens=tokens)

    def take(self, consumer: Consumer, limit: int, seconds: int, *, tokens: bool) -> list[Delivery]:
        due = [
            name
            for name, state in self.streams.items()
            if self.enabled
            and state.is_free(self.now)
            and not self.held_by_others(consumer, name)
            and (entries := self.pending(name))
            and entries[0].partition_offset < self.positions[state.partition]
        ]
        fetch = consumer.store.lease_events if tokens else consumer.store.stream_events
        events: Sequence[RecordedEvent] = fetch("v", limit, seconds)
        assert len(events) <= limit
        if consumer.transaction:
            consumer.transaction.used = True
            consumer.transaction.leased |= self.enabled
        log = self.log_of(consumer)
        given_up = self.given_up(consumer)
        given = [self.deliver(consumer, event, seconds, log) for event in events]
        self.deliveries += given
        if len(given) + len(given_up) < limit:
            assert {*due} <= {*given_up, *(delivery.stream for delivery in given)}, "a stream is due and not delivered"
        if due:
            assert given or given_up
        return given

    def deliver(self, consumer: Consumer, event: RecordedEvent, seconds: int, log: dict[Name, list[Entry]]) -> Delivery:
        name = (event.decider, event.decider_id)
        assert self.enabled
        assert not self.held_by_others(consumer, name)
        state = self.touch(consumer, name)
        assert state.is_free(self.now), "delivered while it is held, waits or is parked"
        assert event.offset == self.pending(name, log=log)[0].offset, "not the stream's next event"
        assert state.in_flight is None or state.attempts < self.max_attempts, "delivered more often than allowed"
        state.attempts += 1
        state.taken_over |= state.in_flight is not None
        state.in_flight, state.session, state.until = event.offset, consumer.session, self.now + seconds
        state.token = None
        if isinstance(event, LeasedEvent):
            assert event.attempt == state.attempts
            assert all(event.lease_token > (delivery.token or 0) for delivery in self.deliveries)
            state.token = event.lease_token
        return Delivery(name, event.offset, state.token)

    def given_up(self, consumer: Consumer) -> list[Name]:
        """Take note of the streams that were delivered too often without an answer."""
        parked = rows(
            consumer.store.connection,
            "select decider, decider_id from event_store.stream_locks where view = 'v' and parked_at is not null",
        )
        news = [name for name in parked if not self.streams[name].parked]
        for name in news:
            state = self.touch(consumer, name)
            assert state.is_free(self.now)
            assert state.in_flight is not None
            assert state.attempts >= self.max_attempts
            state.in_flight, state.parked, state.until = None, True, NEVER
        return news

    @precondition(lambda self: self.is_rows() and self.deliveries)
    @rule(number=consumers, pick=picks, token=tokens, off_by=st.sampled_from([0, 0, 0, 1, -1]))
    def acknowledge(self, number: int, pick: int, token: str, off_by: int) -> None:
        self.answer(number, pick, "ack", token, off_by)

    @precondition(lambda self: self.is_rows() and self.deliveries)
    @rule(number=consumers, pick=picks, token=tokens)
    def fail(self, number: int, pick: int, token: str) -> None:
        self.answer(number, pick, "fail", token)
        self.take(self.sessions.consumers[number], 100, 60, tokens=True)

    @precondition(lambda self: self.is_rows() and self.deliveries)
    @rule(
        number=consumers,
        pick=picks,
        answer=st.sampled_from(["nack", "schedule_nack", "extend"]),
        token=tokens,
        seconds=durations,
    )
    def go_on_or_give_back(self, number: int, pick: int, answer: str, token: str, seconds: int) -> None:
        self.answer(number, pick, answer, token, seconds=seconds)
        self.take(self.sessions.consumers[number], 100, 60, tokens=True)

    def answer(self, number: int, pick: int, answer: str, token: str, off_by: int = 0, seconds: int = 10) -> None:
        """Answer for some delivery, of anybody, whether or not it still counts."""
        consumer, delivery = self.sessions.consumers[number], self.deliveries[-1 - pick % len(self.deliveries)]
        decider_id, offset = delivery.stream[1], max(delivery.offset + off_by, 1)
        stated = None if delivery.token is None or token == "none" else delivery.token + (token == "wrong") * 1000
        store = consumer.store
        calls: dict[str, Callable[[], list[Lock]]] = {
            "ack": lambda: store.ack_event("v", decider_id, offset, stated),
            "nack": lambda: store.nack_event("v", decider_id, offset, stated),
            "schedule_nack": lambda: store.schedule_nack_event("v", decider_id, seconds * 1000, offset, stated),
            "fail": lambda: store.fail_event("v", decider_id, offset, "it failed", stated),
            "extend": lambda: store.extend_lock("v", decider_id, offset, seconds, stated),
        }
        call = calls[answer]
        namesakes = [name for name in self.streams if name[1] == decider_id]
        if any(self.held_by_others(consumer, name) for name in namesakes):
            return
        held = [name for name in namesakes if self.streams[name].holds(consumer.session, offset, stated)]
        if not held:
            self.refused(consumer, NotInFlight, call)
            return
        (lock,) = call()
        assert lock.decider_id == decider_id
        self.answered(self.touch(consumer, held[0]), answer, seconds)

    def answered(self, state: Stream, answer: str, seconds: int) -> None:
        if answer == "ack":
            assert state.in_flight is not None
            state.acknowledge(state.in_flight, self.now)
        elif answer == "fail":
            state.fail(state.attempts, self.max_attempts, self.now)
        elif answer == "extend":
            state.until = self.now + seconds
        else:
            state.in_flight, state.attempts = None, max(state.attempts - 1, 0)
            state.until = self.now + (seconds if answer == "schedule_nack" else 0)

    @precondition(lambda self: self.is_rows() and self.deliveries)
    @rule(number=consumers, pick=picks)
    def give_back_whatever_is_in_flight(self, number: int, pick: int) -> None:
        """As fstore-sql's clients do, which state no offset."""
        consumer, delivery = self.sessions.consumers[number], self.deliveries[-1 - pick % len(self.deliveries)]
        namesakes = [name for name in self.streams if name[1] == delivery.stream[1]]
        if any(self.held_by_others(consumer, name) for name in namesakes):
            return
        held = [name for name in namesakes if self.streams[name].holds(consumer.session, None, None)]

        def call() -> object:
            return consumer.store.nack_event("v", delivery.stream[1])

        if len(held) == 1:
            call()
            self.answered(self.touch(consumer, held[0]), "nack", 0)
        else:
            self.refused(consumer, Malformed if held else NotInFlight, call)

    @precondition(lambda self: self.is_rows() and self.deliveries)
    @rule(number=consumers, chosen=st.lists(picks, min_size=1, max_size=3), tokens=st.booleans())
    def acknowledge_many(self, number: int, chosen: list[int], tokens: bool) -> None:
        consumer = self.sessions.consumers[number]
        deliveries = [
            delivery
            for pick in chosen
            for delivery in [self.deliveries[-1 - pick % len(self.deliveries)]]
            if not self.held_by_others(consumer, delivery.stream) and (delivery.token is not None or not tokens)
        ]
        expected = {
            delivery.offset: delivery.stream
            for delivery in deliveries
            if self.streams[delivery.stream].holds(
                consumer.session, delivery.offset, delivery.token if tokens else None
            )
        }
        acknowledged = consumer.store.ack_events(
            "v",
            [delivery.offset for delivery in deliveries],
            [delivery.token for delivery in deliveries if delivery.token is not None] if tokens else None,
        )
        assert acknowledged == set(expected)
        for offset, name in expected.items():
            self.touch(consumer, name).acknowledge(offset, self.now)

    @precondition(is_rows)
    @rule(number=consumers, limit=st.sampled_from([1, 100]))
    def work(self, number: int, limit: int) -> None:
        """Do as a healthy consumer does."""
        consumer = self.sessions.consumers[number]
        given = self.take(consumer, limit, 60, tokens=True)
        offsets = [delivery.offset for delivery in given]
        tokens = [delivery.token for delivery in given if delivery.token is not None]
        assert consumer.store.ack_events("v", offsets, tokens) == set(offsets)
        for delivery in given:
            self.touch(consumer, delivery.stream).acknowledge(delivery.offset, self.now)

    def drain(self) -> None:
        for _ in range(2 + sum(len(self.pending(name)) for name in self.streams)):
            self.pass_time(7200)
            self.dispatch(5000)
            self.the_store_and_the_model_agree_on_what_is_pending()
            if self.parked():
                self.retry(0, every=True)
            self.work(0, 100)
        self.pass_time(1)
        self.dispatch(5000)
        self.observe()
        self.positions = self.positions_of(self.operator)


class BulkLife(Life):
    """What owners of a bulk view do."""

    first_mode = "bulk"

    def is_bulk(self) -> bool:
        return self.mode == "bulk"

    @precondition(is_bulk)
    @rule(number=consumers, limit=st.sampled_from([1, 2, 5, 1000]), seconds=durations)
    def claim(self, number: int, limit: int, seconds: int) -> None:
        self.take_batch(self.sessions.consumers[number], limit, seconds)

    @precondition(is_bulk)
    @rule(number=consumers, other=consumers)
    def take_over_batch(self, number: int, other: int) -> None:
        """Let the leases of one owner end and another one get them."""
        self.take_batch(self.sessions.consumers[number], 1000, 10)
        self.pass_time(10)
        self.take_batch(self.sessions.consumers[other], 1000, 60)

    def take_batch(self, consumer: Consumer, limit: int, seconds: int) -> list[Held]:
        free = [
            p
            for p in range(PARTITIONS)
            if self.enabled
            and not self.leased_by_others(consumer, p)
            and not (p in self.leases and self.leases[p].until > self.now)
        ]
        leases = consumer.store.claim_batch("v", consumer.name, limit, seconds)
        if consumer.transaction and self.enabled:
            consumer.transaction.used = consumer.transaction.leased = True
        assert sum(lease.to_offset - lease.from_offset for lease in leases) <= limit
        log = self.log_of(consumer)
        claimed = []
        for lease in leases:
            assert lease.partition in free, "two owners"
            self.touch_lease(consumer, lease.partition)
            delivers = {
                name: entries
                for name, state in self.streams.items()
                if state.partition == lease.partition
                and state.is_free(self.now)
                and (entries := [e for e in self.pending(name, log=log) if e.partition_offset < lease.to_offset])
            }
            retries = rows(
                consumer.store.connection,
                "select decider, decider_id from event_store.stream_locks where view = 'v' and lease_token = %s and in_flight is not null",
                lease.lease_token,
            )
            assert {*retries} <= {*delivers}
            held = Held(lease, self.now + seconds, delivers, {*retries})
            self.leases[lease.partition] = held
            claimed.append(held)
        due = {
            state.partition
            for name, state in self.streams.items()
            if state.partition in free and state.is_free(self.now) and self.pending(name)
        }
        if any(t.leased for t in self.transactions() if t is not consumer.transaction):
            due = set()  # a claim holds every partition that it looked at until its transaction ends
        assert claimed or not due
        if limit == 1000:
            assert due <= {held.lease.partition for held in claimed}, "pending and not claimed"
        if claimed:
            self.claims.append(claimed)
        return claimed

    @precondition(is_bulk)
    @rule(number=consumers, partition=partitions, seconds=durations)
    def claim_for_rebuild(self, number: int, partition: int, seconds: int) -> None:
        consumer = self.sessions.consumers[number]
        if any(t.leased or partition in t.leases for t in self.transactions() if t is not consumer.transaction):
            return  # this would wait

        def call() -> Lease:
            return consumer.store.claim_partition("v", partition, consumer.name, seconds)

        if partition in self.leases and self.leases[partition].until > self.now:
            self.refused(consumer, PartitionLeased, call)
            return
        lease = call()
        if consumer.transaction:
            consumer.transaction.leased = True
        self.touch_lease(consumer, partition)
        log = self.log_of(consumer)
        assert lease.from_offset == self.earliest[partition]
        delivers = {
            name: entries
            for name in self.streams_of(partition)
            if (
                entries := [
                    entry for entry in log[name] if entry.wanted and entry.partition_offset >= lease.from_offset
                ]
            )
        }
        self.leases[partition] = Held(lease, self.now + seconds, delivers, set(), rebuilds=True)
        self.claims.append([self.leases[partition]])

    def rebuilt(self, consumer: Consumer, held: Held, failed: set[Name]) -> None:
        """A rebuild settles every stream of its log partition, locked or not, but for those that fail again."""
        for name in self.streams_of(held.lease.partition):
            state = self.touch(consumer, name)
            if name in failed:
                state.since, state.acknowledged = 0, held.delivers[name][0].offset - 1
            else:
                self.streams[name] = Stream(held.lease.partition, since=held.lease.to_offset)

    def pick_claim(self, consumer: Consumer, pick: int) -> list[Held]:
        """Some claim, of anybody, whether or not it is still in force, unless a transaction holds it."""
        if any(t.leased for t in self.transactions() if t is not consumer.transaction):
            return []  # a claim holds every partition that it looked at until its transaction ends
        claim = self.claims[-1 - pick % len(self.claims)]
        return [held for held in claim if not self.leased_by_others(consumer, held.lease.partition)]

    def in_force(self, claim: Sequence[Held]) -> bool:
        tokens = {held.lease.lease_token for held in self.leases.values()}
        return all(held.lease.lease_token in tokens for held in claim)

    @precondition(lambda self: self.is_bulk() and self.claims)
    @rule(number=consumers, pick=picks)
    def read(self, number: int, pick: int) -> None:
        consumer = self.sessions.consumers[number]
        for held in self.pick_claim(consumer, pick):

            def call(held: Held = held) -> dict[Name, list[int]]:
                delivered: dict[Name, list[int]] = {}
                for event in consumer.store.read_batch("v", held.lease):
                    delivered.setdefault((event.decider, event.decider_id), []).append(event.offset)
                return delivered

            if not self.in_force([held]):
                self.refused(consumer, LeaseLost, call)
                return
            assert call() == {name: [entry.offset for entry in entries] for name, entries in held.delivers.items()}

    @contextmanager
    def one_transaction(self, consumer: Consumer) -> Iterator[None]:
        """The consumer's open transaction, or one that ends with this."""
        alone = consumer.transaction is None
        if alone:
            consumer.store.connection.execute("begin")
            consumer.transaction = Transaction()
        yield
        if alone:
            self.end(consumer, commit=True)

    @precondition(lambda self: self.is_bulk() and self.claims)
    @rule(
        number=consumers,
        pick=picks,
        cuts=cuts,
        failing=st.sets(numbers, max_size=3),
    )
    def commit(self, number: int, pick: int, cuts: list[int], failing: set[int]) -> None:
        """Commit a claim, or less of it or more, by its owner or by anybody else, with streams that fail."""
        consumer = self.sessions.consumers[number]
        if claim := self.pick_claim(consumer, pick):
            with self.one_transaction(consumer):
                self.commit_claim(consumer, claim, cuts, failing)

    @precondition(is_bulk)
    @rule(number=consumers, failing=st.sets(picks, min_size=1, max_size=2), cuts=st.tuples(cuts, cuts))
    def stumble(self, number: int, failing: set[int], cuts: tuple[list[int], list[int]]) -> None:
        """Fail with some streams in a part of a batch, and try them again with a part of the next one."""
        consumer = self.sessions.consumers[number]
        for failed, cut in zip((failing, set[int]()), cuts, strict=True):
            if claim := self.take_batch(consumer, 1000, 60):
                with self.one_transaction(consumer):
                    self.commit_claim(consumer, claim, cut, failed)
            self.pass_time(3600)

    def commit_claim(self, consumer: Consumer, claim: list[Held], cuts: list[int], failing: set[int]) -> None:
        failed: set[Name] = set()
        for held in claim:
            names = {name for i, name in enumerate(held.delivers) if i in failing}
            failures = [StreamFailure(*name, "it failed") for name in sorted(names)]
            if not failures:
                continue

            def call(held: Held = held, failures: list[StreamFailure] = failures) -> int:
                return consumer.store.fail_streams("v", held.lease, failures)

            if not self.in_force([held]):
                self.refused(consumer, LeaseLost, call)
                return
            parked = call()
            for name in names:
                state = self.touch(consumer, name)
                state.fail(state.attempts + 1, self.max_attempts, self.now)
            assert parked == sum(self.streams[name].parked for name in names)
            failed |= names

        to = [replace(held.lease, to_offset=held.lease.to_offset - cut) for held, cut in zip(claim, cuts, strict=False)]

        def commit() -> None:
            consumer.store.commit_batch("v", to)

        positions = self.positions_of(consumer.store)
        if not self.in_force(claim):
            self.refused(consumer, LeaseLost, commit)
        elif any(
            not positions[lease.partition] <= lease.to_offset <= held.lease.to_offset
            or (held.rebuilds and lease.to_offset != held.lease.to_offset)
            for held, lease in zip(claim, to, strict=True)
        ):
            self.refused(consumer, OffsetOutOfRange, commit)
        else:
            commit()
            for held, lease in zip(claim, to, strict=True):
                self.touch_lease(consumer, lease.partition)
                del self.leases[lease.partition]
                if held.rebuilds:
                    self.rebuilt(consumer, held, failed)
                    continue
                for name in held.delivers.keys() - failed:
                    done = [
                        entry
                        for entry in held.delivers[name]
                        if name in held.retries or entry.partition_offset < lease.to_offset
                    ]
                    if done:
                        self.touch(consumer, name).acknowledge(done[-1].offset, self.now)

    @precondition(lambda self: self.is_bulk() and self.claims)
    @rule(number=consumers, pick=picks)
    def fail_what_was_not_delivered(self, number: int, pick: int) -> None:
        consumer = self.sessions.consumers[number]
        claim = self.pick_claim(consumer, pick)
        others = [name for name in self.streams if claim and name not in claim[0].delivers]
        if others:
            failures = [StreamFailure(*others[pick % len(others)], "it failed")]
            error = NotInFlight if self.in_force(claim[:1]) else LeaseLost
            self.refused(consumer, error, lambda: consumer.store.fail_streams("v", claim[0].lease, failures))

    @precondition(lambda self: self.is_bulk() and self.claims)
    @rule(number=consumers, pick=picks)
    def release(self, number: int, pick: int) -> None:
        consumer = self.sessions.consumers[number]
        claim = self.pick_claim(consumer, pick)
        mine = [held for held in claim if self.in_force([held])]
        assert consumer.store.release_batch("v", [held.lease for held in claim]) == len(mine)
        for held in mine:
            self.touch_lease(consumer, held.lease.partition)
            del self.leases[held.lease.partition]

    @precondition(lambda self: self.is_bulk() and self.claims)
    @rule(number=consumers, pick=picks, seconds=durations)
    def extend(self, number: int, pick: int, seconds: int) -> None:
        consumer = self.sessions.consumers[number]
        if claim := self.pick_claim(consumer, pick):

            def call() -> object:
                return consumer.store.extend_lease("v", [held.lease for held in claim], seconds)

            if not self.in_force(claim):
                self.refused(consumer, LeaseLost, call)
                return
            call()
            for held in claim:
                self.touch_lease(consumer, held.lease.partition)
                self.leases[held.lease.partition] = replace(held, until=self.now + seconds)

    @precondition(is_bulk)
    @rule(number=consumers, limit=st.sampled_from([2, 1000]))
    def build(self, number: int, limit: int) -> None:
        """Do as a healthy owner does."""
        consumer = self.sessions.consumers[number]
        claim = self.take_batch(consumer, limit, 60)
        if claim:
            self.read(number, 0)
            with self.one_transaction(consumer):
                self.commit_claim(consumer, claim, [0] * PARTITIONS, set())

    @precondition(is_bulk)
    @rule()
    def pass_over(self) -> None:
        self.operator.pass_over_unwanted("v")

    def drain(self) -> None:
        for _ in range(2 + sum(len(self.pending(name)) for name in self.streams)):
            self.pass_time(7200)
            if self.parked():
                self.retry(0, every=True)
            self.build(0, 1000)
            self.the_store_and_the_model_agree_on_what_is_pending()


class ChangingLife(RowsLife, BulkLife):
    """A view that is consumed in one mode, then in the other."""

    first_mode = "rows"

    @rule()
    def change_mode(self) -> None:
        other = "bulk" if self.mode == "rows" else "rows"

        def call() -> object:
            return self.operator.register_view("v", mode=other, **self.filters)

        if self.in_use():
            refusal(ViewInUse, call)
        else:
            call()
            self.mode = other
            self.end_deliveries()
            # a retry that an owner did not commit counts as a delivery that somebody else may still answer for
            for decider, decider_id, taken_over in rows(
                self.operator.connection, "select decider, decider_id, taken_over from event_store.stream_locks"
            ):
                self.streams[decider, decider_id].taken_over |= taken_over

    @rule(pick=picks)
    def call_for_the_other_mode(self, pick: int) -> None:
        store = self.operator
        lease = Lease(0, 0, 0, 1)
        calls: dict[str, list[Callable[[], object]]] = {
            "bulk": [
                lambda: store.dispatch_events("v"),
                lambda: store.lease_events("v"),
                lambda: store.ack_event("v", "o-1", 1),
                lambda: store.ack_events("v", [1]),
                lambda: store.nack_event("v", "o-1"),
                lambda: store.fail_event("v", "o-1", 1, "it failed"),
                lambda: store.extend_lock("v", "o-1", 1),
            ],
            "rows": [
                lambda: store.claim_batch("v", "me"),
                lambda: store.claim_partition("v", 0, "me"),
                lambda: store.read_batch("v", lease),
                lambda: store.commit_batch("v", [lease]),
                lambda: store.fail_streams("v", lease, [StreamFailure("order", "o-1", "it failed")]),
                lambda: store.release_batch("v", [lease]),
                lambda: store.extend_lease("v", [lease]),
            ],
        }
        choice = calls[self.mode]
        refusal(WrongMode, choice[pick % len(choice)])

    def drain(self) -> None:
        (RowsLife if self.mode == "rows" else BulkLife).drain(self)


@pytest.mark.timeout(0 if PROFILE.max_examples > 100 else 600)  # a failure is shrunk for up to five minutes
@pytest.mark.parametrize("life", [RowsLife, BulkLife, ChangingLife])
def test_every_wanted_event_is_acknowledged_once_in_order(connect: Connect, life: type[Life]) -> None:
    sessions = Sessions(connect)
    machine = type(life.__name__, (life,), {"sessions": sessions})
    run_state_machine_as_test(machine, settings=PROFILE)
