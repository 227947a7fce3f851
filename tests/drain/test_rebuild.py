"""Rebuilds of log partitions beside drains, readers and each other: no partial results, no deadlocks."""

import itertools
import random
import threading
import time
from decimal import Decimal
from functools import partial

import psycopg
import pyarrow as pa
import pytest

from millrace import count, field, sum_
from millrace.drain.commit import Commit, transaction
from millrace.drain.report import DrainReport
from millrace.errors import PartitionLeased
from millrace.event_store.platform import PlatformStore
from millrace.ops import ReadModel
from millrace.read_models.stored import merge
from millrace.read_models.stored.merge import StagedRows, merge_rows, next_batch, replace_partition
from millrace.read_models.stored.tables import state_schema
from millrace.read_models.stored.versions import ensure_version
from tests.support.building.drains import Counted, busiest, thing
from tests.support.building.lab import Lab
from tests.support.factories import Connect, at_once, rows, start, value
from tests.support.patience import patience, wait_until
from tests.support.sql_calls import append_events


def test_no_reader_sees_half_of_a_rebuild_while_others_drain(lab: Lab, connect: Connect) -> None:
    lab.fill(120).drain(Counted)
    partition, done, stop = busiest(lab), threading.Event(), threading.Event()
    reader = connect()

    def read() -> int:
        """Assert that every statement sees a whole model: exactly the events below the checkpoint, never fewer."""
        looks, before = 0, (0, 0)
        while not done.is_set():
            ((position, events, number),) = rows(
                reader,
                "select (select position from event_store.checkpoints where view = 'counted' and partition = %(p)s),"
                " sum(events)::bigint, count(*) from read_models.counted"
                " where event_store.stream_partition(thing_id, 16) = %(p)s".replace("%(p)s", "%s"),
                partition,
                partition,
            )
            assert events == position
            assert (events, number) >= before
            before, looks = (events, number), looks + 1
        return looks

    def consume() -> DrainReport:
        with lab.consumer(Counted, "drainer") as consumer:
            return consumer.drain(budget_s=patience(), idle_s=patience(), stop=stop, batch_events=40)

    looking, draining = start(read), start(consume)
    try:
        with lab.consumer(Counted, "rebuilder") as consumer:
            for seed, partitions in ((2, [partition]), (3, range(16))):
                lab.fill(40, seed)
                consumer.rebuild(*partitions, wait_s=patience())
    finally:
        stop.set()
        draining.result(patience())
        done.set()
    assert looking.result(patience()) > 3
    lab.drain(Counted)
    lab.is_clean(Counted)


def test_a_rebuild_waits_for_a_leased_partition_and_says_who_has_it(lab: Lab) -> None:
    lab.fill(60)
    ensure_version(lab.connection, Counted)
    partition = busiest(lab)
    lease = lab.claim_partition(Counted.view, partition, "somebody else", 600)
    with lab.consumer(Counted, "rebuilder") as consumer:
        with pytest.raises(PartitionLeased, match="somebody else"):
            consumer.rebuild(partition, wait_s=0.3)
        since = lab.value("select clock_timestamp()")
        running = start(lambda: consumer.rebuild(partition, wait_s=patience()))
        asked = "select from pg_stat_activity where query_start > %s and state = 'idle' and query ilike %s"
        wait_until(lambda: lab.rows(asked, since, "%claim_partition(%"), "it asked in vain")
        lab.release_batch(Counted.view, [lease])
        assert running.result(patience()).leases[0].partition == partition
    lab.drain(Counted)
    lab.is_clean(Counted)


def test_several_are_rebuilt_together_or_none_and_two_take_turns(lab: Lab) -> None:
    lab.fill(80).drain(Counted)
    before = lab.rows_of(Counted)
    lab.execute("update read_models.counted_state set events = 0")
    damaged = lab.rows_of(Counted)
    lease = lab.claim_partition(Counted.view, 15, "somebody else", 600)
    with lab.consumer(Counted, "rebuilder") as consumer:
        with pytest.raises(PartitionLeased, match="somebody else"):
            consumer.rebuild(*range(16), wait_s=0)
        assert lab.lease_owners(Counted.view) == ["somebody else"]
        assert lab.rows_of(Counted) == damaged
        lab.release_batch(Counted.view, [lease])
        commit = consumer.rebuild(*range(16), wait_s=0)
    assert (commit.events, len(commit.leases), sum(commit.rows_of.values())) == (80, 16, commit.rows)
    assert lab.rows_of(Counted) == before

    def rebuild(owner: str, *partitions: int) -> Commit:
        return lab.rebuild(Counted, *partitions, owner=owner)

    one, two = at_once([lambda: rebuild("A", *range(16)), lambda: rebuild("B", *reversed(range(16)))])
    # there is nothing to mend
    assert one.result().rows == two.result().rows == 0
    lab.is_clean(Counted)


