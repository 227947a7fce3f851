"""Random lives of a bulk view: claims, commits of a part or of too much, failing streams, rebuilds, late owners."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from millrace.errors import LeaseLost, NotInFlight, PartitionLeased, PositionOutOfRange
from millrace.event_store import StreamFailure
from tests.support.factories import Connect, rows
from tests.support.views.view_lives import (
    LIMIT_S,
    Life,
    Seek,
    consumers,
    durations,
    live,
    partitions,
    picks,
    seeks,
    stream_numbers,
)
from tests.support.views.view_model import PARTITIONS, Consumer, Held, Name, Stream

cuts = st.lists(st.sampled_from([0, 0, 0, 0, 1, 1, 2, 2, -1, 99]), min_size=PARTITIONS, max_size=PARTITIONS)
maybe_cuts = st.none() | cuts
failing = st.sets(stream_numbers, max_size=3)


class BulkLife(Life):
    """The actions of a bulk view's owners."""

    mode = "bulk"

    @rule(number=consumers, limit=st.sampled_from([1000, 1, 2, 5]), seconds=durations, cuts=maybe_cuts, failing=failing)
    def claim(self, number: int, limit: int, seconds: int, cuts: list[int] | None, failing: set[int]) -> None:
        if self.take_batch(self.consumers[number], limit, seconds) and cuts:
            self.commit(number, 0, cuts, failing)

    @rule(number=consumers, other=consumers)
    def take_over_batch(self, number: int, other: int) -> None:
        """Let the leases of one owner expire and another owner claim them."""
        self.take_batch(self.consumers[number], 1000, 10)
        self.pass_time(10)
        self.take_batch(self.consumers[other], 1000, 60)

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
            consumer.transaction.looked = consumer.transaction.leased = True
        assert sum(lease.to_position - lease.from_position for lease in leases) <= limit
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
                and (entries := [e for e in self.pending(name, log=log) if e.position < lease.to_position])
            }
            retries = rows(
                consumer.store.connection,
                "select decider, decider_id from event_store.stream_locks where view = 'v' and lease_token = %s and in_flight is not null",
                lease.lease_token,
            )
            assert {*retries} <= {*delivers}
            held = Held(lease, consumer.name, self.now + seconds, delivers, {*retries})
            self.leases[lease.partition] = held
            claimed.append(held)
        due = {
            state.partition
            for name, state in self.streams.items()
            if state.partition in free and state.is_free(self.now) and self.pending(name)
        }
        if any(t.leased for t in self.transactions() if t is not consumer.transaction):
            due = set()  # a claim locks every partition that it read until its transaction ends
        assert claimed or not due
        if limit == 1000:
            assert due <= {held.lease.partition for held in claimed}, "pending and not claimed"
        if claimed:
            self.claims.append(claimed)
        return claimed

    @rule(number=consumers, partition=partitions, seconds=durations, cuts=maybe_cuts, failing=failing)
    def claim_for_rebuild(
        self, number: int, partition: int, seconds: int, cuts: list[int] | None, failing: set[int]
    ) -> None:
        consumer = self.consumers[number]
        if any(t.leased or partition in t.leases for t in self.transactions() if t is not consumer.transaction):
            return  # this call would wait
        call = partial(consumer.store.claim_partition, "v", partition, consumer.name, seconds)
        if partition in self.leases and self.leases[partition].until > self.now:
            self.refused(consumer, PartitionLeased, call)
            return
        lease = call()
        if consumer.transaction:
            consumer.transaction.leased = True
        self.touch_lease(consumer, partition)
        log = self.log_of(consumer)
        assert lease.from_position == self.earliest[partition]
        delivers = {
            name: entries
            for name in self.streams_of(partition)
            if (entries := [entry for entry in log[name] if entry.wanted and entry.position >= lease.from_position])
        }
        self.leases[partition] = Held(lease, consumer.name, self.now + seconds, delivers, set(), rebuilds=True)
        self.claims.append([self.leases[partition]])
        if cuts:
            self.commit(number, 0, cuts, failing)

    def rebuilt(self, consumer: Consumer, held: Held, failed: set[Name]) -> None:
        """Settle every stream of the rebuilt log partition, locked or not, except those that fail again."""
        for name in self.streams_of(held.lease.partition):
            state = self.touch(consumer, name)
            if name in failed:
                state.since, state.acknowledged = 0, held.delivers[name][0].offset - 1
            else:
                self.streams[name] = Stream(held.lease.partition, since=held.lease.to_position)

    def pick_claim(self, consumer: Consumer, pick: int) -> list[Held]:
        """Pick a claim of any consumer, in force or not; skip leases that another's open transaction holds."""
        if any(t.leased for t in self.transactions() if t is not consumer.transaction):
            return []  # a claim locks every partition that it read until its transaction ends
        claim = self.claims[-1 - pick % len(self.claims)]
        return [held for held in claim if not self.leased_by_others(consumer, held.lease.partition)]

    def in_force(self, claim: Sequence[Held]) -> bool:
        tokens = {held.lease.lease_token for held in self.leases.values()}
        return all(held.lease.lease_token in tokens for held in claim)

    @precondition(lambda self: self.claims)
    @rule(number=consumers, pick=picks)
    def read(self, number: int, pick: int) -> None:
        consumer = self.consumers[number]
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

    @precondition(lambda self: self.claims)
    @rule(number=consumers, pick=picks, cuts=cuts, failing=failing)
    def commit(self, number: int, pick: int, cuts: list[int], failing: set[int]) -> None:
        """Commit a claim, or a part of it or more, by its owner or another one, with failing streams."""
        consumer = self.consumers[number]
        if claim := self.pick_claim(consumer, pick):
            with self.one_transaction(consumer):
                self.commit_claim(consumer, claim, cuts, failing)

    @rule(number=consumers, failing=st.sets(picks, min_size=1, max_size=2), cuts=st.tuples(cuts, cuts, cuts))
    def stumble(self, number: int, failing: set[int], cuts: tuple[list[int], ...]) -> None:
        """Fail some streams in a part of a batch, twice, and retry them with a part of the next one."""
        consumer = self.consumers[number]
        for failed, cut in zip((failing, failing, set[int]()), cuts, strict=True):
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
            call = partial(consumer.store.fail_streams, "v", held.lease, failures)
            if not self.in_force([held]):
                self.refused(consumer, LeaseLost, call)
                return
            parked = call()
            for name in names:
                state = self.touch(consumer, name)
                state.fail(state.attempts + 1, self.max_attempts, self.now)
            assert parked == sum(self.streams[name].parked for name in names)
            failed |= names

        leases = [(held.lease, cut) for held, cut in zip(claim, cuts, strict=False)]
        to = [replace(lease, to_position=lease.to_position - cut) for lease, cut in leases]
        commit = partial(consumer.store.commit_batch, "v", to)
        positions = self.positions_of(consumer.store)
        if not self.in_force(claim):
            self.refused(consumer, LeaseLost, commit)
        elif any(
            not positions[lease.partition] <= lease.to_position <= held.lease.to_position
            or (held.rebuilds and lease.to_position != held.lease.to_position)
            for held, lease in zip(claim, to, strict=True)
        ):
            self.refused(consumer, PositionOutOfRange, commit)
        else:
            commit()
            for held, lease in zip(claim, to, strict=True):
                self.touch_lease(consumer, lease.partition)
                del self.leases[lease.partition]
                if held.rebuilds:
                    self.rebuilt(consumer, held, failed)
                    continue
                for name in held.delivers.keys() - failed:
                    done = [entry for entry in held.delivers[name] if entry.position < lease.to_position]
                    if done:
                        self.touch(consumer, name).acknowledge(done[-1].offset, self.now)
                    elif name in held.retries:
                        self.touch(consumer, name).go_on(self.now)

    @precondition(lambda self: self.claims)
    @rule(number=consumers, pick=picks)
    def fail_what_was_not_delivered(self, number: int, pick: int) -> None:
        consumer = self.consumers[number]
        claim = self.pick_claim(consumer, pick)
        others = [name for name in self.streams if claim and name not in claim[0].delivers]
        if others:
            failures = [StreamFailure(*others[pick % len(others)], "it failed")]
            error = NotInFlight if self.in_force(claim[:1]) else LeaseLost
            self.refused(consumer, error, lambda: consumer.store.fail_streams("v", claim[0].lease, failures))

    @precondition(lambda self: self.claims)
    @rule(number=consumers, pick=picks)
    def release(self, number: int, pick: int) -> None:
        consumer = self.consumers[number]
        claim = self.pick_claim(consumer, pick)
        mine = [held for held in claim if self.in_force([held])]
        assert consumer.store.release_batch("v", [held.lease for held in claim]) == len(mine)
        for held in mine:
            self.touch_lease(consumer, held.lease.partition)
            del self.leases[held.lease.partition]

    @precondition(lambda self: self.claims)
    @rule(number=consumers, pick=picks, seconds=durations)
    def extend(self, number: int, pick: int, seconds: int) -> None:
        consumer = self.consumers[number]
        if claim := self.pick_claim(consumer, pick):
            call = partial(consumer.store.extend_lease, "v", [held.lease for held in claim], seconds)
            if not self.in_force(claim):
                self.refused(consumer, LeaseLost, call)
                return
            call()
            for held in claim:
                self.touch_lease(consumer, held.lease.partition)
                self.leases[held.lease.partition] = replace(held, until=self.now + seconds)

    @rule(number=consumers, limit=st.sampled_from([2, 1000]))
    def build(self, number: int, limit: int) -> None:
        """Act as a healthy owner."""
        consumer = self.consumers[number]
        if claim := self.take_batch(consumer, limit, 60):
            self.read(number, 0)
            with self.one_transaction(consumer):
                self.commit_claim(consumer, claim, [0] * PARTITIONS, set())

    @rule()
    def pass_over(self) -> None:
        self.operator.pass_over_unwanted("v")

    @rule(number=consumers, how=seeks)
    def commit_late(self, number: int, how: Seek) -> None:
        """Commit a claim from before the view was moved."""
        if self.take_batch(self.consumers[number], 1000, 10):
            self.seek_when_idle(how)
            self.commit(number, 0, [0] * PARTITIONS, set())

    @rule(number=consumers, other=consumers)
    def be_declared_dead(self, number: int, other: int) -> None:
        """Lose every lease to a consumer that takes the owner for dead, and commit nevertheless."""
        for consumer in self.consumers:
            self.end(consumer, commit=True)
        claimed = self.take_batch(self.consumers[number], 1000, 60)
        owner = self.consumers[other].name
        his = [partition for partition, held in self.leases.items() if held.owner == owner]
        assert self.operator.release_owner(owner) == len(his)
        for partition in his:
            del self.leases[partition]
        if claimed:
            self.commit(number, 0, [0] * PARTITIONS, set())

    def fail_with_everything(self, number: int) -> None:
        consumer = self.consumers[number]
        if claim := self.take_batch(consumer, 1000, 60):
            with self.one_transaction(consumer):
                self.commit_claim(consumer, claim, [0] * PARTITIONS, set(range(len(self.streams))))

    def drain(self) -> None:
        for _ in range(2 + sum(len(self.pending(name)) for name in self.streams)):
            self.pass_time(7200)
            if self.parked():
                self.retry(0, every=True)
            self.build(0, 1000)
            self.the_store_and_the_model_agree_on_what_is_pending()


@pytest.mark.timeout(LIMIT_S)
def test_each_event_of_a_bulk_view_is_acknowledged_once(connect: Connect, pytestconfig: pytest.Config) -> None:
    live(BulkLife, connect, pytestconfig)
