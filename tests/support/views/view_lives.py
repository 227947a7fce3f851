"""Random lives of a view against a small model: after any steps, each wanted event is acknowledged once, in order.

Three consumers, an operator, a writer with an open transaction, and one with an endless transaction act at random on
one view. After every step the store must count the same events as pending as the model does. At the end a healthy
consumer drains the view, and no event may be left.

`--long` runs more lives, with other seeds each time.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar
from uuid import uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from millrace.archive.store import ArchiveStore
from millrace.errors import HistoryNeeded, MillraceError, NotParked, PositionOutOfRange, ViewInUse
from millrace.event_store.platform import PlatformStore
from tests.support.factories import Connect, assert_locks_know_versions, refusal, rows, set_clock, terminate
from tests.support.sql_calls import BatchEvent, append_events
from tests.support.views.view_model import PARTITIONS, Consumer, Entry, Model, Name, Stream, Transaction
from tests.support.views.view_sessions import Sessions

_common = settings(stateful_step_count=50, deadline=None, database=None, suppress_health_check=list(HealthCheck))
# A step is a whole dialogue (lease, answer, fetch again): this number of lives finds an answer that counts too late or
# too often, an attempt that is not counted, and a part of a batch that is taken for all of it.
REPEATABLE = settings(_common, max_examples=15, derandomize=True)
LONG = settings(_common, max_examples=500, derandomize=False)
LIMIT_S = 3600  # shrinking a failure takes minutes
EVENTS = ("placed", "paid", "shipped")
Seek = tuple[str, int | None, int, int]
stream_numbers = st.integers(0, 5)
consumers = st.integers(0, 2)
partitions = st.integers(0, PARTITIONS - 1)
batches = st.lists(st.tuples(stream_numbers, st.sampled_from(EVENTS)), min_size=1, max_size=6)
durations = st.sampled_from([10, 60])
picks = st.integers(0, 3)
seeks = st.tuples(
    st.sampled_from(["RESET_TO_OFFSET", "EXACT_OFFSET", "RESET_TO_EARLIEST", "RESET_TO_LATEST", "RESUME_OR_EARLIEST"])
    | st.sampled_from(["RESUME_OR_LATEST", "EXACT_TIMESTAMP"]),
    partitions | st.none(),
    st.integers(-1, 12),
    st.sampled_from([0, 10, 60, 3600]),
)
operations = st.one_of(
    st.tuples(st.just("switch"), st.booleans()),
    st.tuples(st.just("retry"), picks, st.booleans()),
    st.tuples(st.just("discard"), picks),
    st.tuples(st.just("seek"), seeks, st.booleans()),
    st.tuples(st.just("archive"), partitions, st.integers(0, 12)),
    st.tuples(st.just("give_up_history"), partitions, st.sampled_from([0, 1, 2]), st.sampled_from([100, 1, 0])),
)


class Life(Model, RuleBasedStateMachine):
    """The actions on any view; the subclasses add those of its mode."""

    sessions: ClassVar[Sessions]
    mode: ClassVar[str]

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
        self.operator, self.consumers = self.sessions.operator, self.sessions.consumers
        self.enabled, self.now, self.max_attempts = True, 0, max_attempts
        self.filters = {"deciders": deciders, "events": events, "max_attempts": max_attempts}
        self.pass_time(0)
        self.operator.register_view("v", "-infinity", mode=self.mode, **self.filters)
        where = rows(
            self.operator.connection,
            "select id, event_store.stream_partition(id, %s) from unnest(%s::text[]) id",
            PARTITIONS,
            list({decider_id for _, decider_id in self.sessions.streams}),
        )
        self.streams = {name: Stream(dict(where)[name[1]]) for name in self.sessions.streams}
        self.appended = {name: [] for name in self.streams}
        self.log = {name: [] for name in self.streams}
        zeros = [dict.fromkeys(range(PARTITIONS), 0) for _ in range(5)]
        self.marks, self.earliest, self.archived, self.purged, self.positions = zeros
        self.uncommitted, self.deliveries, self.claims, self.leases = {}, [], [], {}
        self.append(first)
        self.sequence(0)
        endless = self.sessions.endless
        endless.connection.execute("begin")
        append_events(endless, [BatchEvent("order", "endless", "placed", uuid4(), {}, uuid4())])

    def succeeds_if_idle(self, call: Callable[[], object]) -> bool:
        """Make a call that a view in use refuses; return whether it succeeded."""
        if self.in_use():
            refusal(ViewInUse, call)
            return False
        try:
            call()
        except ViewInUse:
            assert any(transaction.looked for transaction in self.transactions()), "refused and not in use"
            return False
        return True

    def refused(self, consumer: Consumer, error: type[MillraceError], work: Callable[[], object]) -> None:
        refusal(error, work)
        if consumer.transaction:
            self.end(consumer, commit=False)

    # The store's view --------------------------------------------------------------------------------------

    def read_log(self, connection: psycopg.Connection) -> dict[int, list[tuple[Name, Entry]]]:
        """Read the part of the log that the model lacks, as this session sees it."""
        found: dict[int, list[tuple[Name, Entry]]] = {}
        for partition, position, offset, decider, decider_id in rows(
            connection,
            """
            select l.partition, l.position, l."offset", e.decider, e.decider_id
            from unnest(%s::int[], %s::bigint[]) known(partition, mark)
            join event_store.event_log l on l.partition = known.partition and l.position >= known.mark
            left join event_store.events e using ("offset")
            order by l.partition, l.position
            """,
            list(self.marks),
            list(self.marks.values()),
        ):
            name = (decider, decider_id)
            news = found.setdefault(partition, [])
            assert position == self.marks[partition] + len(news), "the log has a gap"
            known = len(self.log[name]) + sum(other == name for other, _ in news)
            assert self.streams[name].partition == partition
            appended, event, at = self.appended[name][known]
            assert appended == offset, "the log skips or inverts a stream"
            news.append((name, Entry(position, offset, self.wanted(name, event), at)))
        return found

    def observe(self) -> None:
        for partition, news in self.read_log(self.operator.connection).items():
            self.marks[partition] += len(news)
            for name, entry in news:
                self.log[name].append(entry)

    def log_of(self, consumer: Consumer) -> dict[Name, list[Entry]]:
        """Return the log as this consumer sees it: its transaction may have sequenced."""
        self.observe()
        log = dict(self.log)
        if consumer.transaction:
            for news in self.read_log(consumer.store.connection).values():
                for name, entry in news:
                    log[name] = [*log[name], entry]
        return log

    def positions_of(self, store: PlatformStore) -> dict[int, int]:
        return dict(rows(store.connection, "select partition, position from event_store.checkpoints where view = 'v'"))

    @invariant()
    def the_store_and_the_model_agree_on_what_is_pending(self) -> None:
        """Check that a wanted event below a checkpoint is acknowledged or its stream locked; others are to come."""
        self.observe()
        positions = self.positions_of(self.operator)
        assert all(position >= self.positions[p] for p, position in positions.items()), "a checkpoint moved back"
        self.positions = positions
        pending = rows(
            self.operator.connection,
            """
            select e.decider, e.decider_id, array_agg(l."offset" order by l.position)
            from event_store.views v
            join event_store.checkpoints c using (view)
            join event_store.event_log l using (partition)
            join event_store.events e using ("offset")
            left join event_store.stream_locks k using (view, decider, decider_id)
            where case when k.view is null then l.position >= c.position else e."offset" > k.last_offset end
              and event_store_private.wants(v.deciders, v.events, e.decider, e.event)
            group by e.decider, e.decider_id
            """,
        )
        assert {(decider, decider_id): offsets for decider, decider_id, offsets in pending} == {
            name: [entry.offset for entry in entries]
            for name in self.streams
            if (entries := self.pending(name, self.committed(name)))
        }

    @invariant()
    def a_lock_knows_the_version_that_it_goes_on_behind(self) -> None:
        assert_locks_know_versions(self.operator.connection)

    def teardown(self) -> None:
        if sys.exc_info()[0] is None:
            self.everything_is_delivered_in_the_end()

    def everything_is_delivered_in_the_end(self) -> None:
        for consumer in self.consumers:
            if consumer.transaction:
                self.end(consumer, commit=False)
        self.end_write(commit=True)
        self.switch(True)
        self.sequence(0)
        self.drain()
        view = self.operator.connection
        assert rows(view, "select * from event_store.stream_locks") == [], "a lock is left"
        assert [(lag.behind, lag.lag) for lag in self.operator.view_lag("v")] == [(0, 0)] * PARTITIONS
        assert not any(self.pending(name) for name in self.streams)
        assert {name: len(entries) for name, entries in self.log.items()} == {
            name: len(events) for name, events in self.appended.items()
        }, "an event is not in the log"
        for consumer in self.consumers:
            self.operator.release_owner(consumer.name)  # an expired lease can still be committed
        archive = ArchiveStore(self.operator.connection)
        for partition, mark in self.marks.items():
            to = min(mark, self.positions[partition])
            archive.mark_archived(partition, to)
            assert archive.raise_low_water_mark(partition, to) == max(to, self.earliest[partition])

    def drain(self) -> None:
        """Consume everything with a healthy consumer, as the mode requires."""
        raise NotImplementedError

    # Appending and sequencing ------------------------------------------------------------------------------

    def new_events(self, batch: Sequence[tuple[int, str]]) -> list[tuple[Name, BatchEvent]]:
        names = [(self.sessions.streams[number], event) for number, event in batch]
        return [
            (name, BatchEvent(*name, event, uuid4(), {}, uuid4()))
            for name, event in names
            if name not in self.uncommitted  # the second writer would wait
        ]

    @rule(batch=batches)
    def append(self, batch: list[tuple[int, str]]) -> None:
        if events := self.new_events(batch):
            stored = append_events(self.operator, [event for _, event in events])
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
        stored = append_events(writer, [event for _, event in events])
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
        consumer = self.consumers[number]
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
        consumer = self.consumers[number]
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

    @contextmanager
    def one_transaction(self, consumer: Consumer) -> Iterator[None]:
        """Work in the consumer's open transaction, else in a new one that is committed at the end of the block."""
        alone = consumer.transaction is None
        if alone:
            consumer.store.connection.execute("begin")
            consumer.transaction = Transaction()
        yield
        if alone:
            self.end(consumer, commit=True)

    def die(self, number: int) -> None:
        consumer = self.consumers[number]
        terminate(self.operator.connection, consumer.session)
        consumer.store.connection.close()
        if consumer.transaction:
            self.undo(consumer.transaction)
        self.consumers[number] = self.sessions.consumer(number)
        set_clock(self.consumers[number].store.connection, self.time())

    # Operating ---------------------------------------------------------------------------------------------

    @rule(operation=operations)
    def operate(self, operation: tuple[Any, ...]) -> None:
        getattr(self, operation[0])(*operation[1:])

    def switch(self, enabled: bool) -> None:
        self.enabled = self.operator.enable_view("v", enabled).enabled
        assert self.enabled == enabled

    def parked(self) -> list[Name]:
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

    def seek_when_idle(self, how: Seek) -> None:
        for consumer in self.consumers:
            self.end(consumer, commit=True)
        self.pass_time(3600)
        # a claim moves checkpoints past unwanted events
        self.the_store_and_the_model_agree_on_what_is_pending()
        self.seek(how, dry_run=False)

    @rule(how=seeks)
    def start_anew(self, how: Seek) -> None:
        self.seek_when_idle(how)

    @rule(number=consumers, stream=stream_numbers, pick=picks)
    def give_up(self, number: int, stream: int, pick: int) -> None:
        """Fail all streams until they are parked, and discard one event of one stream, which has more."""
        self.append([(stream, "placed")] * 2)
        for consumer in self.consumers:
            self.end(consumer, commit=True)
        for _ in range(self.max_attempts):
            self.pass_time(3600)
            self.fail_with_everything(number)
        self.discard(pick)

    def fail_with_everything(self, number: int) -> None:
        raise NotImplementedError

    def seek(self, how: Seek, dry_run: bool) -> None:
        kind, partition, offset, ago = how
        self.sequence(0)
        timestamp = datetime.fromisoformat(self.time()) - timedelta(seconds=ago) if kind == "EXACT_TIMESTAMP" else None
        exact = kind in ("EXACT_OFFSET", "RESET_TO_OFFSET")
        if exact:
            partition = partition or 0

        def call() -> list[Any]:
            return list(
                self.operator.seek_view("v", kind, offset if exact else None, timestamp, partition, dry_run=dry_run)
            )

        chosen = range(PARTITIONS) if partition is None else [partition]
        targets = {p: self.target(kind, p, offset, self.now - ago) for p in chosen}
        moves: list[Any] = []
        if any(to < self.earliest[p] or (kind == "EXACT_OFFSET" and to >= self.marks[p]) for p, to in targets.items()):
            looked = any(transaction.looked for transaction in self.transactions())
            wrong = (PositionOutOfRange, ViewInUse) if looked else (PositionOutOfRange,)
            with pytest.raises(ViewInUse if self.in_use() else wrong):
                call()
            return
        if not self.succeeds_if_idle(lambda: moves.extend(call())):
            return
        moved = {move.partition: (move.from_position, move.to_position) for move in moves}
        assert moved == {p: (self.positions[p], to) for p, to in targets.items()}
        if dry_run:
            return
        self.end_deliveries()
        for p, to in targets.items():
            if to != self.positions[p] or not kind.startswith("RESUME"):
                self.positions[p] = to
                self.streams |= {name: Stream(p, since=to) for name in self.streams_of(p)}

    def archive(self, partition: int, to: int) -> None:
        if not self.nobody_sequences():
            return
        if to > self.marks[partition]:
            refusal(PositionOutOfRange, lambda: ArchiveStore(self.operator.connection).mark_archived(partition, to))
        else:
            self.archived[partition] = max(self.archived[partition], to)
            assert ArchiveStore(self.operator.connection).mark_archived(partition, to) == self.archived[partition]

    def give_up_history(self, partition: int, back: int, purge: int) -> None:
        if not self.nobody_sequences():
            return
        to = max(self.archived[partition] - back, 0)
        needed = to > self.positions[partition] or any(
            entry.position < to
            for name, state in self.streams.items()
            if state.partition == partition
            for entry in self.pending(name, self.committed(name))
        )
        archive = ArchiveStore(self.operator.connection)
        locks = "select from event_store.stream_locks where partition = %s"
        try:
            earliest = archive.raise_low_water_mark(partition, to)
        except HistoryNeeded:
            assert needed or rows(archive.connection, locks, partition) or partition in self.leases
        else:
            assert not needed
            self.earliest[partition] = max(self.earliest[partition], to)
            assert earliest == self.earliest[partition]
        if purge:
            purged = min(purge, self.earliest[partition] - self.purged[partition])
            assert archive.purge_events(partition, purge) == purged
            self.purged[partition] += purged


def live(life: type[Life], connect: Connect, config: pytest.Config) -> None:
    """Run some lives of views, or many with `--long`."""
    machine = type(life.__name__, (life,), {"sessions": Sessions(connect)})
    run_state_machine_as_test(machine, settings=LONG if config.getoption("--long") else REPEATABLE)