def test_a_rebuild_waits_for_no_reader_who_sees_the_rows_of_then(lab: Lab, connect: Connect) -> None:
    append_events(lab, [thing("only", text="a", units=1)])
    lab.drain(Counted)
    lab.execute("update read_models.counted_state set events = 7")
    full, reader = busiest(lab), connect()
    with lab.consumer(Counted, "rebuilder") as consumer:
        with reader.transaction():
            reader.execute("set transaction isolation level repeatable read")
            assert value(reader, "select events from read_models.counted") == 7
            assert (consumer.rebuild(full).rows, consumer.rebuild(full).rows) == (1, 0)
            assert value(reader, "select events from read_models.counted") == 7
        assert consumer.rebuild((full + 1) % 16).rows == 0
    lab.is_clean(Counted)


RACE_S = 3
CROSSING = ReadModel(
    name="crossing_uses", view="crossing_uses", description="One row per text.", keys={"text": field("data.text")},
    columns={"units": sum_("data.units"), "events": count()},
)  # fmt: skip


def test_commits_and_rebuilds_of_shared_rows_lose_nothing(things: PlatformStore, connect: Connect) -> None:
    """Parts that several log partitions share, last parts that go, and new ones, at once, for some seconds."""
    model = ensure_version(things.connection, CROSSING)
    until = time.monotonic() + RACE_S

    def session() -> psycopg.Connection:
        opened = connect(autocommit=True)
        # a login may have this default; a session that waited would then fail because its read rows have changed
        opened.execute("set default_transaction_isolation = 'repeatable read'")
        return opened

    def merges(seed: int) -> int:
        dice, connection = random.Random(seed), session()
        for number in itertools.count():
            if time.monotonic() > until:
                return number
            fresh = [
                (dice.randrange(4 * seed, 4 * seed + 4), f"k-{dice.randrange(12)}", Decimal(1), 1) for _ in range(6)
            ]
            distinct = {row[:2]: row for row in fresh}
            table = pa.table([*map(list, zip(*distinct.values(), strict=True))], names=[*state_schema(model)])
            with transaction(PlatformStore(connection), model):
                merge_rows(connection, model, table)
        raise AssertionError

    def rebuilds(partition: int) -> int:
        dice, connection = random.Random(partition), session()
        for number in itertools.count():
            if time.monotonic() > until:
                return number
            batch, keys = next_batch(connection), dice.sample(range(14), dice.randrange(14))  # two are its own alone
            for key in keys:
                connection.execute(
                    "insert into read_models.crossing_uses_staging (partition, text, units, events, batch, attempt)"
                    " values (%s, %s, 2, 1, %s, 1)",
                    (partition, f"k-{key}", batch),
                )
            with transaction(PlatformStore(connection), model):
                replace_partition(connection, model, partition, batch, [StagedRows(1, len(keys))])
                merge.forget_batch(connection, model, batch)
        raise AssertionError

    works = [*(partial(merges, seed) for seed in (0, 1, 2)), partial(rebuilds, 14), partial(rebuilds, 15)]
    assert all(one.result(patience()) > 1 for one in at_once(works))
    merged = (
        "select text, sum(units), sum(events)::bigint from read_models.crossing_uses_state_parts group by 1 order by 1"
    )
    public = "select * from read_models.crossing_uses order by 1"
    assert rows(things.connection, public) == rows(things.connection, merged)
    for partition in (14, 15):
        with transaction(things, model):
            replace_partition(things.connection, model, partition, next_batch(things.connection), [])
    # the rebuilders' own keys are gone with their last part
    left = rows(things.connection, public)
    assert left == rows(things.connection, merged)
    assert {text for text, *_ in left} == {f"k-{number}" for number in range(12)}
