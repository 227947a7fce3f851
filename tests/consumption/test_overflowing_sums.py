"""Streams whose events do not fit into a sum: however many, all are named in one pass, and only they wait."""

import random
from decimal import Decimal
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from millrace.resources.consumption import failing_streams
from millrace.resources.consumption.consumer import Consumer
from millrace.resources.event_store import EventStore
from millrace.resources.read_models.built.fold_task import TOLD
from millrace.resources.read_models.declared.column_types import arrow_type
from millrace.resources.read_models.declared.columns import Bounds
from millrace.resources.read_models.failing.sums import adder
from tests.support.building.drains import drain, thing, things
from tests.support.building.poison import TOTALS, assert_holds_all_but, at, locks, offsets_of
from tests.support.factories import ids_of_one_partition, rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["things"]

MANY = 150
KINDS = ("bad", "stored")
# of two of them the sum is no bigint
HALF = 5 * 10**18


@pytest.fixture(autouse=True)
def few_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no search by halves get far."""
    monkeypatch.setattr(failing_streams, "MOST_BUILDS", 3)


def totals(store: EventStore) -> dict[str, int]:
    return dict(rows(store.connection, "select owner, units from read_models.amounts order by 1"))


def behind(store: EventStore) -> int:
    return sum(lag.behind for lag in store.view_lag(TOTALS.view))


def test_hundreds_of_streams_that_do_not_fit_into_a_sum_are_named_at_once_in_a_drain_and_in_a_rebuild(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    things.append_events([thing(f"stored-{n}", owner=f"stored-{n}", units=HALF) for n in range(MANY)])
    assert drain(at(dsn, 0), spark, TOTALS).failed_streams == 0
    things.append_events([thing(f"good-{n}", owner=f"good-{n}", units=n) for n in range(50)])
    for units in (HALF, HALF, 1):
        things.append_events([thing(f"bad-{n}", owner=f"bad-{n}", units=units) for n in range(MANY)])
    # beside what is stored; in the same rows, and in others: a row is in the log partition of its stream
    things.append_events([thing(f"stored-{n}", owner=f"stored-{n}", units=HALF) for n in range(MANY)])
    things.append_events([thing(f"more-{n}", owner=f"good-{n}", units=1) for n in range(50)])
    report = drain(at(dsn, 1), spark, TOTALS)
    assert (report.batches, report.failed_streams, report.failed) == (1, 2 * MANY, {})
    assert behind(things) == 0
    fitting = {f"good-{n}": n + 1 for n in range(50)} | {f"{kind}-{n}": HALF for kind in KINDS for n in range(MANY)}
    assert totals(things) == fitting
    # each waits with its second event, and a third one behind it
    said = "select distinct left(decider_id, 3), last_error, attempts from event_store.stream_locks order by 1"
    bad, stored = rows(things.connection, said)
    error = "[USER_RAISED_EXCEPTION] overflow in column units: its sum does not fit bigint SQLSTATE: P0001"
    assert bad == ("bad", error, 1)
    assert "overflow in column units: its sum does not fit bigint" in stored[1]
    second = rows(
        things.connection,
        'select count(*) from event_store.stream_locks k where k.last_offset = (select "offset" - 1 from'
        ' event_store.events e where e.decider_id = k.decider_id order by "offset" offset 1 limit 1)',
    )
    assert second == [(2 * MANY,)]

    with Consumer.open(at(dsn, 2), TOTALS, lambda: spark, "rebuilder") as consumer:
        assert len(consumer.rebuild(*range(16)).failures) == 2 * MANY
    assert totals(things) == fitting


def test_of_streams_that_share_a_row_those_wait_that_do_not_fit_and_no_others(
    things: EventStore, dsn: str, spark: "SparkSession"
) -> None:
    ids = _of_one_partition(things, 7)
    things.append_events([thing(ids[0], owner="o", units=HALF)])
    assert drain(at(dsn, 0), spark, TOTALS).failed_streams == 0
    units = [HALF, 1, 4 * 10**18, HALF, 2]
    things.append_events([thing(name, owner="o", units=n) for name, n in zip(ids[1:6], units, strict=True)])
    report = drain(at(dsn, 1), spark, TOTALS)
    assert (report.failed_streams, report.failed) == (2, {})
    assert sorted(name for name, _ in locks(things)) == sorted([ids[1], ids[4]])
    assert totals(things) == {"o": 9 * 10**18 + 3}

    # as if room had come for one of the two that are tried again and the new one
    things.connection.execute("update read_models.amounts_state set units = 4 * 10::numeric ^ 18")
    things.append_events([thing(ids[6], owner="o", units=HALF - 10**18)])
    assert drain(at(dsn, 10), spark, TOTALS).failed == {}
    assert behind(things) == 0
    assert dict(locks(things)) == {ids[1]: 2, ids[4]: 2}
    assert totals(things) == {"o": 8 * 10**18}


def test_parts_of_a_sum_in_several_log_partitions_that_do_not_fit_together_fail_their_streams_and_no_reader(
    things: EventStore, dsn: str, spark: "SparkSession", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failing_streams, "MOST_BUILDS", 400)
    (here, other), (there,) = _of_one_partition(things, 2), ids_of_one_partition(things.connection, 1, 5)
    things.append_events([thing(here, owner="full", units=HALF), thing(there, owner="fine", units=-HALF)])
    assert drain(at(dsn, 0), spark, TOTALS).failed_streams == 0
    # one row has a small part in the one log partition, the other row has only events that fit each by itself
    things.append_events([thing(other, owner="full", units=9 * 10**18 - HALF), thing(there, owner="full", units=HALF)])
    things.append_events([thing(here, owner="fine", units=-HALF)])
    report = drain(at(dsn, 1), spark, TOTALS)
    assert (report.failed, behind(things)) == ({}, 0)
    waiting = dict(rows(things.connection, "select decider_id, last_error from event_store.stream_locks"))
    for stream, key in ((here, "fine"), (there, "full")):
        why = f"its sum does not fit bigint over all log partitions; declare a wider type or a finer key than {key}"
        assert why in waiting.pop(stream)
    assert waiting == {}
    assert totals(things) == {"full": 9 * 10**18, "fine": -HALF}

    with Consumer.open(at(dsn, 2), TOTALS, lambda: spark, "rebuilder") as consumer:
        failures = consumer.rebuild(*range(16)).failures
    assert failures
    late = {o for f in failures for o in offsets_of(things, f.stream.decider_id) if o >= f.offset}
    assert_holds_all_but(things, late, TOTALS)

    # two consumers that commit at once may not see each other's parts: a reader gets no sum there, and all other rows
    things.connection.execute(
        "insert into read_models.amounts_state values (3, 'both', %(n)s), (5, 'both', %(n)s)", {"n": HALF}
    )
    found = totals(things)
    assert found.pop("both") is None
    assert found


def test_values_that_do_not_fit_beside_those_before_them_are_told_and_later_ones_are_tried_without_them() -> None:
    bounds = [Bounds(Decimal(-100), Decimal(100), "a"), Bounds(Decimal("-9.9"), Decimal("9.9"), "b")]
    names = ["partition", "key", "decider", "decider_id", "offset", "before a", "before b", "a", "b"]
    schema = pa.schema([(name, arrow_type(type_)) for name, type_ in TOLD.items()])
    dice = random.Random(3)
    for _ in range(200):
        table: list[tuple[object, ...]] = []
        told = set()
        for key in "xyz":
            sums = [Decimal(dice.randrange(-100, 101)), Decimal(dice.randrange(-99, 100)) / 10]
            before, failed = list(sums), set()
            for offset in range(dice.randrange(12)):
                stream = f"s-{dice.randrange(5)}"
                after = sums
                # an event has as many rows as elements of its array count
                for _ in range(dice.choice([1, 1, 3])):
                    values = [
                        dice.choice([None, Decimal(dice.randrange(-90, 90))]),
                        Decimal(dice.randrange(-60, 60)) / 10,
                    ]
                    table.append((0, key, "d", stream, offset, *before, *values))
                    after = [total + (v or 0) for total, v in zip(after, values, strict=True)]
                if stream in failed:
                    continue
                if abs(after[0]) > 100 or abs(after[1]) > Decimal("9.9"):
                    failed.add(stream)
                    told.add((stream, offset, "a" if abs(after[0]) > 100 else "b"))
                else:
                    sums = after
        cut = dice.randrange(len(table) + 1)
        batches = [
            pa.RecordBatch.from_pylist([dict(zip(names, row, strict=True)) for row in part])
            for part in (table[:cut], table[cut:])
            if part
        ]
        found = [row for batch in adder(2, bounds, schema)(iter(batches)) for row in batch.to_pylist()]
        assert {(row["decider_id"], row["offset"], row["error"].split()[1]) for row in found} == told


def _of_one_partition(store: EventStore, number: int) -> list[str]:
    found = rows(
        store.connection,
        "select id from (select 't-' || n as id from generate_series(1, 20000) n) c"
        " where event_store.stream_partition(id, 16) = 3 limit %s",
        number,
    )
    return [name for (name,) in found]
